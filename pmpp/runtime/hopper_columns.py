"""Hopper's products of 16 bits with a first operand that lies column by column, as the gradient of weights has it.

The gradient of a layer's weights is ``dy.T @ x``: both matrices are there row by row, and the first is transposed. The
tensor cores take it as it lies. Inside a kernel, on both backends::

    wgmma_fence()
    sums = wgmma_f16_columns(tile_descriptor(dy, i, 0), tile_descriptor(x, j, apart), sums)
    wgmma_commit()
    sums = wgmma_wait(0, sums)

- ``wgmma_f16_columns(a, b, sums)`` and ``wgmma_bf16_columns`` are ``wgmma_f16`` and ``wgmma_bf16`` of
  `pmpp.runtime.hopper`, but a row of ``a`` in shared memory is a column of the matrix: 16 rows of 64 numbers, 128 bytes
  each, that lie like the first panel of ``b``. + 16 * 64 elements is the next 16 of k.

Source: PTX ISA, "wgmma.mma_async", imm-trans-a.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device
from pmpp.runtime.hopper import CAPABILITY, COLUMNS

__all__ = ["NAMES", "numba_intrinsics", "wgmma_bf16_columns", "wgmma_f16_columns"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("wgmma_f16_columns", "wgmma_bf16_columns")


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    def multiply(name: str) -> Callable:
        kind = name.split("_")[1]

        def wgmma(typingctx, a, b, c):
            for argument, given in (("a", a), ("b", b)):
                if given != types.uint64:
                    raise TypingError(f"{name}: {argument} must be a descriptor (uint64), was {given}")
            if not isinstance(c, types.UniTuple) or c.dtype != types.float32 or c.count not in COLUMNS:
                raise TypingError(f"{name}: c must be a tuple of 32, 64, 96 or 128 float32, was {c}")

            def codegen(context, builder, signature, args):
                found = ConfigStack().top().compute_capability
                if tuple(found[:2]) != CAPABILITY:
                    has = ".".join(map(str, found))
                    raise TypingError(f"{name} needs a GPU of compute capability 9.0, and compiles for {has}")
                count = c.count
                # Predicate (there is something to add to), signs, and both operands transposed.
                text = (
                    "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
                    f"wgmma.mma_async.sync.aligned.m64n{COLUMNS[count]}k16.f32.{kind}.{kind} "
                    f"{{{', '.join(f'${k}' for k in range(count))}}}, ${2 * count}, ${2 * count + 1}, p, 1, 1, 1, 1; }}"
                )
                constraints = ["=f"] * count + [str(k) for k in range(count)] + ["l", "l", "~{memory}"]
                operands = [*cgutils.unpack_tuple(builder, args[2]), args[0], args[1]]
                result = ir.LiteralStructType([ir.FloatType()] * count)
                function = ir.FunctionType(result, [operand.type for operand in operands])
                assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
                made = builder.call(assembly, operands, attrs=("convergent",))
                return context.make_tuple(builder, c, [builder.extract_value(made, k) for k in range(count)])

            return c(a, b, c), codegen

        wgmma.__name__ = wgmma.__qualname__ = name
        return intrinsic(wgmma)

    return {name: multiply(name) for name in NAMES}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.hopper_columns' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
