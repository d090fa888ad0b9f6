"""Products with 2:4 sparsity on tensor cores: of each four neighbours in a row of ``a``, two are stored and multiplied.

The instructions are those of `pmpp.runtime.matrix` with a matrix ``a`` that is twice as wide, half of it zeros that
nobody stores, and a ``b`` that has twice as many rows. A word of metadata says where the stored numbers belong.

Inside a kernel, on both backends::

    c = mma_sp_f16(a, b, c, metadata, 0)    # c += a @ b

===============  =====================  =======  ==============  =======  ==================  =========
name             numbers                ``a``    stored of it    ``b``    a register holds    selector
===============  =====================  =======  ==============  =======  ==================  =========
``mma_sp_f16``   float16                16 x 32  16 x 16         32 x 8   2 numbers           0 or 1
``mma_sp_bf16``  bfloat16               16 x 32  16 x 16         32 x 8   2 numbers           0 or 1
``mma_sp_s8``    int8                   16 x 64  16 x 32         64 x 8   4 numbers           0
===============  =====================  =======  ==============  =======  ==================  =========

- ``a``, ``b`` and ``c`` are tuples of 4 each: uint32, uint32, and float32, or int32 that wraps. The result is a tuple
  like ``c``. `pmpp.simt.fragment` says which rows and columns a register of a lane holds.
- ``metadata`` is a uint32 with 4 bits for each four neighbours: the place of the first stored number in the lower two,
  and that of the second in the upper two. The first must stand before the second. Otherwise a GPU may do anything,
  and the interpreter says so.
- With 16-bit numbers, lane 4 g + 2 s has the metadata of rows g (lower half) and g + 8 (upper half) for columns 0 to
  15, and lane 4 g + 2 s + 1 that for columns 16 to 31, where s is the ``selector``, a literal. What the other lanes
  have is ignored. So one register can have the metadata of two instructions.
- With int8, lane 4 g + t has the metadata of row g + 8 (t % 2) for the 32 columns from 32 (t // 2) on.

All lanes of a warp must execute these instructions together. Anything else is a typing error when the kernel is
compiled, as is a GPU of a compute capability below 8.0. Source: PTX ISA, "Multiply-and-Accumulate Instruction:
mma.sp::ordered_metadata".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

__all__ = ["NAMES", "mma_sp_bf16", "mma_sp_f16", "mma_sp_s8", "numba_intrinsics"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("mma_sp_f16", "mma_sp_bf16", "mma_sp_s8")

_MMA = {
    "mma_sp_f16": ("m16n8k32.row.col.f32.f16.f16.f32", 2),
    "mma_sp_bf16": ("m16n8k32.row.col.f32.bf16.bf16.f32", 2),
    "mma_sp_s8": ("m16n8k64.row.col.s32.s8.s8.s32", 1),
}
_CAPABILITY = (8, 0)


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    def needs(name: str) -> None:
        # Asked when code is made, not when types are found: Numba keeps those, and one process may compile for several.
        found = ConfigStack().top().compute_capability
        if found < _CAPABILITY:
            needed, has = (".".join(map(str, each)) for each in (_CAPABILITY, found))
            raise TypingError(f"{name} needs a GPU of compute capability {needed} or more, and compiles for {has}")

    def check_registers(name: str, argument: str, given: types.Type, kind: types.Type) -> None:
        if not isinstance(given, types.BaseTuple) or len(given) != 4 or any(each != kind for each in given):
            raise TypingError(f"{name}: {argument} must be a tuple of 4 {kind}, was {given}")

    def check_selector(name: str, selector: types.Type, count: int) -> None:
        literal = isinstance(selector, types.IntegerLiteral)
        if not literal or selector.literal_value not in range(count):
            given = selector.literal_value if literal else selector
            wanted = "0" if count == 1 else f"from 0 to {count - 1}"
            raise TypingError(f"{name}: selector must be a literal, {wanted}, was {given}")

    def multiply_add(name: str, shape: str, selectors: int) -> Callable:
        number = types.int32 if name == "mma_sp_s8" else types.float32
        letter = "r" if name == "mma_sp_s8" else "f"

        def mma(typingctx, a, b, c, metadata, selector):
            check_registers(name, "a", a, types.uint32)
            check_registers(name, "b", b, types.uint32)
            check_registers(name, "c", c, number)
            if metadata != types.uint32:
                raise TypingError(f"{name}: metadata must be a uint32, was {metadata}")
            check_selector(name, selector, selectors)
            text = (
                f"mma.sp::ordered_metadata.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, "
                f"{{$8, $9, $10, $11}}, {{$12, $13, $14, $15}}, $16, {selector.literal_value};"
            )

            def codegen(context, builder, signature, args):
                needs(name)
                operands = [part for value in args[:3] for part in cgutils.unpack_tuple(builder, value)]
                operands.append(args[3])
                result = ir.LiteralStructType([context.get_value_type(number)] * 4)
                constraints = ",".join([f"={letter}"] * 4 + ["r"] * 8 + [letter] * 4 + ["r"])
                kind = ir.FunctionType(result, [operand.type for operand in operands])
                code = ir.InlineAsm(kind, text, constraints, side_effect=False)
                registers = builder.call(code, operands, attrs=("convergent",))
                parts = [builder.extract_value(registers, each) for each in range(4)]
                return context.make_tuple(builder, signature.return_type, parts)

            return types.UniTuple(number, 4)(a, b, c, metadata, selector), codegen

        mma.__name__ = mma.__qualname__ = name
        return intrinsic(mma)

    return {name: multiply_add(name, *what) for name, what in _MMA.items()}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.sparse_matrix' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
