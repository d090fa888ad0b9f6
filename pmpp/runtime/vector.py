"""128-bit access: one instruction that moves four float32, or two float64, between memory and registers.

Numba turns ``x[i]`` into one load an element, and never merges neighbours: it cannot know that the address is a
multiple of 16. ``load128`` and ``store128`` promise that, and emit ``ld.global.v4.f32`` and its kin. A warp then moves
512 bytes an instruction, not 128, which is what it takes to keep the memory of a large GPU busy.

Inside a kernel, on both backends::

    a, b, c, d = load128(x, 4 * i)          # x[4i], x[4i + 1], x[4i + 2], x[4i + 3]
    store128(out, 4 * i, (a, b, c, d))

- ``x`` is a global or a shared array of any rank, contiguous in C or F order. Its dtype is float32, int32 or uint32
  (4 values at a time), or float64 or int64 (2 values).
- ``i`` is an integer element index into the flat storage, 64-bit once inside. The address of ``x`` plus ``i`` elements
  must be a multiple of 16 bytes: a GPU answers any other with an error that ends the process's use of the device.
- ``values`` is a tuple; each value is converted to ``x``'s dtype as in ``x[i] = value``.

Anything else is a typing error when the kernel is compiled. Source: PTX ISA, "Vectors" in ld and st.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.runtime import device

# __getattr__ makes the two that the linter cannot see.
__all__ = ["WIDTH", "load128", "numba_intrinsics", "store128", "width_of"]  # noqa: F822

# dtype name -> how many of its elements fill 16 bytes
WIDTH = {"float32": 4, "int32": 4, "uint32": 4, "float64": 2, "int64": 2}
_WIDTH = {np.dtype(name): width for name, width in WIDTH.items()}


def width_of(dtype: np.dtype) -> int:
    """How many elements a vector of 16 bytes has: `WIDTH`, for a dtype. NumPy takes long to say a dtype's name.

    >>> width_of(np.dtype(np.float64))
    2
    """
    return _WIDTH[dtype]


@functools.cache
def numba_intrinsics() -> tuple[Callable, Callable]:
    """``(load128, store128)`` for the Numba backend. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    def checked_width(name: str, array: types.Type, index: types.Type) -> int:
        if not isinstance(array, types.Array):
            raise TypingError(f"{name}: the first argument must be an array, was {array}")
        if str(array.dtype) not in WIDTH:
            raise TypingError(f"{name}: the array's dtype must be one of {', '.join(WIDTH)}, was {array.dtype}")
        if array.layout not in "CF":
            raise TypingError(f"{name}: the array must be contiguous (C or F order), was {array}")
        if not isinstance(index, types.Integer):
            raise TypingError(f"{name}: the index must be one integer, an element index, was {index}")
        return WIDTH[str(array.dtype)]

    def vector_pointer(context, builder, array, array_value, index, index_value, width):
        offset = context.cast(builder, index_value, index, types.intp)
        data = context.make_array(array)(context, builder, array_value).data
        element = builder.gep(data, [offset])
        vector = ir.VectorType(context.get_data_type(array.dtype), width)
        return builder.bitcast(element, vector.as_pointer(element.type.addrspace))

    @intrinsic
    def load128(typingctx, x, i):
        width = checked_width("load128", x, i)

        def codegen(context, builder, signature, args):
            vector = builder.load(vector_pointer(context, builder, x, args[0], i, args[1], width), align=16)
            lanes = [builder.extract_element(vector, ir.Constant(ir.IntType(32), lane)) for lane in range(width)]
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
            vector = ir.Constant(ir.VectorType(context.get_data_type(x.dtype), width), ir.Undefined)
            for lane, value in enumerate(cgutils.unpack_tuple(builder, args[2], width)):
                converted = context.cast(builder, value, values[lane], x.dtype)
                vector = builder.insert_element(vector, converted, ir.Constant(ir.IntType(32), lane))
            builder.store(vector, pointer, align=16)
            return context.get_dummy_value()

        return types.void(x, i, values), codegen

    return load128, store128


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in ("load128", "store128"):
        raise AttributeError(f"module 'pmpp.runtime.vector' has no attribute {name!r}")
    chosen = device.backend()
    pair = (chosen.cuda.load128, chosen.cuda.store128) if chosen.name == "simt" else numba_intrinsics()
    globals().update(load128=pair[0], store128=pair[1])
    return globals()[name]
