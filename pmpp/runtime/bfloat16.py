"""bfloat16 in kernels that Numba compiles: conversions to and from float32 that take an instruction or two.

What a bfloat16 is, `pmpp.runtime.dtypes` says.

Numba converts by C++ functions of NVIDIA's header. It compiles the header when a kernel is first launched, which needs
CUDA's headers, and a kernel calls these functions with their arguments in memory unless the linker inlines them.
`install` puts the instructions themselves in their place. The values are the same: rounded to the nearest, ties to
even; a float32 that is too large becomes infinity; NaN becomes the one with the bits 0x7FFF.

Kernels write what Numba's dialect has, ``np.float32(x[i])``, and ``out[i] = value`` for a float32. Arithmetic on two
bfloat16 still goes by way of the header, and so do conversions to and from other types.

Source: PTX ISA, "cvt"; "Alternate floating point data formats".
"""

from __future__ import annotations

import functools
import typing

__all__ = ["install"]

NAN = 0x7FFF


@functools.cache
def install() -> None:
    """Put these conversions in the place of Numba's, for all that it compiles from now on in this process."""
    from numba.cuda import types
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.target_context
    context.refresh()
    ours = {(types.bfloat16, types.float32): _widen, (types.float32, types.bfloat16): _round}
    casts = context._casts
    casts.versions[:] = [(pair, ours.get(pair, convert)) for pair, convert in casts.versions]
    casts._cache.clear()


def _widen(
    context: typing.Any, builder: typing.Any, fromty: typing.Any, toty: typing.Any, value: typing.Any
) -> typing.Any:
    """Its 16 bits, and 16 bits of 0 below them."""
    from llvmlite import ir

    word = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.zext(value, word), word(16)), ir.FloatType())


def _round(
    context: typing.Any, builder: typing.Any, fromty: typing.Any, toty: typing.Any, value: typing.Any
) -> typing.Any:
    """One instruction from compute capability 8.0 on, and five before it."""
    from llvmlite import ir
    from numba.cuda.core import targetconfig

    half, word = ir.IntType(16), ir.IntType(32)
    if targetconfig.ConfigStack().top().compute_capability >= (8, 0):
        convert = ir.InlineAsm(ir.FunctionType(half, [value.type]), "cvt.rn.bf16.f32 $0, $1;", "=h,f")
        return builder.call(convert, [value])
    bits = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(bits, word(16)), word(1))
    # Half of the last place that is kept, less one where that place is even: a tie then goes to the even neighbour.
    rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
    number = builder.fcmp_ordered("==", value, value)
    return builder.select(number, builder.trunc(rounded, half), half(NAN))
