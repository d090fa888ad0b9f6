"""Jacobi steps on one GPU and on several, timed: how much of a second GPU is gained, and what a step consists of.

    python -m pmpp.parallel.measure_halo             the table, and the record pmpp/recorded/<gpu>/halo.json
    python -m pmpp.parallel.measure_halo --side 4096 --steps 100 --no-record

Each way of `pmpp.parallel.plates` first has to give the bits of one GPU. Its time is that of ``steps`` steps by CUDA
events on the GPU that took longest, with the largest change read on the host every 50 steps, as `Plates.solve` does.
Efficiency is the time of one GPU, divided by the number of GPUs and by their time. On one GPU, both parts are there.
"""

from __future__ import annotations

import argparse
import statistics
import typing

import numpy as np

from pmpp import cuda
from pmpp.lab.measure import record
from pmpp.lab.measure.sources import MEASURED
from pmpp.lab.measure.timing import median_interval
from pmpp.nn import measure as nn_measure
from pmpp.parallel.halo import Span
from pmpp.parallel.plates import WAYS, Plates
from pmpp.runtime import device

__all__ = ["EVERY", "TARGET", "efficiency", "main", "measured", "recorded", "table", "timeline"]

SOURCE = "pmpp/parallel/measure_halo.py"
WITHIN = [*MEASURED, "pmpp/parallel/"]
EVERY = 50  # steps between two looks at the largest change
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


def measured(side: int, steps: int, repeats: int, devices: list[int]) -> dict[str, typing.Any]:
    """The seconds of a step on one GPU, and of each way on ``devices``, by turns; and the bits are compared first.

    Raises RuntimeError for a way that computes anything else than one GPU does.
    """
    grid, trial = plate(side), min(steps, EVERY) + 1
    alone = Plates(grid, devices[:1])
    alone.run(trial, changes=True)  # so both kernels are compiled before anything is timed
    wanted, several = alone.whole(), {}
    for way in WAYS:
        several[way.__name__] = Plates(grid, devices, way)
        several[way.__name__].run(trial, changes=True)
        if (several[way.__name__].whole() != wanted).any():
            raise RuntimeError(f"{way.__name__} on {len(devices)} GPUs does not give the bits of one GPU")
    contenders = {"one_gpu": alone, **several}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, plates in contenders.items():
            samples[name].append(seconds(plates, steps))
    found = {}
    for name, one in samples.items():
        low, high = median_interval(one)
        found[name] = {"seconds": statistics.median(one), "low": low, "high": high}
    timelines = {name: timeline(plates) for name, plates in several.items()}
    kept = {"ways": found, "timelines": timelines}
    return {"side": side, "steps": steps, "every": EVERY, "repeats": repeats, "gpus": len(devices), **kept}


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


def recorded() -> dict[str, typing.Any]:
    """The record of this GPU, or of the one that chapters show. Raises `record.RecordError` if there is none."""
    try:
        return nn_measure.recorded("halo")
    except record.RecordError as error:
        raise record.RecordError("no record halo.json: on two GPUs run python -m pmpp.parallel.measure_halo") from error


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=16384 if device.on_gpu() else 64)
    parser.add_argument("--steps", type=int, default=200 if device.on_gpu() else 3)
    parser.add_argument("--repeats", type=int, default=9 if device.on_gpu() else 1)
    parser.add_argument("--no-record", action="store_true")
    chosen = parser.parse_args(arguments)
    count = len(cuda.gpus)
    devices = list(range(count)) if count > 1 else [0, 0]
    rows = {"jacobi": measured(chosen.side, chosen.steps, chosen.repeats, devices), "smaller": []}
    print(table(rows["jacobi"]))
    for side in SMALLER if device.on_gpu() else ():
        rows["smaller"].append(measured(side, chosen.steps, chosen.repeats, devices))
        print(table(rows["smaller"][-1]))
    print(f"target: peer_stores, side 16384 on 2 GPUs: efficiency {TARGET}")
    if device.on_gpu() and count > 1 and not chosen.no_record:
        print("wrote", nn_measure.write("halo", SOURCE, rows, within=WITHIN))


if __name__ == "__main__":
    main()
