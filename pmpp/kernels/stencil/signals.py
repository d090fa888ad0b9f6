"""Signals between GPUs: a flag in one GPU's memory that another GPU sets, and what it says about other stores.

A GPU that stores into the memory of another one has to say when its stores are there. It sets a flag behind them. The
store of the flag is a *release*: who sees the flag sees all that was stored before. The load of the flag is an
*acquire*: what is loaded after it is not older. Both have *system scope*, since the two sides are different GPUs. An
atomic operation of Numba has the scope of one GPU.

Inside a kernel, on both backends, with ``flags`` a contiguous int32 array of one dimension::

    store_release(flags, i, value)
    value = load_acquire(flags, i)

Source: PTX ISA, "Memory consistency model", and ld and st with .acquire, .release and .sys.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp import cuda
from pmpp.runtime import device

__all__ = ["load_acquire", "numba_intrinsics", "store_release"]  # noqa: F822 - __getattr__ makes two of them


@functools.cache
def numba_intrinsics() -> tuple[Callable, Callable]:
    """``(load_acquire, store_release)`` for the Numba backend. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    word, wide = ir.IntType(32), ir.IntType(64)

    def check(name: str, array: types.Type, index: types.Type) -> None:
        if array != types.Array(types.int32, 1, "C"):
            raise TypingError(f"{name}: the flags must be a contiguous int32 array of one dimension, were {array}")
        if not isinstance(index, types.Integer):
            raise TypingError(f"{name}: the index must be an integer, was {index}")

    def place(context, builder, array, index, args):
        offset = context.cast(builder, args[1], index, types.intp)
        return builder.ptrtoint(builder.gep(context.make_array(array)(context, builder, args[0]).data, [offset]), wide)

    @intrinsic
    def load_acquire(typingctx, flags, i):
        check("load_acquire", flags, i)

        def codegen(context, builder, signature, args):
            form = ir.FunctionType(word, [wide])
            text = "ld.acquire.sys.global.b32 $0, [$1];"
            return builder.asm(form, text, "=r,l,~{memory}", [place(context, builder, flags, i, args)], True)

        return types.int32(flags, i), codegen

    @intrinsic
    def store_release(typingctx, flags, i, value):
        check("store_release", flags, i)
        if not isinstance(value, types.Integer):
            raise TypingError(f"store_release: the value must be an integer, was {value}")

        def codegen(context, builder, signature, args):
            form = ir.FunctionType(ir.VoidType(), [wide, word])
            number = context.cast(builder, args[2], value, types.int32)
            text = "st.release.sys.global.b32 [$0], $1;"
            builder.asm(form, text, "l,r,~{memory}", [place(context, builder, flags, i, args), number], True)
            return context.get_dummy_value()

        return types.void(flags, i, value), codegen

    return load_acquire, store_release


@functools.cache
def twins() -> tuple[Callable, Callable]:
    """The same for the interpreter, which carries out one access after another."""

    @cuda.jit(device=True)
    def load_acquire(flags, i):
        return cuda.atomic.add(flags, i, 0)

    @cuda.jit(device=True)
    def store_release(flags, i, value):
        cuda.threadfence_system()
        cuda.atomic.exch(flags, i, value)

    return load_acquire, store_release


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda.
    if name not in ("load_acquire", "store_release"):
        raise AttributeError(f"module 'pmpp.kernels.stencil.signals' has no attribute {name!r}")
    pair = twins() if device.backend().name == "simt" else numba_intrinsics()
    globals().update(load_acquire=pair[0], store_release=pair[1])
    return globals()[name]
