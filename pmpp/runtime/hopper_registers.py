"""Hopper's products of operands that lie row by row, and of one in registers; and who has how many registers.

Attention multiplies twice. The first product is of queries and keys, and both lie in shared memory row by row: a key is
a *column* of the second operand. The second product is of weights and values, and the weights are in registers: they
were made of the sums of the first product. Inside a kernel, on both backends::

    wgmma_fence()
    scores = wgmma_f16_first(tile_descriptor(q, i, 0), tile_descriptor(k, j, 0), scores)
    scores = wgmma_f16_rows(tile_descriptor(q, i + 16, 0), tile_descriptor(k, j + 16, 0), scores)
    wgmma_commit()
    scores = wgmma_wait(0, scores)
    ...                                                       # weights: uint32, of two neighbouring scores each
    wgmma_fence()
    sums = wgmma_f16_kept(weights, tile_descriptor(v, j, apart), sums)

- ``wgmma_f16_rows(a, b, sums)`` and ``wgmma_bf16_rows(a, b, sums)`` are ``wgmma_f16`` and ``wgmma_bf16`` of
  `pmpp.runtime.hopper`, but a row of ``b`` in shared memory is a column of the matrix: n rows that lie like those of
  ``a``, of which a product takes 32 bytes each. ``apart`` is 0, and + 16 is the next 16 of k.
- ``wgmma_f16_first(a, b, like)`` and ``wgmma_bf16_first`` are the same, without sums to add to: the result is ``a @ b``
  alone. ``like`` is a tuple of as many float32 as the result has, and nobody reads it.
- ``wgmma_f16_kept(a, b, sums)`` and ``wgmma_bf16_kept`` have ``a`` in registers, a tuple of 4 uint32 of two numbers
  each. They are those of ``mma_f16``, the 16 rows of each warp being 16 of the 64 rows of ``a``: a lane holds of ``a``
  what it holds of 16 columns of sums. ``b`` lies as for ``wgmma_f16``.

All of them start a product and do not wait for it, as those of `pmpp.runtime.hopper` do, and are used with the same
fence, commit and wait. What stands in registers of ``a`` is kept by the compiler until it is no longer read.

A kernel is compiled for as many registers a thread as fit for all threads of a block. A warp that only asks for copies
needs few of them, and its warpgroup can leave the rest to the others:

- ``fewer_registers(n)``: the four warps of a warpgroup go on with n registers a thread, and release the others.
- ``more_registers(n)``: they wait until as many are free, and go on with n. All four warps execute either together.
  n is a literal, a multiple of 8 from 24 to 256. The kernel needs ``launch_bounds``, and its block whole warpgroups.

A GPU of another compute capability than 9.0 has none of them. Source: PTX ISA, "wgmma.mma_async" and "setmaxnreg".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device
from pmpp.runtime.hopper import CAPABILITY, COLUMNS

__all__ = [  # noqa: F822
    "NAMES", "fewer_registers", "more_registers", "numba_intrinsics", "wgmma_bf16_first", "wgmma_bf16_kept",
    "wgmma_bf16_rows", "wgmma_f16_first", "wgmma_f16_kept", "wgmma_f16_rows",
]  # fmt: skip

PRODUCTS = (
    "wgmma_f16_first", "wgmma_f16_rows", "wgmma_f16_kept", "wgmma_bf16_first", "wgmma_bf16_rows", "wgmma_bf16_kept",
)  # fmt: skip
#: What this module gives a kernel.
NAMES = (*PRODUCTS, "fewer_registers", "more_registers")
REGISTERS = range(24, 257, 8)  # that a thread can have


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    single, void = ir.FloatType(), ir.VoidType()

    def needs(name: str) -> None:
        found = ConfigStack().top().compute_capability
        if tuple(found[:2]) != CAPABILITY:
            has = ".".join(map(str, found))
            raise TypingError(f"{name} needs a GPU of compute capability 9.0, and compiles for {has}")

    def check_descriptor(name, argument, given):
        if given != types.uint64:
            raise TypingError(f"{name}: {argument} must be a descriptor (uint64), was {given}")

    def check_sums(name, argument, given):
        if not isinstance(given, types.UniTuple) or given.dtype != types.float32 or given.count not in COLUMNS:
            raise TypingError(f"{name}: {argument} must be a tuple of 32, 64, 96 or 128 float32, was {given}")

    def check_registers(name, a):
        if not isinstance(a, types.BaseTuple) or len(a) != 4 or any(each != types.uint32 for each in a):
            raise TypingError(f"{name}: a must be a tuple of 4 uint32, was {a}")

    def multiply(name: str) -> Callable:
        kind, form = name.removeprefix("wgmma_").split("_")
        last = "c" if form != "first" else "like"

        def wgmma(typingctx, a, b, c):
            (check_registers(name, a) if form == "kept" else check_descriptor(name, "a", a))
            check_descriptor(name, "b", b)
            check_sums(name, last, c)

            def codegen(context, builder, signature, args):
                needs(name)
                count = c.count
                before = [] if form == "first" else cgutils.unpack_tuple(builder, args[2])
                left = cgutils.unpack_tuple(builder, args[0]) if form == "kept" else [args[0]]
                at = count + len(before)  # the first operand that is no sum
                own = f"{{{', '.join(f'${at + k}' for k in range(4))}}}" if form == "kept" else f"${at}"
                # Predicate (0: nothing to add to), signs, then what is transposed: b alone where a is in registers.
                rest = "p, 1, 1, 1" if form == "kept" else "p, 1, 1, 0, 0"
                text = (
                    f"{{ .reg .pred p; setp.ne.b32 p, {int(form != 'first')}, 0; "
                    f"wgmma.mma_async.sync.aligned.m64n{COLUMNS[count]}k16.f32.{kind}.{kind} "
                    f"{{{', '.join(f'${k}' for k in range(count))}}}, {own}, ${at + len(left)}, {rest}; }}"
                )
                constraints = ["=f"] * count + [str(k) for k in range(len(before))]
                constraints += (["r"] * 4 if form == "kept" else ["l"]) + ["l", "~{memory}"]
                operands = [*before, *left, args[1]]
                result = ir.LiteralStructType([single] * count)
                function = ir.FunctionType(result, [operand.type for operand in operands])
                assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
                found = builder.call(assembly, operands, attrs=("convergent",))
                return context.make_tuple(builder, c, [builder.extract_value(found, k) for k in range(count)])

            return c(a, b, c), codegen

        wgmma.__name__ = wgmma.__qualname__ = name
        return intrinsic(wgmma)

    def registers(name: str, change: str) -> Callable:
        def instruction(typingctx, n):
            if not isinstance(n, types.IntegerLiteral) or n.literal_value not in REGISTERS:
                given = n.literal_value if isinstance(n, types.IntegerLiteral) else n
                raise TypingError(f"{name}: n must be a literal, a multiple of 8 from 24 to 256, was {given}")

            def codegen(context, builder, signature, args):
                needs(name)
                text = f"setmaxnreg.{change}.sync.aligned.u32 {n.literal_value};"
                assembly = ir.InlineAsm(ir.FunctionType(void, []), text, "~{memory}", side_effect=True)
                builder.call(assembly, [], attrs=("convergent",))
                return context.get_dummy_value()

            return types.void(n), codegen

        instruction.__name__ = instruction.__qualname__ = name
        return intrinsic(instruction)

    return {
        **{name: multiply(name) for name in PRODUCTS},
        "fewer_registers": registers("fewer_registers", "dec"),
        "more_registers": registers("more_registers", "inc"),
    }


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.hopper_registers' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
