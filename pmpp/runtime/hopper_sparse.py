"""Hopper's products with 2:4 sparsity: of each four neighbours in a row of the first operand two are stored.

They are `wgmma_f16` and `wgmma_bf16` of `pmpp.runtime.hopper` with an ``a`` that is twice as wide, half of it zeros
that nobody stores, and a ``b`` that has twice as many rows. Inside a kernel, on both backends::

    wgmma_fence()
    sums = wgmma_sp_f16(tile_descriptor(shared, i, 0), tile_descriptor(shared, j, apart), sums, metadata, 0)
    wgmma_commit()
    sums = wgmma_wait(0, sums)

- ``wgmma_sp_f16(a, b, sums, metadata, selector)`` and ``wgmma_sp_bf16`` start a product ``sums += a @ b``, where
  ``a`` is 64 x 32, of which 64 x 16 are stored, ``b`` is 32 x n, and n is 64, 128, 192 or 256. ``a`` lies like that of
  `wgmma_f16`: + 16 is the next 16 stored numbers, 32 columns further. ``b`` does, too: + 32 * 64 is the next 32 of k.
- ``metadata`` is a uint32 that says where the stored numbers belong, as for `pmpp.runtime.sparse_matrix.mma_sp_f16`:
  4 bits for each four neighbours, the place of the first stored number in the lower two bits, and that of the second in
  the upper two. The first must stand before the second. Otherwise a GPU may do anything, and the interpreter says so.
- Each warp has the metadata of its own 16 rows. Lane 4 g + 2 s + h has that of row g (lower half) and row g + 8 (upper
  half) for the columns from 16 h on, where s is the ``selector``, a literal: 0 or 1. What the other lanes have is
  ignored. So one register can have the metadata of two products, of 64 columns.
- Let all metadata be in registers before ``wgmma_fence()``, and no product of this warp be under way when it is loaded.
  Otherwise the results are right, but NVIDIA's compiler makes each product wait for the one before, and says so.

They start a product and do not wait for it: fence, commit and wait are those of `pmpp.runtime.hopper`. A GPU of another
compute capability than 9.0 has none of them. Source: PTX ISA, "wgmma.mma_async.sp", and "Matrix Fragments for sparse
wgmma.mma_async.m64nNk32".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device
from pmpp.runtime.hopper import CAPABILITY, COLUMNS

__all__ = ["NAMES", "numba_intrinsics", "wgmma_sp_bf16", "wgmma_sp_f16"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("wgmma_sp_f16", "wgmma_sp_bf16")
SELECTORS = 2


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    def check_selector(name: str, selector: types.Type) -> None:
        literal = isinstance(selector, types.IntegerLiteral)
        if not literal or selector.literal_value not in range(SELECTORS):
            given = selector.literal_value if literal else selector
            raise TypingError(f"{name}: selector must be a literal, from 0 to {SELECTORS - 1}, was {given}")

    def multiply(name: str) -> Callable:
        kind = name.rpartition("_")[2]

        def wgmma(typingctx, a, b, c, metadata, selector):
            for argument, given in (("a", a), ("b", b)):
                if given != types.uint64:
                    raise TypingError(f"{name}: {argument} must be a descriptor (uint64), was {given}")
            if not isinstance(c, types.UniTuple) or c.dtype != types.float32 or c.count not in COLUMNS:
                raise TypingError(f"{name}: c must be a tuple of 32, 64, 96 or 128 float32, was {c}")
            if metadata != types.uint32:
                raise TypingError(f"{name}: metadata must be a uint32, was {metadata}")
            check_selector(name, selector)

            def codegen(context, builder, signature, args):
                found = ConfigStack().top().compute_capability
                if tuple(found[:2]) != CAPABILITY:
                    has = ".".join(map(str, found))
                    raise TypingError(f"{name} needs a GPU of compute capability 9.0, and compiles for {has}")
                count = c.count
                first = 2 * count  # of the operands that are no sums
                # Predicate (there is something to add to), signs, and what is transposed: b alone.
                text = (
                    "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
                    f"wgmma.mma_async.sp.sync.aligned.m64n{COLUMNS[count]}k32.f32.{kind}.{kind} "
                    f"{{{', '.join(f'${k}' for k in range(count))}}}, ${first}, ${first + 1}, ${first + 2}, "
                    f"{selector.literal_value}, p, 1, 1, 0, 1; }}"
                )
                constraints = ["=f"] * count + [str(k) for k in range(count)] + ["l", "l", "r", "~{memory}"]
                operands = [*cgutils.unpack_tuple(builder, args[2]), args[0], args[1], args[3]]
                result = ir.LiteralStructType([ir.FloatType()] * count)
                function = ir.FunctionType(result, [operand.type for operand in operands])
                assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
                made = builder.call(assembly, operands, attrs=("convergent",))
                return context.make_tuple(builder, c, [builder.extract_value(made, k) for k in range(count)])

            return c(a, b, c, metadata, selector), codegen

        wgmma.__name__ = wgmma.__qualname__ = name
        return intrinsic(wgmma)

    return {name: multiply(name) for name in NAMES}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.hopper_sparse' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
