"""Asynchronous copies with hints to the L2 cache, for what is read once and in short pieces.

Inside a kernel, on both backends::

    copy_async_once(shared, i, x, j, count)

- ``copy_async_once`` is ``copy_async`` of `pmpp.runtime.matrix`, with the same arguments, and waited for in the same
  way. What the L2 cache lacks it fetches from memory with the rest of its 128 bytes. That pays if a warp copies 64
  bytes of a row, and the next 64 soon after. And it is to drop these lines before all others: they are not read again.
  The result is the same, and so the interpreter has one function for both. Until the thread has waited, nobody may
  write to that part of ``x``: the copy may not have read it.

Source: PTX ISA, "cp.async", level::prefetch_size and cache-policy; "createpolicy", L2::evict_first.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

__all__ = ["NAMES", "copy_async_once", "numba_intrinsics"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("copy_async_once",)
_BYTES = {"int8": 1, "uint8": 1, "float16": 2, "int16": 2, "uint16": 2, "float32": 4, "int32": 4, "uint32": 4}
_SHARED = 3  # the number of NVVM's address space


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    word, wide = ir.IntType(32), ir.IntType(64)

    def data_of(context, builder, array, value):
        return context.make_array(array)(context, builder, value).data

    @intrinsic  # its own name is that of the interpreter's twin, which is found by it
    def copy_async(typingctx, shared, i, x, j, count):
        for argument, given in (("shared", shared), ("x", x)):
            if not isinstance(given, types.Array) or str(given.dtype) not in _BYTES or given.layout not in "CF":
                raise TypingError(f"copy_async_once: {argument} must be a contiguous array of numbers, was {given}")
        if shared.dtype != x.dtype:
            raise TypingError(f"copy_async_once: shared and x must have one dtype, were {shared.dtype} and {x.dtype}")
        for argument, given in (("i", i), ("j", j), ("count", count)):
            if not isinstance(given, types.Integer):
                raise TypingError(f"copy_async_once: {argument} must be an integer, was {given}")

        def codegen(context, builder, signature, args):
            found = ConfigStack().top().compute_capability
            if tuple(found[:2]) < (8, 0):
                has = ".".join(map(str, found))
                raise TypingError(f"copy_async_once needs compute capability 8.0, and compiles for {has}")
            size = ir.Constant(word, _BYTES[str(x.dtype)])
            target = data_of(context, builder, shared, args[0])
            target = builder.addrspacecast(target, target.type.pointee.as_pointer(_SHARED))
            target = builder.trunc(builder.ptrtoint(target, wide), word)
            target = builder.add(target, builder.mul(context.cast(builder, args[1], i, types.uint32), size))
            source = data_of(context, builder, x, args[2])
            source = builder.ptrtoint(builder.gep(source, [context.cast(builder, args[3], j, types.intp)]), wide)
            copied = builder.mul(context.cast(builder, args[4], count, types.int32), size)
            kind = ir.FunctionType(ir.VoidType(), [word, wide, word])
            text = (  # the policy is made where it is used: a kernel has no other place for it
                "{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0; "
                "cp.async.cg.shared.global.L2::cache_hint.L2::128B [$0], [$1], 16, $2, once; }"
            )
            code = ir.InlineAsm(kind, text, "r,l,r,~{memory}", side_effect=True)
            builder.call(code, [target, source, copied], attrs=("convergent",))
            return context.get_dummy_value()

        return types.void(shared, i, x, j, count), codegen

    return {"copy_async_once": copy_async}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.copies' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = chosen.cuda.copy_async if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
