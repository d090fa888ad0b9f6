"""A process a room, or several, taking turns on one GPU as `pmpp.lab.measure.turns` says.

A turn is a shape, from its first input to its last check. Rows go to the process that began, which keeps the record.
Shapes that are kept aside wait until all rooms have measured the others, or have no time left: their host time would
suffer from the compilers, too.
"""

from __future__ import annotations

import math
import multiprocessing
import queue
import tempfile
import time
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from pmpp.lab.measure import roofline
from pmpp.lab.measure.shapes import running
from pmpp.lab.measure.shapes.drawing import Shape, part
from pmpp.lab.measure.turns import Turns, compile_apart

__all__ = ["rooms_at_once", "work"]

GRACE = 15.0  # seconds that a room may take to finish its last shape


def work(
    shapes: Sequence[Shape],
    until: float,
    measure: Callable[[Shape], running.Row],
    turns: Turns,
    report: Callable[[running.Row | None], object],
    asides: Callable[[float], object],
    **more: typing.Any,
) -> None:
    """Measure a room's shapes, each in a turn, and report their rows; None before those that are kept aside.

    ``asides`` waits for their time to come, for so many seconds at most. ``more`` as in `running.tried`.
    """
    clock = more.setdefault("clock", time.monotonic)

    def in_turn(shape: Shape) -> running.Row:
        before = turns.spent
        with turns:
            row = measure(shape)
        spent = turns.spent - before
        return row | {"turn_s": round(spent.held, 4), "compile_s": round(spent.compiled, 4)}

    for aside in (False, True):
        if aside:
            report(None)
            asides(max(0.0, until - clock()))
        mine = running.order(shape for shape in shapes if shape.aside == aside)
        for row in running.tried(mine, until, in_turn, **more):
            report(row)


def _process(
    name: str,
    shapes: Sequence[Shape],
    until: float,
    ceilings: roofline.Ceilings,
    seconds: float,
    lock: str,
    asides: typing.Any,
    rows: typing.Any,
) -> None:
    """The process of a room, or of a part of it."""
    import torch  # noqa: F401 - before the first turn: importing takes seconds
    from cupy.cuda import compiler
    from numba.cuda.dispatcher import CUDADispatcher

    from pmpp.lab.measure import timing
    from pmpp.runtime import device

    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    parent, turns = multiprocessing.parent_process(), Turns(lock)
    with turns:
        device.on_gpu()
        timer = timing.gpu_timer()
    compile_apart(turns, CUDADispatcher, compiler, timer.synchronize)
    work(
        shapes,
        until,
        lambda shape: running.measure(shape, ceilings, seconds=seconds, timer=timer),
        turns,
        lambda row: rows.put((name, row)),
        asides.wait,
        clock=lambda: time.monotonic() if parent is None or parent.is_alive() else math.inf,
        progress=lambda words: print(words, flush=True),
        healthy=timer.synchronize,
    )


def rooms_at_once(
    book: running.Book,
    budget: float,
    ceilings: roofline.Ceilings,
    seconds: float,
    *,
    process: Callable = _process,
    progress: Callable[[str], object] = print,
) -> int:
    """Measure what the book lacks, for ``budget`` seconds, all rooms at once; how many shapes it lacks then.

    A room has as many processes as lines, each with a share of every line: where there are several, almost each shape
    calls for a kernel of its own, and one process would compile longer than all others measure.
    """
    until = time.monotonic() + budget
    context = multiprocessing.get_context("spawn")
    asides, rows = context.Event(), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        lock = str(Path(folder) / "gpu.lock")
        processes, room_of = {}, {}
        for room in book.sources:
            for name, shapes in _parts(room, book.lacking(room)).items():
                arguments = name, shapes, until, ceilings, seconds, lock, asides, rows
                processes[name], room_of[name] = context.Process(target=process, args=arguments, daemon=True), room
        for one in processes.values():
            one.start()
        waiting = set(processes)  # for the rest of the shapes that are not kept aside
        while True:
            alive = {name for name, one in processes.items() if one.is_alive()}  # before the queue is looked at
            got = _next(rows)
            if got is not None and got[1] is None:
                waiting.discard(got[0])
            elif got is not None:
                book.add(room_of[got[0]], got[1] | book.stamp)
            waiting &= alive
            if not waiting:
                asides.set()
            if (got is None and not alive) or time.monotonic() > until + GRACE:
                break
        for name, one in processes.items():
            if one.is_alive():
                one.terminate()
                progress(f"{name} was stopped in the midst of a shape")
            elif one.exitcode:
                progress(f"the process of {name} ended with code {one.exitcode}")
            one.join()
    return sum(len(book.lacking(room)) for room in book.sources)


def _parts(room: str, shapes: Sequence[Shape]) -> dict[str, list[Shape]]:
    """The shapes of a room by the name of the process that measures them, ``"fft"`` or ``"fft, 1 of 2"``."""
    if (count := len({shape.line for shape in shapes})) < 2:
        return {room: list(shapes)} if shapes else {}
    parts = {f"{room}, {number} of {count}": part(shapes, number, count) for number in range(1, count + 1)}
    return {name: some for name, some in parts.items() if some}


def _next(rows: typing.Any) -> tuple[str, running.Row | None] | None:
    try:
        return rows.get(timeout=0.2)
    except queue.Empty:
        return None
