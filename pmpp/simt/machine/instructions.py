"""The classes of instructions: what an operator, a function or an access counts as in the instruction mix."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np


class Class(NamedTuple):
    """One class of the instruction mix.

    name      the counters' names end in it
    ncu       what Nsight Compute calls it where it counts threads
    members   what belongs to it
    warps     the metric that counts it by warps; XU is the unit of special functions, which converts types as well
    """

    name: str
    ncu: str
    members: str
    warps: str = ""


#: The classes of the instruction mix, in the order of their counters.
CLASSES = (
    Class("integer", "integer", "operators, comparisons and functions of integers and booleans, bits included"),
    Class("fp16", "fp16", "operators, comparisons and functions of float16"),
    Class("fp32", "fp32", "operators, comparisons and functions of float32"),
    Class("fp64", "fp64", "operators, comparisons and functions of float64"),
    Class(
        "special",
        "",
        "division, square root, exponential, logarithm and trigonometry of floats",
        "smsp__inst_executed_pipe_xu.sum",
    ),
    Class("conversion", "conversion", "casts written out, as in np.float32(i)"),
    Class("memory", "memory", "loads, stores and atomics, global and shared"),
    Class("control", "control", "tests of if, while and for, and calls"),
    Class("barrier", "", "barriers of a block, a warp or the grid, fences, and waiting for copies"),
    Class("shuffle", "inter_thread_communication", "shuffles, votes and matches between the lanes of a warp"),
    Class("tensor", "", "multiplications of matrices by tensor cores", "smsp__inst_executed_pipe_tensor.sum"),
)
INTEGER, FP16, FP32, FP64, SPECIAL, CONVERSION, MEMORY, CONTROL, BARRIER, SHUFFLE, TENSOR = range(len(CLASSES))

#: The class of floating-point arithmetic by bytes of a number.
FLOAT_CLASS = {2: FP16, 4: FP32, 8: FP64}


@functools.cache
def class_of(dtype: np.dtype) -> int:
    """The class of the instruction mix to which arithmetic in this type belongs."""
    if dtype.kind in "fV":  # bfloat16 is a V to NumPy
        return FLOAT_CLASS.get(dtype.itemsize, FP64)
    return (FP32 if dtype.itemsize == 8 else FP64) if dtype.kind == "c" else INTEGER


def class_of_call(result: object, values: list) -> int:
    """The class of a function that goes by its type: of its result, or of what it was given."""
    for value in (result, *values):
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, (np.generic, np.ndarray)) and first.dtype.kind in "fc":
            return class_of(first.dtype)
    return INTEGER


#: Functions that the special function unit takes part in, or that the compiler makes of many instructions.
_NAMES = """
    sqrt rsqrt rcp cbrt rcbrt exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan sincos sinpi cospi sincospi tanh
    sinh cosh asin acos atan atan2 asinh acosh atanh pow powi hypot erf erfc erfcx erfinv tgamma gamma lgamma div
    fdivide truediv j0 j1 y0 y1 normcdf normcdfinv
"""
_SPECIAL = frozenset(_NAMES.split())
_BARRIERS = ("syncthreads", "syncwarp", "threadfence", "commit_copies", "wait_copies")
_CONVERSIONS = ("2half", "2bfloat16", "2float", "2double", "2int", "2uint", "2ll", "2ull")


def classify(name: str) -> int | None:
    """The class of a function by its name ("math.exp", "shfl_sync", "libdevice.fast_expf"); None: by its type."""
    last = name.rpartition(".")[2]
    if last.startswith(("shfl_", "match_", "activemask", "lanemask", "vote")) or last in (
        "all_sync", "any_sync", "eq_sync", "ballot_sync",
    ):  # fmt: skip
        return SHUFFLE
    if last.startswith(_BARRIERS):
        return BARRIER
    bare = last.removeprefix("fast_")
    if name.startswith(("fp16.", "bf16.")):
        bare = bare.removeprefix("h")
    if bare in _SPECIAL or (bare[-1:] == "f" and bare[:-1] in _SPECIAL):
        return SPECIAL
    for mark in ("_rn", "_rz", "_ru", "_rd"):
        if bare.endswith(mark) and bare.removesuffix(mark).lstrip("fd") in ("div", "sqrt", "rcp", "rsqrt", "iv"):
            return SPECIAL
    if last in ("int", "float", "bool", "round") or any(mark in bare for mark in _CONVERSIONS):
        return CONVERSION
    return None
