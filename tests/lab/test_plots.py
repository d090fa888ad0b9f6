"""Figures, drawn from a record made up here: colours, footers, units, regions, and labels that do not meet."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import subprocess
import sys
import types

import matplotlib
import pytest

from pmpp.lab.draw import palette, plots, style
from pmpp.lab.measure import record, roofline
from pmpp.runtime.rung import Cost
from tests.lab.test_palette import AREAS, MARKS, nearest
from tests.support.texts import no_texts_meet, words

CEILINGS = roofline.Ceilings(bandwidth=4e12, fma_f32=60e12, source="a test", empty_kernel=2e-6, launch=15e-6)
L2 = 60 * 2**20
LADDERS = {
    "vector_add": ("add", ("one_thread_each", "grid_stride", "vectorised"), "torch.add"),
    "reduction": (
        "sum",
        ("interleaved", "sequential", "shared_tree", "coarsened", "shuffle", "vectorised", "deterministic"),
        "torch.sum",
    ),
    "matmul": (
        "matmul",
        (
            "naive",
            "coalesced",
            "tiled",
            "coarsened",
            "register_tiled",
            "vectorised",
            "prefetched",
        ),
        "torch.matmul",
    ),
}


def cost_of(room, n):
    return {"vector_add": Cost(n, 12 * n), "reduction": Cost(n - 1, 4 * n + 4), "matmul": Cost(2 * n**3, 12 * n * n)}[
        room
    ]


def entry(room, family, n, contender, kind, share, design, **more):
    cost = cost_of(room, n)
    ms = max(roofline.bound(cost, CEILINGS).seconds / share, CEILINGS.empty_kernel) * 1e3
    return record.Entry(
        family=family,
        workload=str(n),
        sizes={"n": n},
        design=design,
        cache="cold",
        contender=contender,
        kind=kind,
        median_ms=ms,
        low_ms=ms,
        high_ms=ms,
        repeats=12,
        batch=1,
        settled=True,
        method="made up",
        flops=cost.flops,
        bytes=cost.bytes,
        **more,
    )


def room_entries(room):
    family, ladder, library = LADDERS[room]
    sizes = [2**k for k in (range(6, 14) if room == "matmul" else range(10, 29))]
    for n in sizes:
        design = n == sizes[-2]
        for place, name in enumerate(ladder):
            whole = {"end_to_end_ms": 0.3 + n / 1e6} if name == ladder[-1] else {}
            yield entry(room, family, n, name, "rung", 0.98 * (place + 1) / len(ladder), design, **whole)
        yield entry(room, family, n, library, "library", 0.97, design)
        yield entry(room, family, n, library.replace("torch", "cupy"), "library", 0.96, design)
        yield entry(room, family, n, library.replace("torch", "numpy"), "numpy", 0.01, design)
    if room == "vector_add":
        for direction, n in itertools.product(("host to device", "device to host"), (2**12, 2**20, 2**30)):
            for memory in ("pageable", "pinned"):
                yield dataclasses.replace(
                    entry(room, direction, n, memory, "transfer", 0.01, False), sizes={"bytes": n}, flops=0, bytes=n
                )


@pytest.fixture(scope="module")
def made_up():
    run = {
        "date": "2026-01-02T03:04:05Z",
        "revision": "abc1234",
        "driver": "0",
        "cuda": "0",
        "cpu": "a CPU, 16 cores",
        "versions": {"numpy": "2.4"},
        "ceilings": dataclasses.asdict(CEILINGS),
    }
    gpu = {"name": "NVIDIA Test 1", "sms": 132, "l2_bytes": L2, "memory_bytes": 2**37}
    rooms = {
        room: {"subject": room, "sources": {}, "entries": [record.as_json(one) for one in room_entries(room)]}
        for room in LADDERS
    }
    return record.Record(record.merge(None, gpu, run, rooms), "made up")


def report(flops, loads, stores):
    counters = {"flops": flops, "global_load_sectors": loads, "global_store_sectors": stores}
    return types.SimpleNamespace(counters=counters)


MINE = {"mine": report(2 * 64**3, 64**3 // 4, 512), "mine, tiled": report(2 * 64**3, 2**11, 512)}
FIGURES = {
    "roofline": lambda made_up: plots.roofline(record=made_up),
    "roofline with reports": lambda made_up: plots.roofline(record=made_up, reports=MINE),
    "transfers": lambda made_up: plots.transfers("vector_add", record=made_up),
    "roofline of vector_add": lambda made_up: plots.roofline("vector_add", record=made_up),
    "ladder of matmul": lambda made_up: plots.ladder("matmul", record=made_up),
    "ladder of reduction": lambda made_up: plots.ladder("reduction", record=made_up),
    "sweep of vector_add": lambda made_up: plots.sweep("vector_add", record=made_up),
    "sweep of reduction": lambda made_up: plots.sweep("reduction", record=made_up),
    "sweep of matmul": lambda made_up: plots.sweep("matmul", record=made_up),
    "CPU and GPU": lambda made_up: plots.cpu_gpu("vector_add", record=made_up),
    "room with reports": lambda made_up: plots.roofline("matmul", record=made_up, reports=MINE),
    "roofline of less": lambda made_up: plots.roofline("by_spectra", record=with_spectra(made_up)),
    "ladder of less": lambda made_up: plots.ladder("by_spectra", record=with_spectra(made_up)),
    "by dtype": lambda made_up: plots.by_dtype("vector_add", "add", record=with_16_bits(made_up)),
    "roofline with less": lambda made_up: plots.roofline(record=with_spectra(made_up)),
    "ladder of tensor cores": lambda made_up: plots.ladder("warpgroups", record=with_tensor(made_up)),
    "roofline of tensor cores": lambda made_up: plots.roofline("warpgroups", record=with_tensor(made_up)),
    "sweep of tensor cores": lambda made_up: plots.sweep("warpgroups", record=with_tensor(made_up)),
    "roofline with tensor cores": lambda made_up: plots.roofline(record=with_tensor(made_up)),
}


def with_tensor(made_up, measured=True):
    """The record with a room on tensor cores, which are five times as fast as multiply-adds, if that was measured."""
    data = copy.deepcopy(made_up.data)
    data["rooms"]["warpgroups"] = copy.deepcopy(data["rooms"]["matmul"])
    for run in data["runs"].values() if measured else ():
        run["ceilings"]["tensor"] = {"float16": 5 * CEILINGS.fma_f32}
    return record.Record(data, "made up")


def with_16_bits(made_up):
    """The record with sums in 16 bits, in little more than half the time."""
    data = copy.deepcopy(made_up.data)
    entries = data["rooms"]["vector_add"]["entries"]
    for one in [one for one in entries if one["design"] and one["contender"] in ("vectorised", "torch.add")]:
        for dtype in ("float16", "bfloat16"):
            ms = {name: one[name] / 1.95 for name in ("median_ms", "low_ms", "high_ms")}
            entries.append({**one, **ms, "family": f"add, {dtype}", "bytes": one["bytes"] // 2})
    return record.Record(data, "made up")


def with_spectra(made_up, **changes):
    """The record with a room whose algorithm does a fortieth of the definition's work, in a seventh of its least time.

    Like the convolution by FFT it lies so far to the right that little is seen of the memory's slope.
    """
    definition, own = Cost(240 * 10**9, 70 * 10**6), Cost(6 * 10**9, 70 * 10**6)
    entries = []
    for name, kind, share in (("slow", "rung", 0.4), ("fast", "rung", 7.5), ("torch.conv2d", "library", 1.7)):
        ms = roofline.bound(definition, CEILINGS).seconds / share * 1e3
        common = {"flops": definition.flops, "bytes": definition.bytes}
        whose = {"own_flops": own.flops, "own_bytes": own.bytes} if kind == "rung" else {}
        one = entry("matmul", "layer", 4096, name, kind, 1, True)
        times = dict.fromkeys(("median_ms", "low_ms", "high_ms"), ms)
        one = dataclasses.replace(one, **{**times, **common, **whose, **changes})
        entries.append(record.as_json(one))
    copied = dataclasses.replace(next(iter(room_entries("vector_add"))), flops=0, design=True)
    rooms = {
        "by_spectra": {"subject": "by_spectra", "sources": {}, "entries": entries},
        "transpose": {"subject": "transpose", "sources": {}, "entries": [record.as_json(copied)]},
    }
    merged = record.merge(made_up.data, made_up.data["gpu"], made_up.run(), rooms)
    return record.Record(merged, "made up")


@pytest.fixture(scope="module", params=FIGURES)
def figure(request, made_up):
    return FIGURES[request.param](made_up)


def test_every_figure_says_where_its_figures_come_from(figure):
    assert figure.get_supxlabel().startswith("Recorded on NVIDIA Test 1, 2026-01-02, revision abc1234")


def test_every_axis_of_numbers_has_its_unit(figure):
    for ax in figure.axes:
        assert ax.get_title(loc="left") or ax.get_title() or figure.get_suptitle()
        for axis in (ax.xaxis, ax.yaxis):
            names = [label.get_text() for label in axis.get_ticklabels()]
            of_numbers = not any(name[:1].isalpha() for name in names)
            if of_numbers:
                assert axis.get_label_text().count("("), axis.get_label_text()


@pytest.mark.parametrize("intensity", [0.3, 1, 3, 10])
@pytest.mark.parametrize("width", [3.5, 7])
def test_the_name_of_the_slope_is_inside_and_on_no_mark(intensity, width):
    figure, ax = style.chart()
    figure.set_figwidth(width)
    mark = intensity, roofline.attainable(intensity, CEILINGS) / 1e12
    plots.draw_roof(ax, CEILINGS, [mark])
    figure.draw_without_rendering()
    (name,) = [text for text in ax.texts if text.get_text().startswith("memory")]
    box, area, (x, y) = name.get_window_extent(), ax.get_window_extent(), ax.transData.transform(mark)
    assert area.x0 <= box.x0 + 1
    assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1)


def test_a_line_of_the_footer_is_broken_where_the_figure_ends():
    figure, ax = style.chart(2)
    style.foot(figure, "Recorded\n" + "a word or two " * 20)
    figure.draw_without_rendering()
    (label,) = [text for text in figure.texts if text.get_text().startswith("Recorded")]
    box = label.get_window_extent()
    assert 0.9 * figure.bbox.x1 < box.x1 <= figure.bbox.x1
    assert box.y1 < ax.get_tightbbox().y0


def test_nothing_is_smaller_than_the_footer(figure):
    assert min(text.get_fontsize() for text in words(figure)) >= style.FOOTER


def test_no_two_texts_meet_and_none_is_cut_off(figure):
    no_texts_meet(figure)


def test_a_notebook_shows_it(made_up):
    assert plots.ladder("vector_add", record=made_up)._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


def test_no_state_of_the_session_is_left_or_used(made_up):
    before = dict(matplotlib.rcParams)
    plots.ladder("reduction", record=made_up)
    assert dict(matplotlib.rcParams) == before
    code = "import sys, pmpp.lab.draw.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_colours_are_unique_in_a_ladder_and_the_same_everywhere(made_up):
    for room, (_, ladder, library) in LADDERS.items():
        look = plots.colours(made_up, room)
        assert [look[name][0] for name in ladder] == list(plots.COLOURS[: len(ladder)])
        assert len({look[name] for name in ladder}) == len(ladder)
        assert look[library][0] in palette.LIBRARIES
    drawn = {line.get_label(): line.get_color() for line in plots.sweep("matmul", record=made_up).axes[0].get_lines()}
    bars = [bar.get_facecolor() for bar in plots.ladder("matmul", record=made_up).axes[0].patches]
    for place, name in enumerate(LADDERS["matmul"][1]):
        assert drawn[name] == plots.COLOURS[place]
        assert matplotlib.colors.to_hex(bars[place]).upper() == plots.COLOURS[place].upper()


def shown(figure):
    """The colours of lines, marks and bars, and those of areas behind them."""
    marks, areas = set(), set()
    for ax in figure.axes:
        for line in ax.get_lines():
            marks |= {matplotlib.colors.to_hex(one) for one in (line.get_color(), line.get_markerfacecolor())}
        for patch in ax.patches:
            behind = patch.get_zorder() == 0
            (areas if behind else marks).add(matplotlib.colors.to_hex(patch.get_facecolor()))
    return marks, areas


def test_the_colours_of_a_figure_can_be_told_apart(figure):
    marks, areas = shown(figure)
    least, *who = nearest(marks | {"#ffffff"})
    assert least >= MARKS, who
    if len(areas) > 1:
        least, *who = nearest(areas)
        assert least >= AREAS, who
        least, *who = nearest(marks - {"#ffffff"}, areas)
        assert least >= AREAS, who


def test_regions_by_hand(made_up):
    # 12 n bytes at 4 TB/s are shorter than 2 us below n = 666,667, and fit in 60 MiB up to n = 5,242,880.
    found = plots.regions(made_up.entries("vector_add", family="add"), CEILINGS, L2)
    assert [name for name, *_ in found] == ["launch-bound", "in cache", "memory-bound"]
    assert found[0][1:] == pytest.approx((2**10, 2**19.5))
    assert found[1][1:] == pytest.approx((2**19.5, 2**22.5))
    assert found[2][1:] == pytest.approx((2**22.5, 2**28))
    # 2 n^3 FLOP at 60 TFLOP/s are shorter than 2 us below n = 392.
    found = plots.regions(made_up.entries("matmul"), CEILINGS, L2)
    assert [name for name, *_ in found] == ["launch-bound", "compute-bound"]
    assert found[0][2] == pytest.approx(2**8.5)


def test_counted_intensity_by_hand():
    assert plots.counted_intensity(report(64, 1, 1)) == 1.0
    with pytest.raises(ValueError, match="no floating-point arithmetic"):
        plots.counted_intensity(report(0, 1, 1))
    with pytest.raises(ValueError, match="no global memory traffic"):
        plots.counted_intensity(report(1, 0, 0))


def test_the_readers_kernel_lies_on_the_roof_and_is_marked_as_predicted(made_up):
    figure = plots.roofline("matmul", record=made_up, reports={"mine": report(64, 1, 1)})
    star = next(line for line in figure.axes[0].get_lines() if line.get_marker() == "*")
    assert star.get_xdata()[0] == 1.0
    assert star.get_ydata()[0] == pytest.approx(4.0)
    assert any(text.get_text() == "mine\nat most 4 TFLOP/s, predicted" for text in words(figure))
    assert "predicted from counted traffic, not measured" in figure.get_supxlabel()


def test_no_label_is_lost_for_want_of_room(made_up):
    names = [f"a kernel with a long name, number {place}" for place in range(6)]
    figure = plots.roofline(
        "matmul", record=made_up, reports={name: report(1000 + i, 3, 1) for i, name in enumerate(names)}
    )
    said = {text.get_text().partition("\n")[0] for text in words(figure)}
    assert said >= set(names)


def test_measured_points_lie_where_their_cost_and_time_put_them(made_up):
    figure = plots.roofline("vector_add", record=made_up)
    best = next(line for line in figure.axes[0].get_lines() if line.get_label().startswith("vectorised"))
    assert best.get_xdata()[0] == pytest.approx(1 / 12)
    assert best.get_ydata()[0] == pytest.approx(0.98 * 4 / 12)
    assert best.get_label() == "vectorised 98%"


def test_what_does_less_than_the_definition_lies_under_its_own_roof_and_over_the_definitions(made_up):
    for room, label in ((None, "by_spectra 19%"), ("by_spectra", "fast 19%")):
        figure = plots.roofline(room, record=with_spectra(made_up))
        ax = figure.axes[0]
        assert any(text.get_text() == label for text in words(figure))  # a fortieth of 750 %
        marks = [line for line in ax.get_lines() if len(line.get_xdata()) == 1]
        at = {(round(float(x)), round(float(y), 2)): line for line in marks for x, y in [line.get_xydata()[0]]}
        assert at[86, 11.25].get_markerfacecolor() != "white"  # 6 GFLOP and 70 MB; a fortieth of 450 TFLOP/s
        assert at[3429, 450].get_markerfacecolor() == "white"
        assert ax.get_ylim()[1] > 7.5 * 60
        assert "Small and hollow: the same time" in figure.get_supxlabel()


def test_a_library_has_the_definitions_cost(made_up):
    assert [one.own is not None for one in with_spectra(made_up).design("by_spectra")] == [True, True, False]
    figure = plots.roofline("by_spectra", record=with_spectra(made_up))
    library = next(line for line in figure.axes[0].get_lines() if line.get_label().startswith("torch"))
    assert library.get_label() == "torch.conv2d 170%"
    assert library.get_xdata()[0] == pytest.approx(240e9 / 70e6)


def test_a_ladder_of_what_does_less_has_both_shares(made_up):
    figure = plots.ladder("by_spectra", record=with_spectra(made_up))
    said = [text.get_text() for text in words(figure)]
    assert {"750.0%", "18.8%", "170.0%", "of its own"} <= set(said)
    assert "of its own" not in [text.get_text() for text in words(plots.ladder("matmul", record=made_up))]


def test_a_ladder_has_numpy_on_the_cpu_where_it_was_measured(made_up):
    figure = plots.ladder("matmul", record=made_up)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][-1] == "numpy.matmul, CPU"
    assert figure.get_supxlabel().endswith(
        "CPU: a CPU, 16 cores; NumPy 2.4 (on one core, but for products of matrices)"
    )
    assert "CPU" not in plots.ladder("by_spectra", record=with_spectra(made_up)).get_supxlabel()


def test_a_room_without_arithmetic_is_named_and_not_drawn(made_up):
    one = dataclasses.replace(next(iter(room_entries("vector_add"))), flops=0, design=True)
    rooms = {"transpose": {"subject": "transpose", "sources": {}, "entries": [record.as_json(one)]}}
    both = record.merge(made_up.data, made_up.data["gpu"], made_up.run(), rooms)
    figure = plots.roofline(record=record.Record(both))
    assert "transpose does no arithmetic and is not drawn" in figure.get_supxlabel()


def test_modules_are_rooms_too(made_up):
    module = types.ModuleType("pmpp.kernels.reduction")
    assert plots.ladder(module, record=made_up).axes[0].get_title(loc="left").startswith("reduction")


def test_what_was_not_measured_is_said(made_up):
    for draw in (plots.roofline, plots.ladder, plots.sweep, plots.cpu_gpu, plots.transfers):
        with pytest.raises(record.RecordError, match="no measurements of room 'attic'"):
            draw("attic", record=made_up)
    with pytest.raises(record.RecordError, match="no transfers"):
        plots.transfers("matmul", record=made_up)
    with pytest.raises(record.RecordError, match="no sweep of 'product'"):
        plots.sweep("matmul", family="product", record=made_up)
    one, data = made_up.entries("matmul", kind="rung")[0], copy.deepcopy(made_up.data)
    data["rooms"]["matmul"]["entries"] = [record.as_json(one)]
    with pytest.raises(record.RecordError, match=f"has one size of '{one.family}' in room 'matmul', and a sweep has"):
        plots.sweep("matmul", record=record.Record(data))


def test_each_room_has_its_share_of_its_own_ceiling(made_up):
    # Measured later, and with twice the bandwidth: the same time is half the share.
    rooms = {
        "vector_add": {
            "subject": "vector_add",
            "sources": {},
            "entries": [record.as_json(one) for one in room_entries("vector_add")],
        }
    }
    ceilings = dataclasses.asdict(dataclasses.replace(CEILINGS, bandwidth=8e12))
    run = {**made_up.run("vector_add"), "date": "2026-02-03T03:04:05Z", "ceilings": ceilings}
    figure = plots.roofline(record=record.Record(record.merge(made_up.data, made_up.data["gpu"], run, rooms)))
    said = {text.get_text() for text in words(figure)}
    assert {"vector_add 49%", "reduction 98%"} <= said


def test_shares_of_tensor_cores_are_of_their_rate_where_it_was_measured(made_up):
    """Five times the ceiling is a fifth of the share. A record without it says whose ceiling it is."""
    shares = []
    for measured, whose in ((True, "tensor cores, float16"), (False, "float32 multiply-adds (that of")):
        kept = with_tensor(made_up, measured)
        roofline_, ladder = (draw("warpgroups", record=kept) for draw in (plots.roofline, plots.ladder))
        said = [" ".join(text.get_text().split()) for text in words(roofline_)]
        assert any(f"The flat roof is that of {whose}" in text for text in said)
        assert any("tensor cores" in text for text in said if "TFLOP/s" in text) == measured
        assert any(f"The ceiling of arithmetic is that of {whose}" in text.get_text() for text in words(ladder))
        shares.append(max(bar.get_width() for bar in ladder.axes[0].patches))
    assert shares[1] == pytest.approx(5 * shares[0])
    with pytest.raises(record.RecordError, match="not measured for int8; it was for: float16"):
        with_tensor(made_up).ceilings("matmul").on_tensor_cores("int8")


def test_a_room_on_tensor_cores_stands_below_their_roof_among_all(made_up):
    figure = plots.roofline(record=with_tensor(made_up))
    said = {text.get_text() for text in words(figure)}
    assert {"matmul 98%", "warpgroups 20%", "tensor cores, float16, 300 TFLOP/s", "multiply-add 60 TFLOP/s"} <= said
    (roof,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert list(roof.get_ydata()) == [60, 300, 300]
    figure = plots.roofline(record=with_tensor(made_up, measured=False))
    said = {text.get_text() for text in words(figure)}
    assert {"matmul 98%", "warpgroups"} <= said, "no share of another unit's roof"
    assert not [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]


# Only two figures have the room that does less than its definition.
@pytest.mark.parametrize(
    ("room", "own"),
    [(None, True), (None, False), *((room, True) for room in LADDERS), ("by_spectra", True), ("by_spectra", False)],
)
def test_labels_of_the_roof_stay_inside_the_axes(made_up, room, own):
    by_definition = {} if own else {"own_flops": None, "own_bytes": None}
    figure = plots.roofline(room, record=with_spectra(made_up, **by_definition))
    figure.draw_without_rendering()
    inside = figure.axes[0].get_window_extent()
    for word in ("ridge", "memory"):
        box = next(text for text in figure.axes[0].texts if text.get_text().startswith(word)).get_window_extent()
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1, word
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1, word


@pytest.mark.parametrize("share", [0.9, 1.05, 1.3])
def test_the_label_of_the_arithmetic_hides_no_mark(made_up, share):
    ms = roofline.bound(Cost(240e9, 70e6), CEILINGS).seconds / share * 1e3
    all_at_once = {"median_ms": ms, "low_ms": ms, "high_ms": ms, "own_flops": None, "own_bytes": None}
    figure = plots.roofline("by_spectra", record=with_spectra(made_up, **all_at_once))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    box = next(text for text in ax.texts if text.get_text().startswith("multiply-add")).get_window_extent()
    mark = next(line for line in ax.get_lines() if len(line.get_xdata()) == 1)
    ((x, y),) = ax.transData.transform(mark.get_xydata())
    assert not (box.x0 - 5 < x < box.x1 + 5 and box.y0 - 5 < y < box.y1 + 5)
    assert box.y1 < ax.get_window_extent().y1


def test_a_room_without_arithmetic_has_no_roofline(made_up):
    with pytest.raises(ValueError, match="transpose does no arithmetic"):
        plots.roofline("transpose", record=with_spectra(made_up))


def test_ticks_of_a_short_axis_are_plain_too():
    figure, ax = style.chart()
    ax.set(yscale="log", ylim=(0.3, 0.95))
    plots._plain(ax.yaxis)
    figure.draw_without_rendering()
    names = [label.get_text() for label in ax.get_yticklabels(which="both") if label.get_text()]
    assert "0.6" in names
    assert all("10^" not in name and "e" not in name for name in names)


def test_no_library_hides_a_rung(made_up):
    lines = {line.get_label(): line for line in plots.sweep("reduction", record=made_up).axes[0].get_lines()}
    assert lines["deterministic"].get_zorder() > lines["torch.sum"].get_zorder()


def test_sweep_of_some(made_up):
    figure = plots.sweep("matmul", record=made_up, only=["naive", "torch.matmul"], xlabel="side of a square")
    assert figure.axes[0].get_xlabel() == "side of a square"
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels == ["naive", "torch.matmul", "the ceilings allow"]


def test_numpy_is_drawn_beside_a_family_without_a_design_size(made_up):
    entries = [dataclasses.replace(one, design=False) for one in room_entries("matmul")]
    rooms = {"matmul": {"subject": "matmul", "sources": {}, "entries": [record.as_json(one) for one in entries]}}
    merged = record.merge(made_up.data, made_up.data["gpu"], made_up.run(), rooms)
    lines = plots.cpu_gpu("matmul", record=record.Record(merged)).axes[0].get_lines()
    assert [line.get_label() for line in lines][-1] == "GPU: prefetched, kernel alone"


def with_subject(made_up, subject, contenders, **changes):
    """The record with a room "attic" of a subject: contenders by kind at three sizes, each faster than the one before.

    The last size is the design size, if ``design`` does not say otherwise.
    """
    entries = []
    for n in (2**22, 2**24, 2**26):
        for place, (name, kind) in enumerate(contenders):
            one = entry("vector_add", "add", n, name, kind, 0.1 * (place + 1), n == 2**26)
            entries.append(record.as_json(dataclasses.replace(one, **changes)))
    rooms = {"attic": {"subject": subject, "sources": {}, "entries": entries}}
    return record.Record(record.merge(made_up.data, made_up.data["gpu"], made_up.run(), rooms), "made up")


def labels(figure):
    return [line.get_label() for line in figure.axes[0].get_lines()]


@pytest.mark.parametrize("design", [True, False])
@pytest.mark.parametrize("whole", [None, "slow"])
def test_beside_the_cpu_stands_the_rung_that_was_timed_with_transfers_or_the_fastest(made_up, design, whole):
    contenders = [("slow", "rung"), ("fast", "rung"), ("slower", "rung"), ("numpy", "numpy")]
    data = with_subject(made_up, "loft", contenders).data
    for one in data["rooms"]["attic"]["entries"]:
        milliseconds = {"slow": 2, "fast": 1, "slower": 3, "numpy": 9}[one["contender"]]
        one.update(median_ms=milliseconds, low_ms=milliseconds, high_ms=milliseconds)
        one["design"] = one["design"] and design
        if one["contender"] == whole:
            one["end_to_end_ms"] = 5.0
    drawn = labels(plots.cpu_gpu("attic", record=record.Record(data, "made up")))
    slow = ["GPU: slow, call and transfers included", "GPU: slow, kernel alone"]
    assert drawn == ["CPU: numpy", *(slow if whole else ["GPU: fast, kernel alone"])]


def test_a_roof_of_our_own_is_not_called_a_library(made_up):
    for contender, name in (("torch.minimum", "the best library"), ("cuda.add_min", "cuda.add_min")):
        kept = with_subject(made_up, "loft", [("slow", "rung"), (contender, "library")])
        assert plots.ladder("attic", record=kept).axes[0].get_xlabel().endswith(f"Dashed: {name}")


def test_each_contender_of_the_cpu_has_its_line(made_up):
    hosts = ["numpy.minimum", "scipy.shortest_path"]
    kept = with_subject(made_up, "loft", [("fast", "rung"), *((name, "numpy") for name in hosts)])
    figure = plots.cpu_gpu("attic", record=kept)
    assert labels(figure)[:2] == [f"CPU: {name}" for name in hosts]
    lines = figure.axes[0].get_lines()[:2]
    assert [len(line.get_xdata()) for line in lines] == [3, 3]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 2
    no_texts_meet(figure)


def test_many_contenders_of_the_cpu_have_a_line_each_that_looks_like_no_other(made_up):
    hosts = [f"numpy.{k}" for k in range(7)]
    kept = with_subject(made_up, "loft", [("fast", "rung"), *((name, "numpy") for name in hosts)])
    lines = plots.cpu_gpu("attic", record=kept).axes[0].get_lines()[:7]
    assert [line.get_label() for line in lines] == [f"CPU: {name}" for name in hosts]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 7


def test_figures_can_be_saved(made_up):
    buffer = io.BytesIO()
    plots.ladder("vector_add", record=made_up).savefig(buffer, format="svg")
    assert b"</svg>" in buffer.getvalue()


def test_crowded_labels_find_a_place_each():
    figure, ax = style.chart()
    ax.set(xlim=(0, 10), ylim=(0, 10))
    style.label_points(ax, [(5, 5 + 0.05 * i, f"point number {i}", "#000000") for i in range(8)], [])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert len(boxes) == 8
    for a, b in itertools.combinations(boxes, 2):
        apart = 3 * figure.dpi / 72  # side by side, or the two read as one
        assert not (a.x0 < b.x1 + apart and b.x0 < a.x1 + apart and a.y0 < b.y1 and b.y0 < a.y1)


def test_drawn_is_the_figure_or_a_word_on_what_is_missing(capsys):
    def missing(room):
        raise record.RecordError(f"{room} has never been measured")

    assert plots.drawn(lambda room, family: (room, family), "scan", family="cumsum") == ("scan", "cumsum")
    assert plots.drawn(missing, "scan") is None
    assert capsys.readouterr().out == "Nothing to draw: scan has never been measured\n"
    assert plots.drawn(plots.ladder, "no_such_room") is None
    said = capsys.readouterr().out
    assert said.startswith("Nothing to draw: pmpp/recorded/")
    assert "no_such_room" in said
    with pytest.raises(ValueError, match="another fault"):
        plots.drawn(lambda: (_ for _ in ()).throw(ValueError("another fault")))


def test_16_bits_stand_beside_32(made_up):
    figure = plots.by_dtype("vector_add", "add", record=with_16_bits(made_up))
    said = [text.get_text() for text in words(figure)]
    assert said.count("1.95 x") == 4
    assert said.count("1.00 x") == 2
    (half,) = [line.get_xdata()[0] for line in figure.axes[0].get_lines()]
    assert half == figure.axes[0].patches[0].get_width() / 2
    with pytest.raises(record.RecordError, match="has no measurement of 'vector_add', add, in 16 bits"):
        plots.by_dtype("vector_add", "add", record=made_up)


@pytest.mark.parametrize("draw", ["ladder", "by dtype"])
@pytest.mark.parametrize("name", ["torch.add", "torch.max_pool2d_with_indices_backward of all of the planes"])
def test_the_columns_beside_bars_stand_apart_and_on_no_line(made_up, draw, name):
    """Times of seconds and long names of libraries included."""
    data = copy.deepcopy(with_16_bits(made_up).data)
    for one in data["rooms"]["vector_add"]["entries"]:
        one.update({key: 3e5 * one[key] for key in ("median_ms", "low_ms", "high_ms")})
        one["contender"] = name if one["contender"] == "torch.add" else one["contender"]
    kept = record.Record(data, "made up")
    figure = (
        plots.ladder("vector_add", record=kept)
        if draw == "ladder"
        else plots.by_dtype("vector_add", "add", record=kept)
    )
    no_texts_meet(figure)
    ax = figure.axes[0]
    columns = [text for text in ax.texts if text.get_text()]
    assert any(text.get_text().endswith(" s") for text in columns)
    assert not any("e+" in text.get_text() for text in words(figure))
    right = ax.get_window_extent().x1
    assert all(text.get_window_extent().x0 > right for text in columns)
