"""What to write in a kernel instead of a function that Numba does not compile."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.values import maths

#: NumPy's functions of numbers for which there are operators and functions of another name.
_NUMPY = {
    "abs": "abs(x)", "absolute": "abs(x)", "add": "x + y", "amax": "max(x), a loop over its elements",
    "amin": "min(x), a loop over its elements", "arange": "range(...)", "cbrt": "cuda.cbrt(x)", "ceil": "math.ceil(x)",
    "clip": "min(max(x, low), high)", "copysign": "math.copysign(x, y)", "divmod": "divmod(x, y)", "exp": "math.exp(x)",
    "exp2": "math.exp2(x)", "expm1": "math.expm1(x)", "fabs": "math.fabs(x)", "float_power": "x ** y",
    "floor": "math.floor(x)", "floor_divide": "x // y", "fmod": "math.fmod(x, y)", "heaviside": "1.0 if x > 0 else 0.0",
    "isfinite": "math.isfinite(x)", "isinf": "math.isinf(x)", "log1p": "math.log1p(x)",
    "max": "max(x), a loop over its elements", "min": "min(x), a loop over its elements", "mod": "x % y",
    "multiply": "x * y", "negative": "-x", "positive": "+x", "power": "x ** y", "reciprocal": "1 / x",
    "remainder": "x % y", "rint": "round(x)", "ndim": "x.ndim",
    "sign": "(x > 0) - (x < 0)", "signbit": "math.copysign(1.0, x) < 0", "sqrt": "math.sqrt(x)", "square": "x * x",
    "subtract": "x - y", "transpose": "x.T", "trunc": "math.trunc(x)", "where": "a if c else b", "reshape": "x.reshape",
    "zeros": "cuda.local.array(shape, dtype), and fill it", "ones": "cuda.local.array(shape, dtype), and fill it",
    "empty": "cuda.local.array(shape, dtype)", "full": "cuda.local.array(shape, dtype), and fill it",
    "array": "a tuple, or a global array", "zeros_like": "cuda.local.array(shape, dtype), and fill it",
    "empty_like": "cuda.local.array(shape, dtype)", "ones_like": "cuda.local.array(shape, dtype), and fill it",
}  # fmt: skip
_LACKED = {"searchsorted", "nansum", "nanmean", "average", "angle", "iscomplexobj", "isrealobj", "isscalar", "asarray"}
_PYTHON = {
    "iter": "Numba compiles iter, but the interpreter lacks it; loop over the thing itself",
    "next": "Numba compiles next, but the interpreter lacks it; loop, and break",
    "hasattr": "Numba compiles hasattr, but the interpreter lacks it; you know what you pass",
    "any": "write `or`, or a loop", "all": "write `and`, or a loop", "reversed": "write range(n - 1, -1, -1)",
    "map": "write a loop", "filter": "write a loop with an if", "sorted": "write the comparisons",
    "str": "a kernel makes no strings; print takes several values", "repr": "print takes several values",
    "list": "write a tuple, or cuda.local.array", "dict": "pass an array", "set": "write a tuple",
    "open": "a kernel reaches no files", "input": "pass an argument", "getattr": "write the attribute with a dot",
    "format": "print takes several values", "frozenset": "write a tuple",
}  # fmt: skip
_MATH = {
    "cbrt": "write cuda.cbrt(x)", "prod": "write a loop", "fsum": "write a loop", "dist": "write math.hypot(x, y)",
    "isqrt": "write int(math.sqrt(n))", "comb": "pass a table", "perm": "pass a table",
    "factorial": "pass a table", "gcd": "write a loop", "lcm": "write a loop",
    "isclose": "write abs(x - y) <= tolerance", "sumprod": "write a loop", "log": "write math.log(x) / math.log(base)",
}  # fmt: skip


def instead_of(thing: Any, name: str) -> str:
    """What to write instead of calling a Python object; an empty string where there is nothing to say."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    written, name = name, name.rpartition(".")[2]
    if ".random." in written or str(module).startswith(("numpy.random", "random")):
        return "pass random numbers, or use numba.cuda.random, as xoroshiro128p_uniform_float32"
    if isinstance(thing, np.ufunc) or (module or "").partition(".")[0] == "numpy":
        if name in _NUMPY:
            return f"Numba compiles no np.{name} for a GPU; write {_NUMPY[name]}"
        if name in maths.MATH:
            return f"Numba compiles no np.{name} for a GPU; write math.{name}"
        if name in _LACKED:
            return f"Numba compiles np.{name}, but the interpreter lacks it; write a loop"
        return f"Numba compiles no np.{name} for a GPU; write a loop"
    if module == "math":
        return f"Numba does not compile math.{name} for a GPU{'; ' + _MATH[name] if name in _MATH else ''}"
    if isinstance(getattr(thing, "__self__", None), str):
        return "a kernel compares strings, and does no more with them"
    if module in ("builtins", "operator", "_operator"):
        return _PYTHON.get(name, "Numba does not compile it for a GPU")
    return ""
