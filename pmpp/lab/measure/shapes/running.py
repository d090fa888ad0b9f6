"""Measuring the shapes, a record that grows, and never a thin one in the place of a full one.

A shape is first tried once: what its room refuses is recorded in the room's words. Then `pmpp.lab.measure.bench` times
it as it times everything: verified before and after, kernel time of rivals in turns, host time of a call. The lines
take turns, so that a short budget has something of each; shapes that are kept aside come last. `together` has a
process a room.

The record has a block a room, with the digests of the sources that were measured. While these are as they are now, a
run goes on where the record ends. If they have changed, new rows are gathered in ``again`` beside the old block, and
take its place when there are as many.
"""

from __future__ import annotations

import importlib
import json
import os
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pmpp.lab.measure import bench, environment, roofline, timing
from pmpp.lab.measure.record import RECORDED, SHOWN, RecordError, slug
from pmpp.lab.measure.shapes.drawing import Shape, digest
from pmpp.lab.measure.sources import MEASURED, Sources

__all__ = ["FILE", "MEASURED_BY", "Book", "load", "measure", "merge", "order", "refusal", "run", "sources_of", "tried"]

CATALOGUE = "pmpp.kernels.instruments.shapes"  # a module for each room
FOLDER = CATALOGUE.replace(".", "/")
MEASURED_BY = f"{FOLDER}/__init__.py"
FILE = "shapes.json"
SECONDS = 0.02  # of samples for each contender
ASIDE_SECONDS = 0.004  # the same for a shape that is kept aside: three samples, each of up to 50 calls
REFUSALS = (TypeError, ValueError, NotImplementedError)  # what a room raises for what it does not take

Row = dict[str, typing.Any]


def sources_of(room: str, sources: Sources) -> dict[str, str]:
    """Digests of what the measurements of a room depend on: what is called, and how it is verified."""
    return sources.digests(f"{FOLDER}/{room}.py", within=MEASURED)


# ------------------------------------------------------------------------------------------------------------ a shape


def measure(
    shape: Shape,
    ceilings: roofline.Ceilings,
    *,
    seconds: float = SECONDS,
    timer: timing.GpuTimer | None = None,
    clock: Callable[[], float] = time.perf_counter,
    workload: bench.Workload | None = None,
) -> Row:
    """A row of the record. ``seconds`` is for the samples of each contender.

    ``ms``, ``low``, ``high``, ``call_us`` and ``error`` are by contender, ``ours`` says which of them is the room's.
    ``refused`` has the room's words, or None; ``notes`` name who failed, and why.
    """
    workload = workload or importlib.import_module(CATALOGUE).workload(shape)
    ours = bench.name_of(workload.rungs[0])
    row: Row = {"line": shape.line, "name": shape.name, "seed": shape.seed, "aside": shape.aside, "ours": ours}
    row |= {"sizes": dict(shape.sizes), "flops": shape.flops, "bytes": shape.bytes}
    row |= {"bound_us": _digits(1e6 * roofline.bound(shape.cost, ceilings).seconds)}
    row |= {"refused": refusal(workload), "notes": []}
    row |= {key: {} for key in ("ms", "low", "high", "call_us", "error")}
    if row["refused"] is not None:
        return row
    seconds = min(seconds, ASIDE_SECONDS) if shape.aside else seconds
    budget = seconds * workload.weight / 0.7  # of which `bench.run` gives so much to the samples
    entries, row["notes"] = bench.run([workload], budget=budget, timer=timer, clock=clock)
    for entry in entries:
        row["ms"][entry.contender] = _digits(entry.median_ms)
        row["low"][entry.contender], row["high"][entry.contender] = _digits(entry.low_ms), _digits(entry.high_ms)
        row["call_us"][entry.contender] = None if entry.call_ms is None else _digits(1e3 * entry.call_ms)
        row["error"][entry.contender] = [_digits(entry.error), _digits(entry.tolerance)]
    return row


def refusal(workload: bench.Workload) -> str | None:
    """Why the room does not take this shape, in its words; None if it does. It is called once."""
    inputs = workload.make(1)
    output = () if workload.output is None else (workload.output(),)
    try:
        bench.rung_call(workload.rungs[0], bool(output))(*inputs, *output)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    except Exception:  # it is no refusal: the measurement says what it is
        return None
    return None


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


# ---------------------------------------------------------------------------------------------------------- the record


class Book:
    """The record as it grows.

    ``sources`` has the digests of each room that is to be measured as they are now, and ``now`` those of all rooms.
    ``begin``: a record to go on from if ``path`` is none yet. ``wanted``: those of ``shapes`` that are to be measured,
    if not all. Raises RecordError if the file is no record of shapes, or one of another GPU.
    """

    def __init__(
        self,
        path: Path,
        gpu: Mapping[str, typing.Any],
        run: Mapping[str, typing.Any],
        sources: Mapping[str, Mapping[str, str]],
        now: Mapping[str, str],
        shapes: Sequence[Shape],
        begin: Path | None = None,
        wanted: Sequence[Shape] | None = None,
    ) -> None:
        self.wanted = None if wanted is None else {(shape.line, shape.name) for shape in wanted}
        self.path, self.sources, self.now = path, sources, now
        self._text: dict[int, tuple[Row, str]] = {}
        self.shapes = {room: [shape for shape in shapes if shape.room == room] for room in sources}
        there = next((one for one in (path, begin) if one is not None and one.is_file()), None)
        old = load(there) if there else {"measured": {}, "again": {}}
        if "about" in old and old["about"]["gpu"]["name"] != gpu["name"]:
            raise RecordError(f"{there} is of {old['about']['gpu']['name']}, and this is {gpu['name']}")
        self.about: dict[str, typing.Any] = {"gpu": dict(gpu), "run": dict(run), "measured_by": MEASURED_BY}
        self.measured: dict[str, dict] = old["measured"]
        self.again: dict[str, dict] = old.get("again", {})

    def block(self, room: str) -> dict[str, typing.Any]:
        """The block that rows of a room go to: that of the record, or one beside it if the sources have changed."""
        now = dict(self.sources[room])
        new = {"sources": now, "drawing": digest(self.shapes[room]), "rows": []}
        shown = self.measured.setdefault(room, new)
        if shown["sources"] == now:
            self.again.pop(room, None)  # the sources are again what they were
            return self._of_today(shown, room)
        if room not in self.again or self.again[room]["sources"] != now:
            self.again[room] = new
        return self._of_today(self.again[room], room)

    def _of_today(self, block: dict, room: str) -> dict:
        """Without the rows of shapes that are no longer drawn."""
        if block["drawing"] != digest(self.shapes[room]):
            sizes = {(shape.line, shape.name): (shape.flops, shape.bytes) for shape in self.shapes[room]}
            still = [row for row in block["rows"] if sizes.get(_place(row)) == (row["flops"], row["bytes"])]
            block |= {"drawing": digest(self.shapes[room]), "rows": still}
        return block

    def lacking(self, room: str) -> list[Shape]:
        """The shapes of a room that are to be measured, and are not with the sources of now."""
        there = {_place(row) for row in self.block(room)["rows"]}
        places = {(shape.line, shape.name): shape for shape in self.shapes[room]}
        return [
            one for place, one in places.items() if place not in there and (self.wanted is None or place in self.wanted)
        ]

    def add(self, room: str, row: Row, *, write: bool = True) -> None:
        """Keep a row, in the place of an older one of its shape, and write the record."""
        block = self.block(room)
        block["rows"] = [one for one in block["rows"] if _place(one) != _place(row)] + [row]
        places = {(shape.line, shape.name): number for number, shape in enumerate(self.shapes[room])}
        block["rows"].sort(key=lambda one: places[_place(one)])
        if block is self.again.get(room):
            old = {_place(one) for one in self.measured[room]["rows"]} & places.keys()
            if old <= {_place(one) for one in block["rows"]}:
                self.measured[room] = self.again.pop(room)
        if write:
            self.write()

    @property
    def stamp(self) -> dict[str, str]:
        """When a row was measured, and of what."""
        return {"date": self.about["run"]["date"], "revision": self.about["run"]["revision"]}

    def data(self) -> dict[str, typing.Any]:
        """The record as it is shown, and beside it what is measured again."""
        return {"about": self.about, "measured": self.measured, "again": self.again}

    def write(self) -> None:
        """Write the record, a row a line. Whoever stops the program leaves the file of before or the new one."""
        blocks = self.measured.values()
        # A room that was not measured again has the digests of then: `make stale` names what changed.
        then = {path: digest for block in blocks for path, digest in block["sources"].items()}
        differing = {path: digest for path, digest in then.items() if self.now.get(path) != digest}
        self.about["sources"] = {**self.now, **differing}
        parts = []
        for key in ("measured", "again"):
            written = [self._written(room, block) for room, block in getattr(self, key).items()]
            parts.append(f'"{key}": {{\n' + ",\n".join(written) + "\n}")
        whole = self.path.with_name(f"{self.path.name}.tmp")
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(f'{{"about": {json.dumps(self.about)},\n' + ",\n".join(parts) + "\n}\n", encoding="utf-8")
        os.replace(whole, self.path)

    def _written(self, room: str, block: dict) -> str:
        about = json.dumps({key: block[key] for key in ("sources", "drawing")})
        for row in block["rows"]:
            if id(row) not in self._text:  # the row is kept with its text, so that its id stays its own
                self._text[id(row)] = row, json.dumps(row)
        rows = ",\n".join(self._text[id(row)][1] for row in block["rows"])
        return f'"{room}": {about[:-1]}, "rows": [\n{rows}\n]}}'


def _place(row: Row) -> tuple[str, str]:
    return row["line"], row["name"]


def load(path: Path | None = None) -> dict[str, typing.Any]:
    """The record of a file; by default that of this GPU, else of the GPU that the chapters are written about.

    Raises RecordError if there is none, or if it is none of shapes.
    """
    if path is None:
        from pmpp.runtime import device

        here = [slug(environment.describe_gpu()["name"])] if device.on_gpu() else []
        there = [RECORDED / folder / FILE for folder in (*here, SHOWN)] + sorted(RECORDED.glob(f"*/{FILE}"))
        path = next((one for one in there if one.is_file()), None)
        if path is None:
            raise RecordError("no shapes are recorded; on a GPU run: python -m pmpp.lab.measure.shapes")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist: these shapes are not recorded") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict) or not {"about", "measured", "again"} <= set(data):
        raise RecordError(f"{path} is no record of shapes")
    return data


def merge(paths: Sequence[Path], out: Path, shapes: Sequence[Shape], begin: Path | None = None) -> list[str]:
    """Put the rows of several records of one GPU into ``out``: what it was lacking, in words.

    Of a room, rows count that were measured with the sources of its newest row in ``paths``; others stay where they
    are. ``begin`` as in `Book`. Raises RecordError for what is no record, and for records of several GPUs.
    """
    records = sorted(map(load, paths), key=lambda one: one["about"]["run"]["date"])
    names = sorted({one["about"]["gpu"]["name"] for one in records})
    if len(names) != 1:
        raise RecordError(f"records of one GPU can be merged, these are of {', '.join(names) or 'none'}")
    drawn_for = {shape.room for shape in shapes}
    rooms = [room for room in dict.fromkeys(room for one in records for room in one["measured"]) if room in drawn_for]
    blocks = {
        room: [
            block for one in records for key in ("measured", "again") if (block := one[key].get(room)) and block["rows"]
        ]
        for room in rooms
    }
    blocks = {room: found for room, found in blocks.items() if found}
    newest = {
        room: max(found, key=lambda block: max(row["date"] for row in block["rows"])) for room, found in blocks.items()
    }
    sources = {room: block["sources"] for room, block in newest.items()}
    last, said = records[-1]["about"], []
    now = last["sources"] | {path: digest for one in sources.values() for path, digest in one.items()}
    book = Book(out, last["gpu"], last["run"], sources, now, shapes, begin)
    for room, found in blocks.items():
        places = {(shape.line, shape.name) for shape in shapes if shape.room == room}
        before = len(book.lacking(room))
        for block in found:
            if block["sources"] == sources[room]:
                for row in block["rows"]:
                    if _place(row) in places:
                        book.add(room, row, write=False)
        said.append(f"{room}: {before - len(book.lacking(room))} more shapes, {len(book.lacking(room))} lacking")
    book.write()
    return said


# -------------------------------------------------------------------------------------------------------------- a run


def order(shapes: Iterable[Shape]) -> list[Shape]:
    """The lines in turns, each in its own order; then those that are kept aside, in the same way."""
    found: list[Shape] = []
    shapes = list(shapes)
    for aside in (False, True):
        lines: dict[str, list[Shape]] = {}
        for shape in shapes:
            if shape.aside == aside:
                lines.setdefault(shape.line, []).append(shape)
        turns = [(place / len(line), shape) for line in lines.values() for place, shape in enumerate(line)]
        found += [shape for _, shape in sorted(turns, key=lambda turn: turn[0])]
    return found


def tried(
    shapes: Sequence[Shape],
    until: float,
    measure: Callable[[Shape], Row],
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], object] = print,
    healthy: Callable[[], object] = lambda: None,
) -> Iterator[Row]:
    """The rows of shapes, one after the other, until the clock says ``until``.

    ``healthy`` raises after a failure from which the GPU does not recover: then nothing more is measured.
    """
    for shape in shapes:
        if clock() >= until:
            return
        row = problem = None
        try:
            row = measure(shape)
        except Exception as error:  # as in `bench.run`: one shape must not cost the others their measurements
            problem = f"{type(error).__name__}: {error}"
        try:
            healthy()
        except Exception as error:
            progress(f"{shape.key} left the GPU unusable, and is not recorded: {type(error).__name__}: {error}")
            return
        if row is None:
            progress(f"{shape.key} is not recorded: {problem}")
            continue
        for note in row["notes"]:
            progress(f"{shape.key}: {note}")
        if row["ms"] or row["refused"] is not None or any("FAILED" in note for note in row["notes"]):
            yield row  # else it was left out, for want of memory


def run(book: Book, budget: float, measure: Callable[[Shape], Row], **more: typing.Any) -> int:
    """Measure what the book lacks, for ``budget`` seconds; how many shapes it lacks then. ``more`` as in `tried`."""
    left = order(shape for room in book.sources for shape in book.lacking(room))
    rooms = {(shape.line, shape.name): shape.room for shape in left}
    clock = more.setdefault("clock", time.perf_counter)
    for row in tried(left, clock() + budget, measure, **more):
        book.add(rooms[_place(row)], row | book.stamp)
    return sum(len(book.lacking(room)) for room in book.sources)
