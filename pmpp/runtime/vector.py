"""128-bit access: one instruction that moves four float32, two float64 or eight float16 between memory and registers.

Numba turns ``x[i]`` into one load an element, and never merges neighbours: it cannot know that the address is a
multiple of 16. ``load128`` and ``store128`` promise that, and emit ``ld.global.v4.f32`` and its kin. A warp then moves
512 bytes an instruction, not 128, which is what it takes to keep the memory of a large GPU busy.

Inside a kernel, on both backends::

    a, b, c, d = load128(x, 4 * i)          # x[4i], x[4i + 1], x[4i + 2], x[4i + 3]
    store128(out, 4 * i, (a, b, c, d))

- ``x`` is a global or a shared array of any rank, contiguous in C or F order. Its dtype is float32, int32 or uint32
  (4 values at a time), float64 or int64 (2 values), or float16 or bfloat16 (8 values).
- ``i`` is an integer element index into the flat storage, 64-bit once inside. The address of ``x`` plus ``i`` elements
  must be a multiple of 16 bytes: a GPU answers any other with an error that ends the process's use of the device.
- ``values`` is a tuple; each value is converted to ``x``'s dtype as in ``x[i] = value``.
- ``width128(x)`` is how many elements of ``x`` that are: 8, 4 or 2, a constant in the compiled kernel.

Kernels store 16 bits and compute in 32::

    total = widened(x[i]) + widened(y[i])   # float32 for float16 and bfloat16; for all other types as it is
    out[i] = total                          # rounded once, to the nearest, ties to even

- ``widened`` takes a number or a tuple of numbers, such as ``load128`` returns. A float16 or bfloat16 becomes a
  float32; another number stays what it is, so one kernel serves all dtypes, and the code of float32 does not change.

Anything else is a typing error when the kernel is compiled. Source: PTX ISA, "Vectors" in ld and st; "cvt".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.runtime import device, dtypes

# __getattr__ makes the four that the linter cannot see.
__all__ = ["NAMES", "WIDTH", "load128", "numba_intrinsics", "store128", "widened", "width128", "width_of"]  # noqa: F822

NAMES = ("load128", "store128", "widened", "width128")
# dtype name -> how many of its elements fill 16 bytes
WIDTH = {"float32": 4, "int32": 4, "uint32": 4, "float64": 2, "int64": 2, "float16": 8, "bfloat16": 8}
_WIDTH = {dtype: 16 // dtype.itemsize for dtype in dtypes.known(WIDTH)}


def width_of(dtype: np.dtype) -> int:
    """How many elements a vector of 16 bytes has: `WIDTH`, for a dtype. NumPy takes long to say a dtype's name.

    >>> width_of(np.dtype(np.float64))
    2
    """
    return _WIDTH[dtype]


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """The instructions for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    short, word = ir.IntType(16), ir.IntType(32)

    def checked_width(name: str, array: types.Type, index: types.Type = types.intp) -> int:
        if not isinstance(array, types.Array):
            raise TypingError(f"{name}: the first argument must be an array, was {array}")
        if plain(array.dtype) not in WIDTH:
            raise TypingError(f"{name}: the array's dtype must be one of {', '.join(WIDTH)}, was {array.dtype}")
        if array.layout not in "CF":
            raise TypingError(f"{name}: the array must be contiguous (C or F order), was {array}")
        if not isinstance(index, types.Integer):
            raise TypingError(f"{name}: the index must be one integer, an element index, was {index}")
        return WIDTH[plain(array.dtype)]

    def plain(dtype: types.Type) -> str:
        return "bfloat16" if dtype == types.bfloat16 else str(dtype)

    def vector_pointer(context, builder, array, array_value, index, index_value, width):
        offset = context.cast(builder, index_value, index, types.intp)
        data = context.make_array(array)(context, builder, array_value).data
        element = builder.gep(data, [offset])
        # Of eight elements of 16 bits the compiler makes two accesses, so they travel as four words.
        vector = ir.VectorType(word, 4) if width == 8 else ir.VectorType(context.get_data_type(array.dtype), width)
        return builder.bitcast(element, vector.as_pointer(element.type.addrspace))

    @intrinsic
    def load128(typingctx, x, i):
        width = checked_width("load128", x, i)

        def codegen(context, builder, signature, args):
            vector = builder.load(vector_pointer(context, builder, x, args[0], i, args[1], width), align=16)
            lanes = [builder.extract_element(vector, word(lane)) for lane in range(vector.type.count)]
            if width == 8:  # Numba has float16 and bfloat16 as integers of 16 bits
                lanes = [builder.trunc(half, short) for lane in lanes for half in (lane, builder.lshr(lane, word(16)))]
            return context.make_tuple(builder, signature.return_type, lanes)

        return types.UniTuple(x.dtype, width)(x, i), codegen

    @intrinsic
    def store128(typingctx, x, i, values):
        width = checked_width("store128", x, i)
        if not x.mutable:
            raise TypingError(f"store128: the array must be writable, was {x}")
        if not isinstance(values, types.BaseTuple) or len(values) != width:
            raise TypingError(f"store128: the values must be a tuple of {width} for {x.dtype}, was {values}")
        for value in values:
            if not isinstance(value, types.Number) or typingctx.can_convert(value, x.dtype) is None:
                raise TypingError(f"store128: each value must be a number that converts to {x.dtype}, was {value}")

        def codegen(context, builder, signature, args):
            pointer = vector_pointer(context, builder, x, args[0], i, args[1], width)
            lanes = [
                context.cast(builder, value, kind, x.dtype)
                for value, kind in zip(cgutils.unpack_tuple(builder, args[2], width), values, strict=True)
            ]
            if width == 8:
                lows, highs = ([builder.zext(lane, word) for lane in lanes[first::2]] for first in (0, 1))
                lanes = [builder.or_(low, builder.shl(high, word(16))) for low, high in zip(lows, highs, strict=True)]
            vector = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
            for place, lane in enumerate(lanes):
                vector = builder.insert_element(vector, lane, word(place))
            builder.store(vector, pointer, align=16)
            return context.get_dummy_value()

        return types.void(x, i, values), codegen

    def wide(kind: types.Type) -> types.Type:
        if not isinstance(kind, types.Number | types.Boolean):
            raise TypingError(f"widened: the value must be a number or a tuple of numbers, was {kind}")
        return types.float32 if kind in (types.float16, types.bfloat16) else kind

    @intrinsic
    def widened(typingctx, value):
        several = isinstance(value, types.BaseTuple)
        kinds = [wide(kind) for kind in value] if several else wide(value)
        result = types.BaseTuple.from_types(kinds) if several else kinds

        def codegen(context, builder, signature, args):
            if not several:
                return context.cast(builder, args[0], value, result)
            parts = cgutils.unpack_tuple(builder, args[0], len(kinds))
            parts = [context.cast(builder, *each) for each in zip(parts, value, kinds, strict=True)]
            return context.make_tuple(builder, result, parts)

        return result(value), codegen

    @intrinsic
    def width128(typingctx, x):
        width = checked_width("width128", x)

        def codegen(context, builder, signature, args):
            return context.get_constant(types.int64, width)

        return types.int64(x), codegen

    return {"load128": load128, "store128": store128, "widened": widened, "width128": width128}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.vector' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
