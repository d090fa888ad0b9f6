"""The texts of a figure: that none lies on another, and that none is cut off."""

import itertools

from matplotlib.figure import Figure
from matplotlib.text import Text

PIXEL = 1  # how far texts may reach into one another, or over the edge


def words(figure: Figure) -> list[Text]:
    """The texts that are drawn: a tick beyond the limits of its axis is not."""
    outside = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            outside |= {t for tick in ticks if not low <= tick.get_loc() <= high for t in (tick.label1, tick.label2)}
    return [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible() and t not in outside]


def no_texts_meet(figure: Figure) -> None:
    """Fail if two texts of a figure meet, or if one is cut off; the message has their words."""
    figure.draw_without_rendering()
    boxes = []
    for text in words(figure):
        if text.get_rotation() % 90:
            continue  # along the roof: its upright box is mostly empty
        label, box, page = text.get_text(), text.get_window_extent(), figure.bbox
        assert page.x0 <= box.x0 + PIXEL, label
        assert box.x1 <= page.x1 + PIXEL, label
        assert page.y0 <= box.y0 + PIXEL, label
        assert box.y1 <= page.y1 + PIXEL, label
        boxes.append((label, box))
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        overlap = min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0))
        assert overlap <= PIXEL, f"{one!r} meets {other!r}"
