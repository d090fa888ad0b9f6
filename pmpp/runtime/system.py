"""Signals between GPUs: loads and stores of one element that all GPUs and the host see in order.

A kernel of one GPU can load from the memory of another. Whether the owner has finished writing there, it has to be
told: by a number that the owner stores, and that the reader loads until it changes. Two things have to be promised for
that, which ``x[i]`` does not promise. The element is loaded from memory each time, and not kept in a register or in a
cache; and what the owner wrote *before* the number is there for who has seen the number.

Inside a kernel, on both backends::

    store_release_system(flags, i, 7)           # all that this thread did before is seen by whoever loads the 7
    while load_acquire_system(flags, i) < 7:    # all that follows sees it; bound such a loop, or a mistake hangs a GPU
        ...

===============================  ==================  ===============================================================
name                             PTX                 orders
===============================  ==================  ===============================================================
``store_release_system``         ``st.release.sys``  what the thread did before it
``load_acquire_system``          ``ld.acquire.sys``  what the thread does after it
``store_relaxed_system``         ``st.relaxed.sys``  nothing: the element itself is the message
``load_relaxed_system``          ``ld.relaxed.sys``  nothing
===============================  ==================  ===============================================================

- ``x`` is a global array, contiguous in C or F order, of int32, uint32, int64 or uint64. ``i`` is an integer element
  index into the flat storage. A stored value is converted to ``x``'s dtype as in ``x[i] = value``.
- A thread speaks for others only if it has met them: for its block after `syncthreads`.
- An element of 64 bits is written and read as a whole, by one GPU and by another.

Anything else is a typing error when the kernel is compiled. Source: PTX ISA, "Memory Consistency Model", "ld" and "st".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

# __getattr__ makes those that the linter cannot see.
__all__ = [  # noqa: F822
    "NAMES", "load_acquire_system", "load_relaxed_system", "numba_intrinsics", "store_relaxed_system",
    "store_release_system",
]  # fmt: skip

#: What this module gives a kernel.
NAMES = ("store_release_system", "load_acquire_system", "store_relaxed_system", "load_relaxed_system")

_REGISTER = {"int32": "r", "uint32": "r", "int64": "l", "uint64": "l"}  # dtype -> LLVM's letter for its registers


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    def check(name: str, array: types.Type, index: types.Type) -> str:
        if not isinstance(array, types.Array):
            raise TypingError(f"{name}: the first argument must be an array, was {array}")
        if str(array.dtype) not in _REGISTER:
            raise TypingError(f"{name}: the array's dtype must be one of {', '.join(_REGISTER)}, was {array.dtype}")
        if array.layout not in "CF":
            raise TypingError(f"{name}: the array must be contiguous (C or F order), was {array}")
        if not isinstance(index, types.Integer):
            raise TypingError(f"{name}: the index must be one integer, an element index, was {index}")
        return _REGISTER[str(array.dtype)]

    def address(context, builder, array, value, index, index_value):
        data = context.make_array(array)(context, builder, value).data
        element = builder.gep(data, [context.cast(builder, index_value, index, types.intp)])
        return builder.ptrtoint(element, ir.IntType(64))

    def emit(builder, text, result, operands, constraints):
        # It has its place among the accesses before and behind it: the compiler moves none of them across.
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return builder.call(ir.InlineAsm(kind, text, f"{constraints},~{{memory}}", side_effect=True), operands)

    def store(name: str, order: str) -> Callable:
        def put(typingctx, x, i, value):
            letter = check(name, x, i)
            if not x.mutable:
                raise TypingError(f"{name}: the array must be writable, was {x}")
            if not isinstance(value, types.Number) or typingctx.can_convert(value, x.dtype) is None:
                raise TypingError(f"{name}: the value must be a number that converts to {x.dtype}, was {value}")

            def codegen(context, builder, signature, args):
                where = address(context, builder, x, args[0], i, args[1])
                converted = context.cast(builder, args[2], value, x.dtype)
                text = f"st.{order}.sys.global.u{x.dtype.bitwidth} [$0], $1;"
                emit(builder, text, ir.VoidType(), [where, converted], f"l,{letter}")
                return context.get_dummy_value()

            return types.void(x, i, value), codegen

        put.__name__ = put.__qualname__ = name
        return intrinsic(put)

    def load(name: str, order: str) -> Callable:
        def get(typingctx, x, i):
            letter = check(name, x, i)

            def codegen(context, builder, signature, args):
                where = address(context, builder, x, args[0], i, args[1])
                text = f"ld.{order}.sys.global.u{x.dtype.bitwidth} $0, [$1];"
                return emit(builder, text, context.get_value_type(x.dtype), [where], f"={letter},l")

            return x.dtype(x, i), codegen

        get.__name__ = get.__qualname__ = name
        return intrinsic(get)

    return {name: (store if name.startswith("store") else load)(name, name.split("_")[1]) for name in NAMES}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.system' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
