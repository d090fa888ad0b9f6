"""Jacobi steps on one GPU and on several, timed: how much of a second GPU is gained, and what a step consists of.

    python -m pmpp.parallel.measure_halo -n 2        on two GPUs: the table, and the record of that many
    python -m pmpp.parallel.measure_halo --side 4096 --steps 100 --no-record

Each way of `pmpp.parallel.plates` first has to give the bits of one GPU. Its time is that of ``steps`` steps by CUDA
events on the GPU that took longest, with the largest change read on the host every 50 steps, as `Plates.solve` does.
Efficiency is the time of one GPU, divided by the number of GPUs and by their time. On one GPU, both parts are there.

What it does is printed before it does it, with the seconds since it began. Each side is recorded when it is measured,
the one of the target first, so a run that is ended leaves what it has.
"""

from __future__ import annotations

import argparse
import statistics
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pmpp import cuda
from pmpp.lab.measure.sources import MEASURED
from pmpp.lab.measure.timing import median_interval
from pmpp.nn import measure as nn_measure
from pmpp.parallel import records
from pmpp.parallel.halo import Span
from pmpp.parallel.plates import WAYS, Plates
from pmpp.parallel.progress import Progress
from pmpp.runtime import device

__all__ = ["EVERY", "TARGET", "efficiency", "main", "measured", "recorded", "table", "timeline"]

SOURCE = "pmpp/parallel/measure_halo.py"
WITHIN = [*MEASURED, "pmpp/parallel/"]
EVERY = 50  # steps between two looks at the largest change
LEAST = 3  # repetitions of which a median is taken, if there is time for no more
COMPILED = 64  # the side of a small plate, by which the kernels are compiled
SMALLER = (1024, 2048, 4096, 8192)  # sides that are measured, too
TARGET = 0.97  # efficiency on two H200, side 16384


def plate(side: int) -> np.ndarray:
    """A plate of random numbers, between 0 and 1."""
    return np.random.default_rng(0).random((side, side), dtype=np.float32)


def seconds(plates: Plates, steps: int) -> float:
    """The time of a step, by events on the GPU that took longest."""
    plates.synchronize()
    marks = []
    for part in plates.parts:
        with cuda.gpus[part.number]:
            marks.append((cuda.event(), cuda.event()))
            marks[-1][0].record(part.stream)
    for _ in range(steps // EVERY):
        plates.run(EVERY, changes=True)
        plates.largest_change()
    plates.run(steps % EVERY)
    for part, (_, end) in zip(plates.parts, marks, strict=True):
        with cuda.gpus[part.number]:
            end.record(part.stream)
    plates.synchronize()
    took = []
    for part, (begin, end) in zip(plates.parts, marks, strict=True):
        with cuda.gpus[part.number]:
            took.append(cuda.event_elapsed_time(begin, end) / 1e3)
    return max(took) / steps


def timeline(plates: Plates, steps: int = 8, shown: int = 2) -> list[list[Span]]:
    """When each GPU did what in the last steps of some, by events, in seconds from the first of them on.

    By then all is queued, so no GPU waits for the host. Each GPU's clock begins at an event of its own, when all GPUs
    are idle: between GPUs the times are as exact as the host is quick, some microseconds.
    """
    plates.synchronize()
    zeros = []
    for part in plates.parts:
        with cuda.gpus[part.number]:
            zeros.append(cuda.event())
            zeros[-1].record(part.stream)
            part.marks = []
    plates.run(steps)
    plates.synchronize()
    found = []
    for part, zero in zip(plates.parts, zeros, strict=True):
        with cuda.gpus[part.number]:
            marks, part.marks = part.marks[-(len(part.marks) // steps) * shown :], None
            times = [(kind, cuda.event_elapsed_time(zero, a), cuda.event_elapsed_time(zero, b)) for kind, a, b in marks]
            found.append([Span(kind, begin / 1e3, end / 1e3) for kind, begin, end in times])
    first = min(span.begin for spans in found for span in spans)
    return [[Span(one.kind, one.begin - first, one.end - first) for one in spans] for spans in found]


def measured(
    side: int, steps: int, repeats: int, devices: list[int], progress: Progress | None = None
) -> dict[str, typing.Any]:
    """The seconds of a step on one GPU, and of each way on ``devices``, by turns; and the bits are compared first.

    If the time is over, there are fewer repetitions, but at least `LEAST`.

    Raises RuntimeError for a way that computes anything else than one GPU does.
    """
    progress = progress or Progress()
    progress.say(f"side {side}: the plate")
    grid, trial = plate(side), min(steps, EVERY) + 1
    progress.say(f"side {side}: one GPU, {trial} steps")
    alone = Plates(grid, devices[:1])
    alone.run(trial, changes=True)
    wanted, several = alone.whole(), {}
    for way in WAYS:
        progress.say(f"side {side}: {way.__name__}, {trial} steps, whose bits are compared")
        several[way.__name__] = Plates(grid, devices, way)
        several[way.__name__].run(trial, changes=True)
        if (several[way.__name__].whole() != wanted).any():
            raise RuntimeError(f"{way.__name__} on {len(devices)} GPUs does not give the bits of one GPU")
    contenders = {"one_gpu": alone, **several}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    progress.say(f"side {side}: timing, {steps} steps {repeats} times")
    done = 0
    while done < min(repeats, LEAST) or (done < repeats and progress.time_left()):
        for name, plates in contenders.items():
            samples[name].append(seconds(plates, steps))
        done += 1
    found = {}
    for name, one in samples.items():
        low, high = median_interval(one)
        found[name] = {"seconds": statistics.median(one), "low": low, "high": high}
    timelines = {name: timeline(plates) for name, plates in several.items()}
    kept = {"ways": found, "timelines": timelines}
    return {"side": side, "steps": steps, "every": EVERY, "repeats": done, "gpus": len(devices), **kept}


def compile_kernels(devices: list[int], progress: Progress) -> None:
    """Run all ways on small plates. The sides that are measured are multiples of 4, too, and need no other kernels."""
    for name, some, way in [("one_gpu", devices[:1], None), *((way.__name__, devices, way) for way in WAYS)]:
        progress.say(f"compiling: {name}")
        for changes in (False, True):
            plates = Plates(plate(COMPILED), some, way)
            plates.run(1, changes=changes)
            plates.synchronize()


def efficiency(found: dict[str, typing.Any], way: str) -> float:
    """The time of one GPU over that of a way and the number of GPUs.

    >>> efficiency({"gpus": 2, "ways": {"one_gpu": {"seconds": 3.8}, "peer_stores": {"seconds": 2.0}}}, "peer_stores")
    0.95
    """
    return found["ways"]["one_gpu"]["seconds"] / found["gpus"] / found["ways"][way]["seconds"]


def table(found: dict[str, typing.Any]) -> str:
    """What was measured, as text."""
    gbytes = 8 * found["side"] ** 2 / 1e9
    lines = [f"Jacobi {found['side']} x {found['side']}, largest change every {found['every']} steps"]
    for name, one in found["ways"].items():
        count = 1 if name == "one_gpu" else found["gpus"]
        line = f"{name:15} {count} GPU: {1e6 * one['seconds']:8.1f} us a step, {gbytes / one['seconds']:7.0f} GB/s"
        if count > 1:
            line += f", efficiency {efficiency(found, name):.3f}"
        lines.append(f"{line} ({1e6 * one['low']:.1f} to {1e6 * one['high']:.1f})")
    return "\n".join(lines)


def recorded(gpus: int = 2) -> dict[str, typing.Any]:
    """The record of so many GPUs that this module has written. Raises `pmpp.lab.measure.record.RecordError` if not."""
    return records.recorded("halo", gpus, f"pmpp.parallel.measure_halo -n {gpus}")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, metavar="N", help="how many GPUs (default: all)")
    parser.add_argument("--side", type=int, default=16384 if device.on_gpu() else 64)
    parser.add_argument("--steps", type=int, default=200 if device.on_gpu() else 3)
    parser.add_argument("--repeats", type=int, default=9 if device.on_gpu() else 1)
    parser.add_argument("--seconds", type=float, help="for all of it; what does not fit is left out, and said")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    chosen = parser.parse_args(arguments)
    progress = Progress(seconds=chosen.seconds)
    if device.on_gpu() and chosen.n is not None and not 1 <= chosen.n <= len(cuda.gpus):
        parser.error(f"-n must be from 1 to {len(cuda.gpus)}, the GPUs that this machine shows, was {chosen.n}")
    record_it = device.on_gpu() and min(len(cuda.gpus), chosen.n or 2) > 1 and not chosen.no_record
    for rows in everything(chosen.side, chosen.steps, chosen.repeats, progress, gpus=chosen.n):
        print(table((rows["smaller"] or [rows["jacobi"]])[-1]), flush=True)
        if record_it:
            path = write(rows, chosen.out)
    print(f"target: peer_stores, side 16384 on 2 GPUs: efficiency {TARGET}")
    if record_it:
        print("wrote", path)


def everything(
    side: int, steps: int, repeats: int, progress: Progress, smaller: bool = True, gpus: int | None = None
) -> Iterator[dict[str, typing.Any]]:
    """What was found so far, after each side. The side that is asked for comes first, and then the smaller ones.

    ``gpus``: how many of the machine's; None for all.
    """
    count = gpus or len(cuda.gpus)
    devices = list(range(count)) if count > 1 else [0, 0]
    if device.on_gpu():
        compile_kernels(devices, progress)
    rows: dict[str, typing.Any] = {"jacobi": measured(side, steps, repeats, devices, progress), "smaller": []}
    yield rows
    for one in SMALLER if smaller and device.on_gpu() else ():
        if not progress.time_left():
            progress.say(f"side {one}: left out, the time is over")
            continue
        rows["smaller"].append(measured(one, steps, repeats, devices, progress))
        yield rows


def write(rows: dict[str, typing.Any], out: Path | None = None) -> Path:
    """Write the record of what was measured; return its file."""
    return nn_measure.write(records.name_of("halo", rows["jacobi"]["gpus"]), SOURCE, rows, out, WITHIN)


if __name__ == "__main__":
    main()
