"""What the interpreter would refuse about a kernel, found without running it.

The kernel's source is compiled and walked once over the types of its arguments, with memory switched off and every
branch entered.  Numba refuses the same kernels, in a compiler's words; `pmpp.runtime.translate` puts these beside them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pmpp.simt.front.compiler import compile_function
from pmpp.simt.front.inference import DryRun, Left
from pmpp.simt.host.arrays import as_cuda_array
from pmpp.simt.host.launch import configure
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.machine.machine import Launch, Machine
from pmpp.simt.machine.memory import Array, Storage, c_strides
from pmpp.simt.machine.turns import plain
from pmpp.simt.values import dtypes
from pmpp.simt.values.errors import ArgumentError, SimtError


def refusal(kernel: Any, args: Sequence[Any], grid: Any = 1, block: Any = 1, *, sharedmem: int = 0) -> SimtError | None:
    """The error with which the interpreter would refuse this launch, or None.

    kernel   a kernel of the interpreter or of Numba, or a plain function
    args     its arguments, or their Numba types: only dtypes and numbers of dimensions matter
    grid, block, sharedmem  the launch configuration, as in `profile`

    Says nothing about values: an index out of bounds shows only when the kernel runs.
    """
    py_func = getattr(kernel, "py_func", kernel)
    try:
        configure(grid, block, sharedmem)
        function = compile_function(py_func)
        names = list(function.signature.parameters)
        if len(args) != len(names):
            raise ArgumentError(
                f"{function.name}() takes {len(names)} arguments ({', '.join(names)}), but {len(args)} were given"
            )
        launch = Launch(function.name, function.file, function.source_file, (1, 1, 1), (WARP, 1, 1), capture=_captured)
        m = Machine(launch, dry=True)
        frame = Frame(m, function, m.batch.lanes.full)
        frame.vars.update((name, _typical(value)) for name, value in zip(names, args, strict=True))
        with np.errstate(all="ignore"), contextlib.suppress(Left, DryRun):
            plain(function.body)(frame)
    except SimtError as error:
        return error
    return m.refused


def _captured(thing: Any) -> Array:
    return as_cuda_array(thing)._argument()


def _typical(value: Any) -> Any:
    """A value of the same type."""
    dtype, ndim = getattr(value, "dtype", None), getattr(value, "ndim", None)
    if dtype is not None and ndim:
        found = dtypes.as_dtype(dtype) or np.dtype(dtype)
        shape = (1,) * ndim
        return Array(Storage("global", np.zeros(1, found)), found, shape, c_strides(shape))
    if isinstance(value, (tuple, list)) or hasattr(value, "types"):
        parts = [_typical(v) for v in getattr(value, "types", value)]
        kind = getattr(value, "instance_class", type(value))  # of Numba's type of a named tuple, of a tuple itself
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    scalar = dtypes.as_dtype(value)
    return dtypes.constant(value) if scalar is None else scalar.type(0)
