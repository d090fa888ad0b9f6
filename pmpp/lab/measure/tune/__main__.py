"""The command line: tune what is named, and record it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pmpp.lab.measure import environment, roofline
from pmpp.lab.measure.tune.search import FACTOR, SECONDS, Landscape, Shape, Subject, tune
from pmpp.lab.measure.tune.store import key_of, path_of, subjects, write
from pmpp.lab.measure.tune.together import tune_together
from pmpp.runtime import device


def main(argv: Sequence[str] | None = None) -> int:
    """Tune, print and record. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.tune",
        description="Find the fastest configurations of kernels on this GPU, and record them.",
    )
    parser.add_argument("subjects", nargs="*", help="what to tune; without any, what there is is listed")
    parser.add_argument("--shape", help="one shape instead of those of the subject, such as 4096x4096; not recorded")
    parser.add_argument("--gpu", help="what to predict for, without a GPU (default: H200)")
    parser.add_argument("--factor", type=float, default=FACTOR, help="prune above this (default: %(default)g)")
    parser.add_argument("--most", type=int, help="time at most so many of a shape (default: all that are not pruned)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of measuring each (default: %(default)g)")
    parser.add_argument("--processes", type=int, default=1, help="that compile and take turns on the GPU (default: 1)")
    parser.add_argument("--out", type=Path, help="the folder of the GPU's folder (default: pmpp/recorded)")
    options = parser.parse_args(argv)
    known = subjects()
    unknown = [name for name in options.subjects if name not in known]
    if unknown:
        parser.error(f"subjects must be of {', '.join(known)}, had {', '.join(unknown)}")
    for name in () if options.subjects else known:
        shapes = ", ".join("x".join(map(str, shape)) for shape in known[name].measured)
        print(f"{name:12} {len(known[name].space)} configurations, for {shapes}")
    machine = None
    if options.subjects and _times():
        machine = environment.describe_gpu(), environment.describe_run(roofline.measure_ceilings())
    for name in options.subjects:
        subject = known[name]
        given = [tuple(map(int, options.shape.split("x")))] if options.shape else subject.measured
        stages = {"gpu": options.gpu, "factor": options.factor, "most": options.most, "seconds": options.seconds}
        began = time.perf_counter()
        for shape, found in zip(given, _landscapes(subject, given, options.processes, stages), strict=True):
            counts = ", ".join(f"{count} {status}" for status, count in sorted(found.counts().items()))
            print(f"\n{name}, {key_of(subject, shape)}: {counts}; {time.perf_counter() - began:.1f} s")
            print(found.table(), flush=True)
            if found.best and machine and not options.shape:  # after each shape: a run that is stopped keeps the others
                path = path_of(subject, machine[0]["name"], options.out)
                write([found], path, *machine)
                print(f"recorded in {path}")
            began = time.perf_counter()
    if options.subjects and not _times():
        print("\nNothing was timed or recorded: kernels run in the interpreter, whose clock says nothing about a GPU.")
    return 0


def _landscapes(subject: Subject, shapes: Sequence[Shape], processes: int, stages: dict) -> Iterator[Landscape]:
    """The landscape of each shape: one after the other, or by several processes all at once."""
    if processes > 1 and _times():
        yield from tune_together(subject, shapes, processes, **stages)
    else:
        for shape in shapes:
            yield tune(subject, shape, **stages)


def _times() -> bool:
    return device.on_gpu()


if __name__ == "__main__":
    sys.exit(main())
