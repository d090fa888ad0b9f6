"""How the tests see a type: inside a kernel, by what arithmetic does to it, and by asking Numba, without a GPU."""

import warnings

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
FLOATS = {"float32", "float64"}
UNSIGNED = {"uint8", "uint16", "uint32", "uint64"}
REFUSED = None


@cuda.jit(device=True)
def look(r, seen):
    """Write what tells r's type apart: is it signed, how long is 1/3, does it wrap at 2**64, what does ~r give."""
    zero = r - r
    one = zero**zero
    seen[0] = zero - one
    seen[1] = one / (one + one + one)
    big = one + one
    for _ in range(6):
        big = big * big
    seen[2] = big


@cuda.jit(device=True)
def look_bits(r, seen):
    seen[0] = ~r


def visible(name):
    """What `look` writes for a value of this type: narrow integers show only their sign."""
    third = np.float64(np.float32(1) / np.float32(3)) if name == "float32" else 1 / 3
    return (2.0**64 if name in UNSIGNED else -1.0, third, 2.0**64 if name in FLOATS else 0.0)


def observe(make, make_bits, function, expected, *operands):
    """None when the interpreter shows the expected type, else a word about what it showed."""
    kernel = (make_bits if expected == "bool" else make)(function)
    seen = np.zeros(3)
    try:
        kernel[1, 1](*operands, seen)
    except (simt.SimtError, TypeError) as error:
        return None if expected is REFUSED else f"refused: {error}"
    if expected is REFUSED:
        return f"accepted, {seen}"
    if expected == "bool":
        return None if seen[0] in (0, 1) else f"an int: ~r is {seen[0]}"
    return None if tuple(seen) == visible(expected) else f"{seen} for {visible(expected)}"


def value(name, number):
    """An array of one number."""
    return np.array([number], dtype=name)


def numba_context(names=TYPES):
    """Numba's CUDA typing context, and its types by name; asks no driver."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from numba.cuda import types
        from numba.cuda.descriptor import cuda_target
    context = cuda_target.typing_context
    context.refresh()
    return context, {name: getattr(types, "boolean" if name == "bool" else name) for name in names}


def numba_result(context, function, operands):
    """The type that Numba gives a function of these types, or REFUSED."""
    try:
        signature = context.resolve_function_type(function, operands, {})
    except Exception:  # Numba raises its own TypingError, or an AssertionError from inside a template
        return REFUSED
    return REFUSED if signature is None else str(signature.return_type)
