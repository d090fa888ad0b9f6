"""Kernels as numba-cuda lowers them, launched on this machine: an oracle for whole kernels that needs no GPU.

`lowered.py` runs functions of numbers.  This runs kernels: with arrays of any rank, records and tuples as arguments,
and with indices of threads and blocks.  The threads run one after another, so a kernel that needs another thread,
shared memory or an atomic cannot be run here.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from typing import Any
from unittest import mock

import numpy as np

from tests.support.compiled import OLDEST, _for_numba, numba_type
from tests.support.lowered import _PATTERNS, _PROTOTYPES, Compiler, Refused, _opaque

_REGISTERS = [f"{name}_{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
_REGISTER = re.compile(r'@"?llvm\.nvvm\.read\.ptx\.sreg\.(tid|ntid|ctaid|nctaid)\.([xyz])"?')


class Unknown(Exception):
    """Numba compiles a kernel, and it cannot be run here: it calls what only a GPU has."""


def _registers() -> str:
    """What tells a thread who it is: a number in memory each, and the function that reads it."""
    return "\n".join(
        f"@where_{name} = global i32 0\n"
        f"define i32 @sreg_{name}() {{\n  %v = load i32, ptr @where_{name}\n  ret i32 %v\n}}"
        for name in _REGISTERS
    )


class Launcher(Compiler):
    """Launches kernels on this machine as numba-cuda lowers them."""

    def lower(self, kernel: Any, args: tuple) -> tuple[Any, list[str]]:
        """What Numba's compiler returns for a kernel of the interpreter, and the text of its modules; or `Refused`."""
        signature = tuple(numba_type(a) for a in args)
        device = mock.patch(
            "numba.cuda.dispatcher.get_current_device", return_value=mock.Mock(compute_capability=OLDEST)
        )
        with warnings.catch_warnings(), device:
            warnings.simplefilter("ignore")
            try:
                function = _for_numba(getattr(kernel, "py_func", kernel), {})
                found = self._compile(function, self._types.void, signature, cc=OLDEST)
                texts = found.library.llvm_strs
            except Exception as error:  # Numba's own errors, and whatever else its compiler stumbles over
                raise Refused(f"{type(error).__name__}: {error}") from error
        return found, [_opaque(text) for text in texts]

    def launch(self, kernel: Any, grid: int, block: int, args: tuple) -> bool:
        """Run the kernel, which changes its arrays; whether a thread raised an exception."""
        found, texts = self.lower(kernel, args)
        module = self._rules.clone()
        module.link_in(self._host(_registers()))
        declared = "\n".join(f"declare i32 @sreg_{name}()" for name in _REGISTERS)
        for text in texts:
            for pattern, replacement in _PATTERNS:
                text = pattern.sub(replacement, text)
            text = _REGISTER.sub(r"@sreg_\1_\2", re.sub(r"^declare i32 @\"?llvm\.nvvm\.read.*$", "", text, flags=re.M))
            used = sorted(set(re.findall(r"call \S+ @\"?(\w+)\"?\(", text)) & _PROTOTYPES.keys())
            present = set(re.findall(r"^declare \S+ @\"?(\w+)\"?\(", text, flags=re.M))
            more = [f"declare {_PROTOTYPES[name]}" for name in used if name not in present]
            module.link_in(self._host("\n".join([text, declared, *more])))
        unknown = [f.name for f in module.functions if f.is_declaration and not f.name.startswith(("llvm.", "__nv_"))]
        if unknown:
            raise Unknown(f"this machine has no {', '.join(unknown)}")
        for name in set(re.findall(r'@"(__nv_\w+)"', "\n".join(texts))) - _PROTOTYPES.keys():
            address = ctypes.cast(getattr(self._libm, name.removeprefix("__nv_")), ctypes.c_void_p).value
            self._llvm.add_symbol(name, address)
        types, values = zip(*(part for a in args for part in _flat(a)), strict=True)
        with self._llvm.create_mcjit_compiler(module, self._machine()) as engine:
            engine.finalize_object()
            code = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *types)(
                engine.get_function_address(found.fndesc.llvm_func_name)
            )
            where = {n: ctypes.c_int32.from_address(engine.get_global_value_address(f"where_{n}")) for n in _REGISTERS}
            for name, register in where.items():
                register.value = name[0] == "n"
            where["ntid_x"].value, where["nctaid_x"].value = block, grid
            raised, nothing, result = False, ctypes.create_string_buffer(64), 0
            for b in range(grid):
                for t in range(block):
                    where["ctaid_x"].value, where["tid_x"].value = b, t
                    result = code(ctypes.addressof(nothing), *values)
                    raised |= result != 0
        return raised


def _flat(value: Any) -> list[tuple[Any, Any]]:
    """An argument as the C types and values that Numba passes."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    if isinstance(value, tuple):
        return [part for each in value for part in _flat(each)]
    if isinstance(value, np.ndarray):
        head = [(pointer, None), (pointer, None), (number, value.size), (number, value.itemsize)]
        extents = [(number, n) for n in (*value.shape, *value.strides)]
        return [*head, (pointer, value.ctypes.data), *extents]
    if isinstance(value, bool | np.bool_):
        return [(ctypes.c_uint8, int(value))]
    if isinstance(value, int):
        return [(number, value)]
    if isinstance(value, float):
        return [(ctypes.c_double, value)]
    return [(np.ctypeslib.as_ctypes_type(value.dtype), value.item())]
