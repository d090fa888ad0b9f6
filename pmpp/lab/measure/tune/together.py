"""The search by several processes, which take turns on one GPU as `pmpp.lab.measure.turns` says.

Nearly all of a search goes to compiling, which one core does. So the configurations are dealt out: each process
compiles its own, verifies them, and times them in turns. What is pruned is decided before, by prediction alone; a
configuration that turns out to be wrong gets no time, and those that it has pruned stay pruned.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pmpp.lab.measure import timing
from pmpp.lab.measure.tune import search
from pmpp.lab.measure.tune.search import Landscape, Row, Shape, Subject, explore, wrong_result
from pmpp.lab.measure.turns import Turns, compile_apart
from pmpp.runtime import device

__all__ = ["tune_together"]


def tune_together(
    subject: Subject,
    shapes: Sequence[Shape],
    processes: int,
    *,
    seconds: float = search.SECONDS,
    process: Callable | None = None,
    **options: typing.Any,
) -> list[Landscape]:
    """A landscape for each shape, as `search.tune` makes it, by so many processes on this machine's GPU.

    Args:
        subject: one of `store.subjects`, where the processes look for it. shapes: of the problems.
        seconds, options: as of `search.tune`, for each shape.
        process: what each process does; tests pass another.

    Raises RuntimeError if a process ends before its work does.
    """
    grounds = [explore(subject, shape, wrong=lambda *_: "", **options) for shape in shapes]
    rows = [{row.configuration: row for row in ground.rows} for ground in grounds]
    wanted = list(dict.fromkeys(row.configuration for ground in grounds for row in ground.of("verified")))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        lock, started = str(Path(folder) / "gpu.lock"), []
        for number in range(min(processes, len(wanted))):
            mine = wanted[number::processes]  # the fastest by prediction are dealt out first: all get equally many
            tasks = [
                (shape, [one for one in mine if found[one].status == "verified"])
                for shape, found in zip(shapes, rows, strict=True)
            ]
            args = subject.name, tasks, seconds, lock, results
            started.append(context.Process(target=process or _process, args=args, daemon=True))
            started[-1].start()
        left = len(started)
        while left:
            try:
                said = results.get(timeout=1.0)
            except queue.Empty:
                if not any(one.is_alive() for one in started) and results.empty():
                    raise RuntimeError(f"{left} of {len(started)} processes ended before their work did") from None
                continue
            if said is None:
                left -= 1
            else:
                number, row = said
                estimate = rows[number][row.configuration].estimate
                rows[number][row.configuration] = row._replace(estimate=estimate)
        for one in started:
            one.join()
    where = device.limits()["name"] if device.on_gpu() else "a timer of the caller"
    return [
        replace(ground, device=where, rows=tuple(found.values())) for ground, found in zip(grounds, rows, strict=True)
    ]


def _process(name: str, tasks: Sequence[tuple[Shape, list]], seconds: float, lock: str, results: typing.Any) -> None:
    """Verify and time some configurations of a subject, and report their rows."""
    from numba.cuda.dispatcher import CUDADispatcher

    from pmpp.lab.measure.tune.store import subjects

    turns = Turns(lock)
    with turns:
        device.on_gpu()
        timer = timing.gpu_timer()
    compile_apart(turns, CUDADispatcher, None, timer.synchronize)
    work(subjects()[name], tasks, seconds, turns, timer, results.put)


def work(
    subject: Subject,
    tasks: Sequence[tuple[Shape, list]],
    seconds: float,
    turns: typing.Any,
    timer: timing.GpuTimer,
    report: Callable[[tuple[int, Row] | None], object],
) -> None:
    """Each configuration of ``tasks``, which names them for each shape, is verified once, and timed for its shapes."""
    why: dict[typing.Any, str] = {}
    for number, (shape, configurations) in enumerate(tasks):
        for one in configurations:
            if one not in why:
                with turns:
                    why[one] = wrong_result(subject, one)
        found = {one: Row(one, "wrong" if why[one] else "verified", why[one]) for one in configurations}
        with turns:
            search.time_rows(subject, shape, found, timer, seconds)
        for row in found.values():
            report((number, row))
    report(None)
