"""The search by several processes, which take turns on one GPU as `pmpp.lab.measure.turns` says.

Nearly all of a search goes to compiling, which one core does. So the configurations are dealt out, those that share a
compiled kernel to the same process. Each process verifies its own, and times them in turns, shape by shape. All go
through the shapes in one order, so a shape is complete when the slowest has timed it, and a search that is stopped has
all shapes before that. What is pruned is decided before, by prediction alone. A configuration that turns out to be
wrong gets no time, and those that it has pruned stay pruned.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import queue
import signal
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pmpp.lab.measure import timing
from pmpp.lab.measure.tune import search
from pmpp.lab.measure.tune.search import Landscape, Row, Shape, Subject, explore, wrong_result
from pmpp.lab.measure.turns import Turns, compile_apart
from pmpp.runtime import device

__all__ = ["deal", "tune_together"]

PATIENCE = 0.5  # seconds until it is looked whether the search is to stop


def deal(subject: Subject, configurations: Sequence[typing.Any], processes: int) -> list[list[typing.Any]]:
    """The configurations of each process: those that share a compiled kernel stay together, and all get equally many.

    >>> from pmpp.kernels.autotuning import transposes
    >>> [len(mine) for mine in deal(transposes.SUBJECT, transposes.SPACE.allowed()[:5], 2)]
    [3, 2]
    """
    shared: dict[typing.Hashable, list] = {}
    for one in configurations:
        shared.setdefault(subject.compiled(one), []).append(one)
    dealt: list[list] = [[] for _ in range(min(processes, len(shared)))]
    for together in sorted(shared.values(), key=len, reverse=True):
        min(dealt, key=len).extend(together)
    return dealt


def tune_together(
    subject: Subject,
    shapes: Sequence[Shape],
    processes: int,
    *,
    seconds: float = search.SECONDS,
    stop: Callable[[], bool] = lambda: False,
    lock: Path | str | None = None,
    process: Callable | None = None,
    **options: typing.Any,
) -> Iterator[Landscape]:
    """A landscape for each shape, as `search.tune` makes it, by so many processes on this machine's GPU.

    They come as soon as they are complete, about in the order of the shapes.

    Args:
        subject: one of `store.subjects`, where the processes look for it. shapes: of the problems.
        seconds, options: as of `search.tune`, for each shape.
        stop: asked now and then; when it says True, the processes end, and what is not complete is given up.
        lock: the file by which the processes take turns; by default one of their own. Searches that run on the same GPU
            at the same time need the same.
        process: what each process does; tests pass another.

    Raises RuntimeError if a process ends before its work does.
    """
    grounds = [explore(subject, shape, wrong=lambda *_: "", **options) for shape in shapes]
    rows = [{row.configuration: row for row in ground.rows} for ground in grounds]
    left = [{row.configuration for row in ground.of("verified")} for ground in grounds]
    wanted = list(dict.fromkeys(row.configuration for ground in grounds for row in ground.of("verified")))
    where = device.limits()["name"] if device.on_gpu() else "a timer of the caller"
    context = multiprocessing.get_context("spawn")
    results, started = context.Queue(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as last:
        last.callback(lambda: [(one.kill(), one.join()) for one in started])
        lock = str(lock or Path(folder) / "gpu.lock")
        for mine in deal(subject, wanted, processes):
            tasks = [(shape, [one for one in mine if one in these]) for shape, these in zip(shapes, left, strict=True)]
            args = subject.name, tasks, seconds, lock, results
            started.append(context.Process(target=process or _process, args=args, daemon=True))
            started[-1].start()
        working = len(started)
        while any(left) and not stop():
            try:
                said = results.get(timeout=PATIENCE)
            except queue.Empty:
                if not any(one.is_alive() for one in started) and results.empty():
                    raise RuntimeError(f"{working} of {len(started)} processes ended before their work did") from None
                continue
            if said is None:
                working -= 1
                continue
            number, row = said
            estimate = rows[number][row.configuration].estimate
            rows[number][row.configuration] = row._replace(estimate=estimate)
            left[number].discard(row.configuration)
            if not left[number]:
                yield replace(grounds[number], device=where, rows=tuple(rows[number].values()))


def _process(name: str, tasks: Sequence[tuple[Shape, list]], seconds: float, lock: str, results: typing.Any) -> None:
    """Verify and time some configurations of a subject, and report their rows."""
    for one in (signal.SIGINT, signal.SIGTERM):  # sent to all of a group, the parent too, which ends this process
        signal.signal(one, signal.SIG_IGN)
    from numba.cuda.dispatcher import CUDADispatcher

    from pmpp.lab.measure.tune.store import subjects

    with contextlib.suppress(ImportError):
        importlib.import_module("cupy.cuda.compiler")  # before the first turn: importing takes seconds
    subject, turns = subjects()[name], Turns(lock)
    compile_apart(turns, CUDADispatcher, sys.modules.get("cupy.cuda.compiler"), device.backend().cuda.synchronize)
    with turns:
        timer = timing.gpu_timer()
    work(subject, tasks, seconds, turns, timer, results.put)


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
        if found:
            with turns:
                search.time_rows(subject, shape, found, timer, seconds)
        for row in found.values():
            report((number, row))
    report(None)
