"""The command line of `pmpp.lab.measure.shapes`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.measure import environment, roofline, timing, turns
from pmpp.lab.measure.record import RECORDED, RecordError, slug
from pmpp.lab.measure.shapes import drawing, report, running, together
from pmpp.lab.measure.sources import MEASURED, Sources


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if a result was wrong or a kernel failed; 2 if nothing can be measured or shown."""
    rooms = drawing.rooms()
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.shapes", description="Measures drawn shapes beside PyTorch and CuPy."
    )
    parser.add_argument("--rooms", nargs="*", choices=rooms, default=list(rooms), help="of these (default: all)")
    parser.add_argument("--draw", action="store_true", help="print the shapes; needs no GPU")
    parser.add_argument("--report", action="store_true", help="print what is recorded; needs no GPU")
    parser.add_argument("--part", type=_part, help="K/N: part K of N, each with its share of every line")
    parser.add_argument("--seconds", type=float, default=420.0, help="about, for this call (%(default)g)")
    parser.add_argument(
        "--samples", type=float, default=running.SECONDS, help="seconds of samples for each contender (%(default)g)"
    )
    parser.add_argument("--alone", action="store_true", help="measure in one process, a room after the other")
    parser.add_argument("--out", type=Path, help="the record (default: shapes.json beside the others of this GPU)")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="put the rows of records into one")
    options = parser.parse_args(argv)
    every = shapes = drawing.drawn(options.rooms)
    if options.part:
        shapes = drawing.part(every, *options.part)
    try:
        if options.draw:
            for shape in shapes:
                aside = "  aside" if shape.aside else ""
                print(f"{shape.line:<23}{shape.name:<44}{1e6 * drawing.least_seconds(shape):10.1f} us{aside}")
            asides = sum(shape.aside for shape in shapes)
            print(f"{len(shapes)} shapes, {asides} of them aside; digest {drawing.digest(shapes)}")
            return 0
        if options.report:
            _print(running.load(options.out), shapes)
            return 0
        if options.merge:
            return _merge(options, every)
        return _measure(options, every, shapes)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2


def _part(words: str) -> tuple[int, int]:
    number, _, parts = words.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{words!r} is no K/N with 1 <= K <= N")
    return int(number), int(parts)


def _merge(options: argparse.Namespace, shapes: Sequence[drawing.Shape]) -> int:
    """Put records into one: that of ``--out``, by default the shipped one of their GPU."""
    name = running.load(options.merge[0])["about"]["gpu"]["name"]
    shipped = RECORDED / slug(name) / running.FILE
    path = options.out or shipped
    for words in running.merge(options.merge, path, shapes, begin=shipped):
        print(words)
    _print(running.load(path), shapes)
    return 0


def _print(record: dict, shapes: Sequence[drawing.Shape]) -> None:
    print(report.report(record, shapes=shapes))
    if record["again"]:
        again = [shape for shape in shapes if shape.room in record["again"]]
        print("\nWith other sources than above, and not complete:")
        print(report.report(record, "again", again))


def _obstacle() -> str | None:
    """Why nothing can be measured here, or None."""
    from pmpp.runtime import device

    if not device.on_gpu():
        return f"shapes are measured on an NVIDIA GPU, but {device.backend().why}."
    missing = [name for name in ("torch", "cupy") if importlib.util.find_spec(name) is None]
    return f"the rivals are PyTorch and CuPy; not installed: {', '.join(missing)}" if missing else None


def _measure(options: argparse.Namespace, every: Sequence[drawing.Shape], shapes: Sequence[drawing.Shape]) -> int:
    """Measure some of ``every`` shape: ``shapes``."""
    began = time.perf_counter()
    if why := _obstacle():
        print(why, file=sys.stderr)
        return 2
    # Small shapes are drawn, too; Numba warns about each.
    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    gpu = environment.describe_gpu()
    shipped = RECORDED / slug(gpu["name"]) / running.FILE
    path = options.out or shipped
    now = Sources()
    sources = {room: running.sources_of(room, now) for room in options.rooms}
    whole = now.digests(running.MEASURED_BY, within=MEASURED)
    ceilings = roofline.measure_ceilings(max_seconds=0.3)
    run = environment.describe_run(ceilings)
    book = running.Book(path, gpu, run, sources, whole, every, begin=shipped, wanted=shapes)
    left = options.seconds - (time.perf_counter() - began)
    if options.alone or not turns.possible():
        timer = timing.gpu_timer()
        lacking = running.run(
            book,
            left,
            lambda shape: running.measure(shape, ceilings, seconds=options.samples, timer=timer),
            healthy=timer.synchronize,
        )
    else:
        lacking = together.rooms_at_once(book, left, ceilings, options.samples)
    of_now = {room: book.block(room) for room in options.rooms}
    rows = [row for block in of_now.values() for row in block["rows"]]
    if rows:
        print(report.report({"about": book.about, "measured": of_now}, shapes=shapes))
        print(report.spent(rows))
    print(f"{lacking} of {len(shapes)} shapes are left; {path}; {time.perf_counter() - began:.0f} s")
    return int(any("FAILED" in note for row in rows for note in row["notes"]))


if __name__ == "__main__":
    sys.exit(main())
