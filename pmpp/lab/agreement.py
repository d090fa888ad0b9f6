"""Does the interpreter count what the hardware counts?  The same launches under Nsight Compute and in the interpreter.

::

    python -m pmpp.lab.agreement                    the table: recorded hardware values beside the interpreter's
    python -m pmpp.lab.agreement --all              every row, not only where the two differ
    python -m pmpp.lab.agreement --gpu OUT.json     run every kernel under ``ncu`` on this GPU, and record the values

What is run is said by ``pmpp.workloads._agreement``: a list of `Case`, each one launch of one kernel, with the reason
for every metric in which the interpreter is known to differ from the hardware. The interpreter counts the accesses and
operations of the Python source. The hardware runs what a compiler made of it, which merges loads, turns branches into
predicates and drops what nobody needs. A reason says which, and was read from the machine code (SASS). A difference
without a reason is a fault, of the interpreter or of this table, and the tests fail over it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import hashlib
import importlib
import inspect
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pmpp.lab import device, machine
from pmpp.lab.room import Rung

__all__ = ["METRICS", "Case", "Metric", "Row", "cases", "interpret", "main", "recorded", "rows", "table"]

RECORD = Path(__file__).with_name("recorded") / "agreement-nvidia-h200.json"
CATALOGUE = "pmpp.workloads._agreement"


@dataclass(frozen=True)
class Case:
    """One launch: a rung called with ``args()``, or a kernel launched on them with ``grid`` and ``block``.

    ``differs`` gives, by the name of a metric, why the hardware's value is not the interpreter's.
    """

    name: str
    target: typing.Any
    args: Callable[[], tuple]
    grid: typing.Any = None
    block: typing.Any = None
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernel(self) -> typing.Any:
        """The kernel that is compared: of a rung, the first of its kernels."""
        return self.target.kernels[0] if isinstance(self.target, Rung) else self.target

    def run(self) -> None:
        """Launch, on whatever backend is in use, and wait."""
        args = [device.to_device(a) if isinstance(a, np.ndarray) else a for a in self.args()]
        if isinstance(self.target, Rung):
            self.target(*args)
        else:
            self.target[self.grid, self.block](*args)
        device.backend().cuda.synchronize()

    @property
    def digest(self) -> str:
        """Of the kernel's source, of what it calls and reads, and of the arguments: a record of another is stale."""
        text = hashlib.sha256()
        for piece in _code(self.kernel, set()):
            text.update(piece.encode())
        for a in self.args():
            text.update(repr((a.dtype.str, a.shape)).encode() + a.tobytes() if isinstance(a, np.ndarray) else b"%r" % a)
        text.update(repr((self.grid, self.block)).encode())
        return text.hexdigest()[:16]


def _code(function: typing.Any, seen: set) -> list[str]:
    """The source of a kernel without comments and layout, then of the functions and constants of pmpp that it names."""
    function = inspect.unwrap(getattr(function, "py_func", function))
    if not isinstance(function, types.FunctionType) or function in seen:
        return []
    seen.add(function)
    source = inspect.getsource(function)
    pieces = [_without_comments(source)]
    for name in sorted(set(re.findall(r"[^\W\d]\w*", source))):
        value = function.__globals__.get(name)
        if isinstance(value, (bool, int, float, str, tuple)):
            pieces.append(f"{name} = {value!r}")
        elif getattr(getattr(value, "py_func", None), "__module__", "").startswith("pmpp"):
            pieces += _code(value, seen)
    return pieces


def _without_comments(source: str) -> str:
    lines = (re.sub(r"\s*#.*", "", line).rstrip() for line in inspect.cleandoc("\n" + source).splitlines())
    return "\n".join(re.sub(r'^\s*""".*"""$', "", line) for line in lines if line)


@functools.cache
def cases() -> tuple[Case, ...]:
    """The catalogue."""
    return importlib.import_module(CATALOGUE).CASES


# ------------------------------------------------------------------------------------------------ what is compared

_LSU = "l1tex__{}_pipe_lsu_mem_{}_op_{}.sum"


def _sum(*names: str) -> Callable[[Mapping[str, float]], float]:
    return lambda values: sum(values[name] for name in names)


def _flops(letters: str) -> dict[str, int]:
    return {
        f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum": 2 if op == "fma" else 1
        for kind in letters for op in ("add", "mul", "fma")
    }  # fmt: skip


def _weighed(weights: Mapping[str, int]) -> Callable[[Mapping[str, float]], float]:
    return lambda values: sum(weight * values[name] for name, weight in weights.items())


OPCODES = "sass__inst_executed_per_opcode"


@dataclass(frozen=True)
class Metric:
    """One column of the comparison: what Nsight Compute says, and what the interpreter's counters say.

    ``nsight`` are the metrics that ``ncu`` collects, ``hardware`` makes one number of them (and of ``warps``, the warps
    of a block, and of the opcodes' counts by name), ``interpreter`` makes it of a report's counters.
    """

    name: str
    nsight: tuple[str, ...]
    hardware: Callable[[Mapping[str, float]], float]
    interpreter: Callable[[Mapping[str, int]], float]


def _plain(name: str, counter: str, nsight: str) -> Metric:
    return Metric(name, (nsight,), _sum(nsight), lambda c: c[counter])


def _pair(space: str, op: str, what: str, unit: str) -> Metric:
    kind = {"ld": "load", "st": "store"}[op]
    return _plain(f"{space} {kind} {what}", f"{space}_{kind}_{what}", _LSU.format(unit, space, op))


_ATOMS = tuple(f"smsp__inst_executed_op_{space}_{op}.sum" for space, op in (("global", "atom"), ("global", "red")))
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
_RATIO = "smsp__thread_inst_executed_per_inst_executed.ratio"
_DIVERGENT = "smsp__sass_branch_targets_threads_divergent.sum"


def _launch() -> None:
    for case in cases():
        case.run()


if __name__ == "__main__":
    _launch()
