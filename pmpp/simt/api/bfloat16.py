"""`cuda.bf16`: bfloat16, the upper half of a float32.

NumPy has no such type; the package ml_dtypes adds it.  Where that is not installed, every name of `cuda.bf16` is
refused in the line that uses it.  The functions are those of float16.py for another type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import float16, libdevice
from pmpp.simt.values.dtypes import BFLOAT16, FLOAT16, HAS_BFLOAT16, INT8, UINT8, Value, cast

_KNOWN = BFLOAT16 if HAS_BFLOAT16 else FLOAT16  # without it there are only refusals, which need no type
libdevice.TYPES["w"] = _KNOWN


ROUTINES = float16.routines("w") | float16.conversions("w", "bfloat16")

_NUMPY = {"ushort": "uint16", "short": "int16", "uint": "uint32", "int": "int32", "ull": "uint64", "ll": "int64",
          "uchar": "uint8", "char": "int8", "float": "float32", "double": "float64"}  # fmt: skip


def _numpy_style(name: str) -> str:
    """`bfloat162int_rd` as `bfloat16_to_int32_rd`, `short_as_bfloat16` as `int16_as_bfloat16`."""
    found = re.fullmatch(r"(bfloat16|[a-z]+?)(2|_as_)(bfloat16|[a-z]+)(_r[nzud])?", name)
    if found is None:
        return name
    source, link, target, mode = found.groups()
    link = "_to_" if link == "2" else link
    return f"{_NUMPY.get(source, source)}{link}{_NUMPY.get(target, target)}{mode or ''}"


def _refused(path: str) -> Callable:
    def call(f: Any, call: Any, *values: Any) -> Value:
        raise TypeError(f"{path} needs bfloat16, which NumPy gets from the package ml_dtypes: pip install ml_dtypes")

    return call


def _construct(f: Any, call: Any, value: Value) -> Value:
    if not isinstance(value, (np.generic, np.ndarray)) or value.dtype in (INT8, UINT8):
        raise TypeError("bfloat16 is made of a bool, a float, or an integer of 16 bits or more")
    return cast(value, _KNOWN)


#: `bf16.<name>` in a kernel.
BF16: dict[str, Callable] = {"bf16.bfloat16": _construct}
for _name, _routine in ROUTINES.items():
    for _path in {f"bf16.{_name}", f"bf16.{_numpy_style(_name)}", f"bf16.__{_name}"}:
        BF16[_path] = libdevice.handler(_path, _routine)
if not HAS_BFLOAT16:
    BF16 = {path: _refused(f"cuda.{path}") for path in BF16}
