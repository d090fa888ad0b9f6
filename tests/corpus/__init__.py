"""Small planted bugs, each with the nearest correct kernel: what level "check" must catch, and must leave alone.

A bug and its look-alike are one kernel, a line or two apart: the last argument, `mended`, chooses. A pair says what is
wrong with the bug as data: the kind of hazard, the memory space, the variable, and by the comment `# BUG` the line on
which it is reported. A race has two ends; the other one is marked `# WITH`, because another order of the warps may
meet the two ends the other way round.

The kernels are in Numba's dialect and run on a GPU as well, where compute-sanitizer is asked the same questions.

    python -m tests.corpus     the table: bugs caught, look-alikes silent
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import io
import tokenize
from collections.abc import Callable
from typing import Any

import numpy as np

#: The modules of pairs, and what their bugs have in common.
SUBJECTS = {
    "shared": "races in shared memory between warps",
    "tiles": "races in shared memory: tiles, scans, sorts",
    "warps": "races within a warp",
    "blocks": "races in global memory",
    "handover": "handing data from block to block",
    "signals": "signals: who has seen one, and for whom",
    "looks": "plain reads of what others update",
    "bounds": "out of bounds",
    "unset": "memory that nobody wrote",
    "layouts": "indices of several axes, memory cut into parts",
    "programs": "whole programs: sorts, scans, graphs, matrices",
    "launches": "what the launch before has left",
    "locks": "locks and chains of blocks",
    "barriers": "divergent barriers and warp operations",
    "members": "member masks that are computed",
    "endings": "threads that have ended, lanes that stay away",
    "copies": "asynchronous copies, tensor cores",
    "engines": "products of warpgroups, bulk copies, mbarriers",
    "stores": "tiles that the copy engine stores",
    "precisions": "tensor cores for float64 and 8 bits",
    "clusters": "clusters of blocks and their shared memory",
}

PAIRS: list[Pair] = []


@dataclasses.dataclass(frozen=True)
class Pair:
    """A kernel whose last argument chooses between a bug and its mended form.

    kernel          the kernel: `kernel[grid, block](*make(new), mended)`
    kind            of the bug's hazard, as `Hazard.kind`; with its `space` and `variable`
    make            `make(new)` gives the arguments; `new(shape, dtype)` allocates device memory that nobody writes
    alias           what the other end of a race calls the same memory
    result          the look-alike's last array, given the arguments; None where the order of the blocks decides
    sharedmem       bytes of dynamic shared memory
    helpers         device functions with marked lines
    before          launches that come first, each as (kernel, grid, block), with the same arguments
    hangs           on a GPU the bug may wait for ever
    cluster         blocks of a cluster
    """

    kernel: Any
    kind: str
    space: str
    variable: str
    alias: str
    grid: Any
    block: Any
    make: Callable[[Callable], tuple]
    result: Callable[..., Any] | None
    sharedmem: int
    helpers: tuple
    before: tuple
    hangs: bool
    cluster: int

    @property
    def function(self) -> Callable:
        """The kernel as a plain function."""
        return getattr(self.kernel, "py_func", self.kernel)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.function.__name__

    @property
    def subject(self) -> str:
        """The module that holds it."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def first_line(self) -> int:
        """The line of the file on which the kernel's source begins."""
        return inspect.getsourcelines(self.function)[1]

    @property
    def source(self) -> str:
        """A short name for the kernel's code, comments and layout aside: it changes when the code does."""
        layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        code = []
        for function in (self.function, *(getattr(kernel, "py_func", kernel) for kernel, _, _ in self.before)):
            text = inspect.getsource(function)
            tokens = tokenize.generate_tokens(io.StringIO(text[text.index("\ndef ") + 1 :]).readline)
            code += [token.string for token in tokens if token.type not in layout]
        return hashlib.sha256(" ".join(code).encode()).hexdigest()[:12]

    def lines(self, *marks: str) -> set[int]:
        """The lines of the file that carry one of the marks."""
        found = set()
        for part in (self.function, *(getattr(helper, "py_func", helper) for helper in self.helpers)):
            lines, first = inspect.getsourcelines(part)
            found |= {first + k for k, text in enumerate(lines) if any(f"# {mark}" in text for mark in marks)}
        return found


def ramp(n: int, dtype: Any = np.float32) -> np.ndarray:
    """0, 1, 2, ..."""
    return np.arange(n).astype(dtype)


def zeros(shape: Any, dtype: Any = np.float32) -> np.ndarray:
    """Memory that the host has set to 0."""
    return np.zeros(shape, dtype)


def _threads(extent: Any) -> int:
    return int(np.prod(extent))


def pair(
    kind: str,
    space: str,
    variable: str,
    *,
    alias: str = "",
    grid: Any = 1,
    block: Any = 64,
    make: Callable[[Callable], tuple] | None = None,
    result: Callable[..., Any] | None,
    sharedmem: int = 0,
    helpers: tuple = (),
    before: tuple = (),
    hangs: bool = False,
    cluster: int = 1,
) -> Callable[[Any], Any]:
    """Enter a kernel in the corpus. Without `make` it gets a ramp and zeros, an element a thread."""
    if make is None:
        n = _threads(grid) * _threads(block)
        make = lambda new: (ramp(n), zeros(n))  # noqa: E731

    def enter(kernel: Any) -> Any:
        entry = Pair(
            kernel, kind, space, variable, alias, grid, block, make, result, sharedmem, helpers, before, hangs, cluster
        )  # fmt: skip
        PAIRS.append(entry)
        return kernel

    return enter


def pairs() -> list[Pair]:
    """All pairs, by subject."""
    for subject in SUBJECTS:
        importlib.import_module(f"{__name__}.{subject}")
    return PAIRS
