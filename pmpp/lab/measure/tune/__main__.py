"""The command line: tune what is named, and record it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pmpp.lab.measure import environment
from pmpp.lab.measure.tune.search import FACTOR, SECONDS, Landscape, Shape, Subject, tune
from pmpp.lab.measure.tune.store import key_of, path_of, subjects, write
from pmpp.lab.measure.tune.together import tune_together
from pmpp.runtime import device

MOST = 6  # configurations that are timed for a shape
USUAL = {"factor": FACTOR, "most": MOST, "seconds": SECONDS}
FEW = 4  # shapes of which the rows are printed, too


def main(argv: Sequence[str] | None = None) -> int:
    """Tune, print and record. Returns 0."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.tune",
        description="Find the fastest configurations of kernels on this GPU, and record them.",
    )
    parser.add_argument("subjects", nargs="*", help="what to tune; without any, what there is is listed")
    parser.add_argument("--shape", help="one shape instead of those of the subject, such as 4096x4096; not recorded")
    parser.add_argument("--gpu", help="what to predict for, without a GPU (default: H200)")
    usual = "the subject's, or"
    parser.add_argument("--factor", type=float, help=f"prune above this (default: {usual} {FACTOR:g})")
    parser.add_argument("--most", type=int, help=f"time at most so many of a shape (default: {usual} {MOST})")
    parser.add_argument("--seconds", type=float, help=f"of measuring each (default: {usual} {SECONDS:g})")
    parser.add_argument("--processes", type=int, default=1, help="that compile and take turns on the GPU (default: 1)")
    parser.add_argument("--until", type=float, help="stop after so many seconds, with what is complete by then")
    parser.add_argument("--lock", type=Path, help="a file, the same for all searches that run on this GPU at a time")
    parser.add_argument("--out", type=Path, help="the folder of the GPU's folder (default: pmpp/recorded)")
    options = parser.parse_args(argv)
    known = subjects()
    unknown = [name for name in options.subjects if name not in known]
    if unknown:
        parser.error(f"subjects must be of {', '.join(known)}, had {', '.join(unknown)}")
    for name in () if options.subjects else known:
        shapes = ", ".join("x".join(map(str, shape)) for shape in known[name].measured[:FEW])
        more = len(known[name].measured) - FEW
        print(f"{name:12} {len(known[name].space)} configurations, for {shapes}{f' and {more} more' * (more > 0)}")
    machine = None
    if options.subjects and _times():
        machine = environment.describe_gpu(), environment.describe_machine()
    with _Stop(None if options.until is None else began + options.until) as stop:
        for name in options.subjects:
            subject = known[name]
            said = {one: getattr(options, one) for one in ("gpu", *USUAL)}
            stages = {**USUAL, **subject.options, **{one: value for one, value in said.items() if value is not None}}
            given = [tuple(map(int, options.shape.split("x")))] if options.shape else subject.measured
            done = 0
            for found in _landscapes(subject, given, options, stop, stages):
                done += 1
                print(f"{time.perf_counter() - began:6.1f} s  {_line(subject, found)}", flush=True)
                if len(given) <= FEW:
                    print(found.table(), flush=True)
                if found.best and machine and not options.shape:  # after each shape: a run that is killed keeps them
                    path = path_of(subject, machine[0]["name"], options.out)
                    write([found], path, *machine)
            if done < len(given):
                print(f"{name} was stopped: {done} of {len(given)} shapes are complete")
            if done and machine and not options.shape:
                print(f"recorded in {path_of(subject, machine[0]['name'], options.out)}")
    if options.subjects and not _times():
        print("\nNothing was timed or recorded: kernels run in the interpreter, whose clock says nothing about a GPU.")
    return 0


def _line(subject: Subject, found: Landscape) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(found.counts().items()))
    said = f"{subject.name}, {key_of(subject, found.shape)}: {counts}"
    if best := found.best:
        guess = found.guess
        ratio = f", which is {guess.timing.median / best.timing.median:.2f} x the guess" if guess.timing else ""
        said += f"; {best.timing.median * 1e6:.1f} us by {tuple(best.configuration)}{ratio}"
    return said


class _Stop:
    """Whether to stop: at a moment of the clock, and when the process is told to end (SIGTERM), or interrupted."""

    def __init__(self, at: float | None) -> None:
        self.at, self.told = at, False

    def __enter__(self) -> Callable[[], bool]:
        self.before = {one: signal.signal(one, self._tell) for one in (signal.SIGTERM, signal.SIGINT)}
        return lambda: self.told or (self.at is not None and time.perf_counter() >= self.at)

    def _tell(self, *_: object) -> None:
        self.told = True

    def __exit__(self, *_: object) -> None:
        for one, handler in self.before.items():
            signal.signal(one, handler)


def _landscapes(
    subject: Subject, shapes: Sequence[Shape], options: argparse.Namespace, stop: Callable[[], bool], stages: dict
) -> Iterator[Landscape]:
    """The landscape of each shape: one after the other, or by several processes all at once."""
    if options.processes > 1 and _times():
        yield from tune_together(subject, shapes, options.processes, stop=stop, lock=options.lock, **stages)
    else:
        for shape in shapes:
            if stop():
                return
            yield tune(subject, shape, **stages)


def _times() -> bool:
    return device.on_gpu()


if __name__ == "__main__":
    sys.exit(main())
