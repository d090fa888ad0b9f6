"""Turns on one GPU: while one process compiles a kernel, another measures.

Most of a run's time goes to compiling, which one core does. Several processes make use of that time. Whoever uses the
GPU holds a lock, from the first input to the last check, and gives it up only while Numba or CuPy compiles: a kernel is
never timed while another process computes. What a compiler has made is loaded before the turn comes back, and that is
no computing.

`pmpp.lab.measure.shapes.together` has a process a room, and `pmpp.lab.measure.processes` as many as one asks for.
"""

from __future__ import annotations

import os
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Spent", "Turns", "compile_apart", "possible"]

CUPY_COMPILES = "_compile_module_with_cache"


def possible() -> bool:
    """Whether processes can take turns here: the lock is one of Unix."""
    return os.name == "posix"


class Spent(typing.NamedTuple):
    """Seconds: with the lock, without it within a turn while something was compiled, and waiting for it."""

    held: float = 0.0
    compiled: float = 0.0
    waited: float = 0.0

    def __add__(self, other: tuple) -> Spent:  # type: ignore[override]
        return Spent(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: tuple) -> Spent:
        return Spent(*(a - b for a, b in zip(self, other, strict=True)))


class Turns:
    """``with turns:`` has the GPU. The lock is on a file, so that the system takes it from a process that dies.

    Attributes: ``has`` says whether it is this process's turn; ``spent`` counts the seconds of all turns that are over.
    """

    def __init__(self, path: Path | str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        self.clock = clock
        self.has = False
        self.spent = Spent()
        self._since = 0.0

    def __enter__(self) -> None:
        self._take()

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _take(self) -> None:
        import fcntl

        asked = self.clock()
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self._since = self.clock()
        self.spent += (0.0, 0.0, self._since - asked)
        self.has = True

    def _leave(self) -> None:
        import fcntl

        self.has = False
        self.spent += (self.clock() - self._since, 0.0, 0.0)
        fcntl.flock(self.file, fcntl.LOCK_UN)
        time.sleep(0.001)  # or this process would have it again before another wakes up

    @contextmanager
    def others(self) -> Iterator[None]:
        """Let others have the GPU meanwhile, if it is this process's turn."""
        if not self.has:
            yield
            return
        self._leave()
        began = self.clock()
        try:
            yield
        finally:
            self.spent += (0.0, self.clock() - began, 0.0)
            self._take()


def compile_apart(turns: Turns, dispatcher: type, cupy_compiler: typing.Any, idle: Callable[[], object]) -> None:
    """Give up the turn whenever Numba or CuPy compiles a kernel, in this process from now on.

    ``dispatcher`` is the class of Numba's kernels, and ``cupy_compiler`` CuPy's module that compiles, or None. ``idle``
    waits until the GPU has finished what this process asked of it.
    """
    numba, cupy = dispatcher.compile, getattr(cupy_compiler, CUPY_COMPILES, None)

    def compile(self: typing.Any, signature: typing.Any) -> typing.Any:
        if signature in self.overloads:
            return numba(self, signature)
        idle()
        with turns.others():
            return numba(self, signature)

    def compile_module(*args: typing.Any, **options: typing.Any) -> typing.Any:
        idle()
        with turns.others():
            return cupy(*args, **options)

    dispatcher.compile = compile
    if cupy is not None:  # it is not public: without it CuPy compiles in this process's turns
        setattr(cupy_compiler, CUPY_COMPILES, compile_module)
