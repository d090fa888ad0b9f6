"""The command line of `pmpp.lab.measure.shapes`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.measure import environment, roofline, timing
from pmpp.lab.measure.record import RECORDED, RecordError, slug
from pmpp.lab.measure.shapes import drawing, report, running
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
    parser.add_argument("--budget", type=float, default=420.0, help="seconds, about, for this call (%(default)g)")
    parser.add_argument(
        "--seconds", type=float, default=running.SECONDS, help="of samples for each contender (%(default)g)"
    )
    parser.add_argument("--out", type=Path, help="the record (default: shapes.json beside the others of this GPU)")
    options = parser.parse_args(argv)
    shapes = drawing.drawn(options.rooms)
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
        return _measure(options, shapes)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2


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


def _measure(options: argparse.Namespace, shapes: Sequence[drawing.Shape]) -> int:
    began = time.perf_counter()
    if why := _obstacle():
        print(why, file=sys.stderr)
        return 2
    # Small shapes are drawn, too; Numba warns about each.
    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    gpu = environment.describe_gpu()
    path = options.out or RECORDED / slug(gpu["name"]) / running.FILE
    now = Sources()
    sources = {room: running.sources_of(room, now) for room in options.rooms}
    whole = now.digests(running.MEASURED_BY, within=MEASURED)
    ceilings, timer = roofline.measure_ceilings(max_seconds=0.3), timing.gpu_timer()
    book = running.Book(path, gpu, environment.describe_run(ceilings), sources, whole, shapes)
    left = running.run(
        book,
        options.budget - (time.perf_counter() - began),
        lambda shape: running.measure(shape, ceilings, seconds=options.seconds, timer=timer),
        healthy=timer.synchronize,
    )
    if book.path.is_file():
        _print(book.data(), shapes)
    print(f"{left} of {len(shapes)} shapes are left; {path}; {time.perf_counter() - began:.0f} s")
    rows = [row for room in options.rooms for row in book.block(room)["rows"]]
    return int(any("FAILED" in note for row in rows for note in row["notes"]))


if __name__ == "__main__":
    sys.exit(main())
