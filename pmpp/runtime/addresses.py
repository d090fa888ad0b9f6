"""Arrays by their address: how one kernel works on as many arrays as there are.

A kernel that works on a hundred arrays cannot be given each of them as an argument. It is given a table of addresses,
an array of int64, and makes an array of each where it needs it::

    x = array_at(table[k, 0], table[k, 1], np.float32)      # table[k, 1] elements from the address table[k, 0] on
    x[i] = 2 * x[i]

- ``address`` is what `pmpp.runtime.device.address` says of a device array, and ``size`` is how many elements the kernel
  may use; both are integers, 64-bit once inside. ``dtype`` is a NumPy type such as ``np.float32``, or ``y.dtype``.
- The result is an array of one dimension in C order. It can be indexed, and given to ``load128`` and ``store128``.
- Nobody keeps the memory alive but its owner on the host. The interpreter refuses an address where nothing lies.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

__all__ = ["array_at", "numba_intrinsics"]  # noqa: F822 - __getattr__ makes the one that the linter cannot see

GLOBAL = 1  # the number of NVVM's address space for global memory


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """``array_at`` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.extending import intrinsic

    @intrinsic
    def array_at(typingctx, address, size, dtype):
        for name, value in (("address", address), ("size", size)):
            if not isinstance(value, types.Integer):
                raise TypingError(f"array_at: the {name} must be an integer, was {value}")
        if not isinstance(dtype, types.NumberClass | types.DType):
            raise TypingError(f"array_at: the dtype must be a type of numbers such as np.float32, was {dtype}")
        array = types.Array(dtype.dtype if isinstance(dtype, types.DType) else dtype.instance_type, 1, "C")

        def codegen(context, builder, signature, args):
            where, extent = (
                context.cast(builder, value, kind, types.intp)
                for value, kind in zip(args[:2], (address, size), strict=True)
            )
            element = context.get_data_type(array.dtype)
            # Said to be in global memory, so that the compiler emits ld.global and not a load that has to find out.
            pointer = builder.inttoptr(where, element.as_pointer(GLOBAL))
            pointer = builder.addrspacecast(pointer, element.as_pointer())
            made = context.make_array(array)(context, builder)
            width = context.get_abi_sizeof(element)
            context.populate_array(
                made, data=pointer, shape=[extent], strides=[ir.Constant(where.type, width)], itemsize=width,
                meminfo=None,
            )  # fmt: skip
            return made._getvalue()

        return array(address, size, dtype), codegen

    return {"array_at": array_at}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twin and must not need Numba.
    if name != "array_at":
        raise AttributeError(f"module 'pmpp.runtime.addresses' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = chosen.cuda.array_at if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
