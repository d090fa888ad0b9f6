"""Dot products of 16-bit and 8-bit numbers: two products and two additions in one instruction.

A weight of 9 bits and a byte are multiplied in a register of 32 bits as if both had 32. ``dp2a`` multiplies two pairs
of them at once, takes the bytes from where they lie in a word, and adds both products to a third number.

Inside a kernel, on both backends::

    total = dot_low(weights, values, total)     # total + w0 * v0 + w1 * v1
    total = dot_high(weights, values, total)    # total + w0 * v2 + w1 * v3

- ``weights`` is a word of two unsigned 16-bit numbers, w0 in its lower half and w1 in its upper half.
- ``values`` is a word of four bytes, v0 to v3, of which v0 is the lowest. Each is from 0 to 255.
- ``total`` is a uint32, and so is the result, which keeps the lower 32 bits of the sum.

All three are integers of at most 32 bits, of which the 32 bits count and not the sign. Anything else is a typing error
when the kernel is compiled. GPUs have the instruction from compute capability 6.1 on, and CUDA 13 compiles for none
that lacks it. Source: PTX ISA, "dp2a".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

__all__ = ["NAMES", "dot_high", "dot_low", "numba_intrinsics"]  # noqa: F822 - __getattr__ makes those two

#: What this module gives a kernel.
NAMES = ("dot_low", "dot_high")


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    word = ir.IntType(32)

    def made(name: str, half: str) -> Callable:
        def dot(typingctx, weights, values, total):
            for argument, given in (("weights", weights), ("values", values), ("total", total)):
                if not isinstance(given, types.Integer) or given.bitwidth > 32:
                    raise TypingError(f"{name}: {argument} must be an integer of at most 32 bits, was {given}")

            def codegen(context, builder, signature, args):
                given = zip(args, signature.args, strict=True)
                words = [context.cast(builder, one, kind, types.uint32) for one, kind in given]
                text = f"dp2a.{half}.u32.u32 $0, $1, $2, $3;"
                code = ir.InlineAsm(ir.FunctionType(word, [word] * 3), text, "=r,r,r,r", side_effect=False)
                return builder.call(code, words)

            return types.uint32(weights, values, total), codegen

        dot.__name__ = dot.__qualname__ = name
        return intrinsic(dot)

    return {"dot_low": made("dot_low", "lo"), "dot_high": made("dot_high", "hi")}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.dots' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
