"""A launch to step through: line by line, what each lane does, what memory holds, and the two accesses of each race.

    from pmpp.lab.draw.stepper import step
    step(kernel, 1, 64, (x, out))                      # in lockstep, as `simt.profile` runs it
    step(kernel, 1, 64, (x, out), schedule="warps")    # one warp after the other, each up to its next barrier
    step(kernel, check("room/task", kernel))           # the case that shows the mistake of an exercise

It is for small launches: what is written for each step would fill a page of 64 blocks with nothing to see. A notebook
shows a page to click through. The page needs no kernel, no network and no file beside it, so it stays what it is in
exports; where scripts do not run, it is a table of all steps. Elsewhere, `print` and ``.steps`` have the same as text
and as data.
"""

from __future__ import annotations

import html
import inspect
import itertools
import json
import linecache
import textwrap
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pmpp.lab.draw import palette
from pmpp.lab.draw.stepping import Lanes, Moment, Touch, Warp, coordinates, present, shown, stepped
from pmpp.lab.teach.exercise import MOST_BLOCKS, MOST_THREADS, Verdict, can_step
from pmpp.simt import Report, TraceError, Tracing, profile
from pmpp.simt.host.launch import configure
from pmpp.simt.observe.contents import Held

__all__ = ["MOST_BLOCKS", "MOST_ELEMENTS", "MOST_STEPS", "MOST_THREADS", "Stepper", "step"]

MOST_STEPS = 1000
MOST_ELEMENTS = 2048  # of an array whose contents are shown: a tile of 32 x 33 is among them
COLUMNS, WIDEST = 16, 33  # elements in a row: of a long axis, and at most

LANES = {"active": palette.COLOURS[0], "masked": palette.WAITING, "barrier": palette.OWN, "wrong": palette.WRONG}
_KEYS = (
    ("a", "●", "works"),
    ("a", "○", "tests, and does not go on inside"),
    ("m", "·", "masked: waits for others of its warp"),
    ("w", "=", "waits at a barrier"),
    ("x", "×", "has left the kernel"),
    ("r", "", "its warp rests"),
)
_HERE = Path(__file__)
_VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}


def step(
    kernel: typing.Any,
    grid: int | tuple[int, ...] | Verdict,
    block: int | tuple[int, ...] | None = None,
    args: tuple | list | None = None,
    *,
    sharedmem: int = 0,
    schedule: str | None = None,
    seed: int = 0,
) -> Stepper:
    """Run a small launch in the interpreter, on a machine with a GPU, too, and keep every step of it.

    Args:
        kernel: made with ``@cuda.jit`` on either backend, or the plain function of one.
        grid: blocks, an int or a tuple; or a Verdict of ``check``, whose case is then run, on copies of its inputs.
        block: threads a block, an int or a tuple.
        args: the kernel's arguments; arrays are changed as by a real launch.
        sharedmem: bytes of dynamic shared memory.
        schedule, seed: who runs when, as in ``simt.profile``. In lockstep, all warps execute a line together; with
            "warps" one warp runs up to its next barrier, and then the next one does; "shuffled" draws them.

    Every access is checked, and what the interpreter has to say stands at the step where it happens.

    Raises simt.TraceError for more than MOST_BLOCKS blocks, MOST_THREADS threads or MOST_STEPS steps, and ValueError
    for a Verdict without a case. The contents of arrays of more than MOST_ELEMENTS elements are not shown.

    >>> from pmpp import simt
    >>> @simt.cuda.jit
    ... def double(x):
    ...     i = simt.cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> x = np.arange(3)
    >>> for moment in step(double, 1, 32, (x,)).steps:
    ...     print(moment.text, moment.active[0, 0][-1], moment.changes)
    i = simt.cuda.grid(1) 31 {}
    if i < x.size: 31 {}
    x[i] *= 2 2 {('x', None): {1: 2, 2: 4}}
    """
    if isinstance(grid, Verdict):
        verdict = grid
        if block is not None or args is not None:
            raise TypeError("with a Verdict, step() takes no block and no args: the Verdict has them")
        if not verdict.launch:
            raise ValueError(f"{verdict.exercise}: this Verdict has no launch to step through")
        grid, block, _, sharedmem = verdict.launch
        args = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in verdict.inputs)
    name = getattr(kernel, "__name__", "the kernel")
    grid, block, sharedmem = configure(grid, block, sharedmem)
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    if not can_step(grid, block):
        raise TraceError(
            f"step() shows launches of at most {MOST_BLOCKS} blocks and {MOST_THREADS:,} threads in all; this one of "
            f"{name} has {blocks:,} x {threads:,} threads: launch fewer, on less input"
        )
    tracing = Tracing(blocks=range(blocks), contents=MOST_ELEMENTS)
    report = profile(
        kernel, grid, block, args, level="check", sharedmem=sharedmem, collect=True, schedule=schedule, seed=seed,
        trace=tracing,
    )  # fmt: skip
    if not report.trace.steps():
        raise TraceError(f"{name} has no statement to step through")
    many = len({one.sequence for one in report.trace.steps()})
    if many > MOST_STEPS:
        raise TraceError(
            f"step() shows launches of at most {MOST_STEPS:,} steps; this one of {name} takes {many:,}: give it less "
            "input, so that its loops have fewer rounds"
        )
    source, first = inspect.getsourcelines(getattr(kernel, "py_func", kernel))
    return Stepper(report, range(first, first + len(source)))


class Stepper:
    """A launch to step through: what `step` returns.

    steps   a list of `pmpp.lab.draw.stepping.Moment`: line, text, active lanes, accesses, changes, hazards
    races   a list of `pmpp.lab.draw.stepping.Race`: two accesses each
    report  the interpreter's, of the same launch, with counters and hazards

    A notebook shows the page. ``print`` prints the table of steps, and ``save`` writes the page into a file.
    """

    def __init__(self, report: Report, lines: Iterable[int]) -> None:
        self.report = report
        self.steps, self.races = stepped(report)
        self._lines = sorted({*lines, *(one.line for one in self.steps)})
        self._present = present(report)
        self._rows = {warp: k for k, warp in enumerate(self._present)}
        self._arrays = report.trace.contents.arrays
        self._places = {(held.name, held.block): k for k, held in enumerate(self._arrays)}

    def __repr__(self) -> str:
        return f"<Stepper of {self._title()}>"

    def __str__(self) -> str:
        rows = [(str(n), str(line), text, f"{what} {said}".strip()) for n, line, text, what, said in self._table()]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:3]] if rows else []
        lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
        return "\n".join([self._title(), *lines])

    def save(self, path: str | Path) -> None:
        """Write the page into a file that any browser opens."""
        title = html.escape(self._title())
        Path(path).write_text(
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            '<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
            f"</head>\n<body>\n{self._repr_html_()}\n</body>\n</html>\n",
            encoding="utf-8",
        )

    # -- in words ----------------------------------------------------------------------------------------------------

    def _title(self) -> str:
        report = self.report
        how = {"lockstep": "all warps in lockstep", "blocks": "block after block"}.get(report.schedule)
        how = how or (
            f"{report.schedule.removesuffix('s')} after {report.schedule.removesuffix('s')}"
            if report.schedule in ("warps", "lanes")
            else report.schedule
        )
        grid, block = (" x ".join(map(str, _used(extent))) for extent in (report.grid, report.block))
        many = _count(len(self.steps), "step")
        return f"{report.kernel}: grid {grid}, block {block}, in the interpreter, {how}: {many}"

    def _name(self, warp: Warp) -> str:
        block, number = warp
        one = len(self.report.trace.blocks) == 1
        return f"warp {number}" if one else f"block {coordinates(block, self.report.grid)}, warp {number}"

    def _of_block(self, block: int | None) -> str:
        one = block is None or len(self.report.trace.blocks) == 1
        return "" if one else f" of block {coordinates(block, self.report.grid)}"

    def _who(self, lanes: dict[Warp, Lanes], gone: dict[Warp, Lanes] | None = None) -> str:
        """Threads in words: `warp 0`, `warps 1 to 3`, `warp 0, lanes 0 to 15`; `gone` are those that have left."""
        everyone = {warp: tuple(np.flatnonzero(bits).tolist()) for warp, bits in self._present.items()}
        left = {
            warp: tuple(n for n in which if n not in (gone or {}).get(warp, ())) for warp, which in everyone.items()
        }
        if gone and lanes == {warp: which for warp, which in left.items() if which}:
            return "all remaining threads"
        if lanes == everyone:
            return "every thread" if len(everyone) > 1 else f"all {_count(len(everyone[0, 0]), 'lane')}"
        parts = []
        for (block, which), group in itertools.groupby(
            sorted(lanes, key=lambda w: (w[0], lanes[w] != everyone[w], lanes[w], w[1])), key=lambda w: (w[0], lanes[w])
        ):
            warps = list(group)
            numbers = _ranges([w for _, w in warps])
            text = f"warp{'s' if len(warps) > 1 else ''} {numbers}"
            if len(self.report.trace.blocks) > 1:
                text = f"block {coordinates(block, self.report.grid)}, {text}"
            if any(which != everyone[w] for w in warps):
                text += f", lane{'s' if len(which) > 1 else ''} {_ranges(which)}"
            parts.append(text)
        return "; ".join(parts)

    def _what(self, moment: Moment, before: Moment | None) -> str:
        """What happens in a step, as sentences."""
        parts = [
            _sentence(self._who(moment.active, moment.returned) + (" at a test" if moment.taken is not None else ""))
        ]
        if moment.taken is not None:
            inside = {warp: lanes for warp, lanes in moment.taken.items() if lanes}
            goes = "All go on inside." if inside == moment.active else "None goes on inside."
            parts.append(goes if inside in ({}, moment.active) else f"These go on inside: {self._who(inside)}.")
        groups: dict[tuple, list[Touch]] = {}
        for touch in moment.touches:
            block = touch.warp[0] if touch.space == "shared" else None
            groups.setdefault((touch.kind, touch.array, block, touch.count), []).append(touch)
        for (kind, array, block, _), touches in groups.items():
            parts.append(_sentence(f"{_VERBS[kind]} {self._elements(array, block, touches)}"))
        if moment.waiting.keys() - moment.active.keys():
            parts.append(_sentence(f"at a barrier: {self._who(moment.waiting)}"))
        elif moment.waiting:
            parts.append("This is a barrier.")
        gone = {w: lanes for w, lanes in moment.returned.items() if before is None or before.returned.get(w) != lanes}
        if gone:
            parts.append(_sentence(f"has left the kernel: {self._who(gone)}"))
        return " ".join(parts)

    def _elements(self, array: str, block: int | None, touches: Sequence[Touch]) -> str:
        place, where = self._places.get((array, block)), self._of_block(block)
        if place is None:
            return _count(sum(len(t.lanes) for t in touches), "element") + f" of {array}{where}"
        flat = sorted(set(self._flat(touches, place)))
        shape = self._arrays[place].start.shape
        if len(flat) == 1:
            return f"{array}[{', '.join(str(i) for i in np.unravel_index(flat[0], shape))}]{where}"
        ranges = _ranges(flat)
        if len(shape) == 1 and ranges.count(",") < 4:
            return f"{array}[{ranges}]{where}"
        return f"{len(flat)} elements of {array}{where}"

    def _flat(self, touches: Iterable[Touch], place: int) -> list[int]:
        """Flat indices of the elements, as often as they are touched."""
        starts = [(self._at(e, place), touch.count) for touch in touches for e in touch.elements or ()]
        return [e + k for e, count in starts for k in range(count)]

    def _at(self, element: int | tuple[int, ...], place: int) -> int:
        shape = self._arrays[place].start.shape
        return int(np.ravel_multi_index(element if isinstance(element, tuple) else (element,), shape))

    def _table(self) -> list[tuple[int, int, str, str, str]]:
        """For each step: its number from 1, its line, the line's text, what happens, and what is wrong."""
        befores = [None, *self.steps[:-1]]
        rows = []
        for moment, before in zip(self.steps, befores, strict=True):
            said = [message.removeprefix(f"line {moment.line}: ") for message in moment.hazards]
            for race in self.races:
                if race.first.moment == moment.number and race.first.moment != race.second.moment:
                    said.append(f"This is one side of a race: see step {race.second.moment + 1}.")
                elif race.second.moment == moment.number and race.first.moment != moment.number:
                    said.append(f"The other side of the race is step {race.first.moment + 1}.")
            what = self._what(moment, before)
            rows.append((moment.number + 1, moment.line, moment.text, what, " ".join(map(_sentence, said))))
        return rows

    # -- as a page ---------------------------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        colours = " ".join(f"--{name}: {colour};" for name, colour in LANES.items())
        style = (_HERE.with_suffix(".css")).read_text(encoding="utf-8")
        script = (_HERE.with_suffix(".js")).read_text(encoding="utf-8")
        title = html.escape(self._title())
        return (
            f'<div class="pmpp-step" role="group" aria-label="{title}" data-lm-suppress-shortcuts="true">\n'
            f"<style>\n.pmpp-step {{ {colours} }}\n{style}</style>\n"
            f"<p><b>{title}</b></p>\n{self._problems()}"
            '<div class="ps-tool"></div>\n<p class="ps-now" role="status" aria-live="polite" hidden></p>\n'
            f'<div class="ps-body">\n<div class="ps-code">{self._listing()}</div>\n<div class="ps-state"></div>\n'
            '</div>\n<div class="ps-memories"></div>\n'
            '<details class="ps-steps" open><summary>All steps as a table</summary>'
            f'<div class="ps-scroll" tabindex="0" role="region" aria-label="steps">\n{self._rows_html()}</div>'
            "</details>\n"
            f'<script type="application/json">{_inside_script(self._data())}</script>\n'
            f"<script>\n{script}</script>\n</div>"
        )

    def _problems(self) -> str:
        """What is wrong, and where: each race as its two accesses, each other hazard as its step."""
        items = []
        told = {race.message for race in self.races}
        for race in self.races:
            element = "" if race.element is None else f"[{', '.join(map(str, np.atleast_1d(race.element)))}]"
            sides = []
            for end in (race.first, race.second):
                who = f"thread {coordinates(end.thread, self.report.block)}{self._of_block(end.block)}"
                did = f"{_VERBS[end.kind]} {race.array}{element}"
                text = f"Step {end.moment + 1}, line {end.line}: {who} {did}"
                sides.append(f'<span data-go="{end.moment}">{html.escape(text)}</span>')
            said = html.escape(race.message.partition(": ")[2])  # without the line, which the sides have
            items.append(f"<li>A race: {said}.<br>{' and '.join(sides)}</li>")
        for moment in self.steps:
            for message in moment.hazards:
                if message not in told:
                    link = f'<span data-go="{moment.number}">Step {moment.number + 1}</span>'
                    items.append(f"<li>{html.escape(_sentence(message))} {link}</li>")
        return f"<ul>{''.join(items)}</ul>\n" if items else ""

    def _listing(self) -> str:
        file, shown_lines, last = self.report.trace.file, [], None
        texts = {line: linecache.getline(file, line).rstrip("\n") for line in self._lines}
        common = textwrap.dedent("\n".join(texts.values())).split("\n")
        bad = {end.line for race in self.races for end in (race.first, race.second)}
        bad |= {moment.line for moment in self.steps if moment.hazards}
        width = len(str(self._lines[-1]))
        for line, text in zip(texts, common, strict=True):
            if last is not None and line > last + 1:
                shown_lines.append(f"<span><i>{'':>{width}}</i>  ...\n</span>")
            kind = ' class="bad"' if line in bad else ""
            shown_lines.append(f'<span data-line="{line}"{kind}><i>{line:>{width}}</i>  {html.escape(text)}\n</span>')
            last = line
        return f"<pre>{''.join(shown_lines)}</pre>"

    def _rows_html(self) -> str:
        rows = []
        for number, line, text, what, said in self._table():
            bad = " data-bad" if said else ""
            told = f"{what} {said}".strip()
            rows.append(
                f"\n<tr{bad}><td>{number}</td><td>{line}</td><td><code>{html.escape(text)}</code></td>"
                f"<td>{html.escape(told)}</td></tr>"
            )
        head = "<tr><th>step</th><th>line</th><th>source</th><th>what happens</th></tr>"
        return f'<table class="ps-all"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'

    def _data(self) -> dict:
        rows = [(self._name(warp), _bits(np.flatnonzero(bits))) for warp, bits in self._present.items()]
        arrays = [self._array(held) for held in self._arrays]
        steps, before = [], None
        for moment in self.steps:
            states = []
            now = {}
            for warp, row in self._rows.items():
                taken = None if moment.taken is None or warp not in moment.active else _bits(moment.taken.get(warp, ()))
                masks = [_bits(each.get(warp, ())) for each in (moment.active, moment.waiting, moment.returned)]
                now[row] = [masks[0], taken, *masks[1:]]
                if before is None or before[row] != now[row]:
                    states.append([row, *now[row]])
            before = now
            touches = []
            for t in moment.touches:
                place = self._places.get((t.array, t.warp[0] if t.space == "shared" else None), -1)
                if place >= 0 and t.elements is not None:
                    flat = self._flat([t._replace(count=1)], place)
                    touches.append([t.kind[0], place, self._rows[t.warp], _bits(t.lanes), spread(flat), t.count])
            changes = []
            for where, values in moment.changes.items():
                place = self._places[where]
                flat = [self._at(e, place) for e in values]
                changes.append([place, spread(flat), _repeated([shown(v) for v in values.values()])])
            steps.append([moment.line, states, touches, changes])
        races = []
        for race in self.races:
            place = self._places.get((race.array, race.second.block), self._places.get((race.array, None), -1))
            element = -1 if place < 0 or race.element is None else self._at(race.element, place)
            ends = [[e.moment, self._rows[e.block, e.warp], e.lane] for e in (race.first, race.second)]
            races.append([place, element, *ends])
        # Shared memory first, and then what is shown from the beginning: what the launch writes.
        held = self._arrays
        order = sorted(
            range(len(arrays)), key=lambda k: (held[k].space != "shared", not arrays[k][1], held[k].block or 0, k)
        )
        note = "A ? is an element that nobody has written. A frame is a read, a filled cell a write."
        if omitted := [*dict.fromkeys(self.report.trace.contents.omitted)]:
            note += f" Not shown, with more than {MOST_ELEMENTS:,} elements or with none: {', '.join(omitted)}."
        return {
            "rows": rows, "arrays": arrays, "order": order, "steps": steps, "races": races, "keys": _KEYS, "note": note,
        }  # fmt: skip

    def _array(self, held: Held) -> tuple:
        """An array's label, whether to show it at first, its rows as (label, length), its values, and what is unset."""
        flat, shape = held.start.reshape(-1), held.start.shape
        last = shape[-1]
        whole = len(shape) > 1 and last <= WIDEST  # one of its rows is one of the page's
        rows = []
        for first in range(0, flat.size, last):
            for k in range(0, last, last if whole else COLUMNS):
                at = list(map(str, np.unravel_index(first + k, shape)))
                rows.append((", ".join(at[:-1] if whole else at), last if whole else min(COLUMNS, last - k)))
        what = f"{held.space} memory, {held.start.dtype}, {' x '.join(map(str, shape))}"
        label = f"{held.name}{self._of_block(held.block)}: {what}"
        wrote = any((held.name, held.block) in moment.changes for moment in self.steps)
        values, unset = [shown(v) for v in flat.tolist()], np.flatnonzero(held.unset).tolist()
        return label, wrote or held.space == "shared", rows, _repeated(values), spread(unset)


# ------------------------------------------------------------------------------------------------------ words and lists


def _used(extent: Sequence[int]) -> Sequence[int]:
    used = 3 if extent[2] > 1 else 2 if extent[1] > 1 else 1
    return extent[:used]


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else text + "."


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, with what is without gaps as a range: `0 to 15, 20`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs)


def _bits(lanes: Iterable[int]) -> int:
    return sum(1 << int(lane) for lane in lanes)


def spread(numbers: Sequence[int]) -> str:
    """A list in few characters: three or more at one distance are `first:distance:count`.

    >>> spread([4, 8, 9, 10, 7, 7, 7])
    '4,8:1:3,7:0:3'
    """
    parts, k = [], 0
    while k < len(numbers):
        n = 1
        if k + 1 < len(numbers):
            distance = numbers[k + 1] - numbers[k]
            while k + n < len(numbers) and numbers[k + n] - numbers[k + n - 1] == distance:
                n += 1
        if n < 3:
            parts.append(str(numbers[k]))
            k += 1
        else:
            parts.append(f"{numbers[k]}:{distance}:{n}")
            k += n
    return ",".join(parts)


def _repeated(words: Sequence[str]) -> str:
    """Words with commas between them, and `word*count` for equal neighbours."""
    runs = [(word, len(list(group))) for word, group in itertools.groupby(words)]
    return ",".join(word if count == 1 else f"{word}*{count}" for word, count in runs)


def _inside_script(data: object) -> str:
    """JSON that ends no script and begins no comment."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
