"""Tensor maps where a launch puts them: among the parameters of a kernel.

`pmpp.runtime.hopper.place_map` copies a map into global memory, and the copy engine has to look there anew. Every block
does that, before its first tile is on its way. But a kernel's parameters lie in memory, too, and the engine can read a
map there. Inside a kernel, on both backends::

    @cuda.jit
    def kernel(words, ...):                        # the first parameter: launch_words(map of a, map of b)
        maps = maps_of_launch(words)
        bulk_tile(shared, i, maps, 0, row, column, barriers, b)            # by the first map
        bulk_tile(shared, i, maps, 16, row, column, barriers, b)           # by the second one

- ``maps_of_launch(words)`` gives an array of uint64 with the words of all maps, for `bulk_tile` and `bulk_store`. It
  costs nothing. ``words`` is the first parameter of the kernel, as `launch_words` makes it. The call stands in the
  kernel itself, not in a device function: these have other parameters. Nothing is stored into the array.

- ``soon(maps, j)`` says that the map at ``maps[j]`` will be needed: its first use does not wait for memory then.

A map must begin at a multiple of 64 bytes. The parameters of a kernel for compute capability 9.0 begin 16 bytes behind
one, at 0x210 of a bank of constants, so that 48 bytes come before the first map.

Source: PTX ISA, "Kernel Function Parameters", and "cvta"; CUDA C++ programming guide, on maps that are ``const
__grid_constant__`` parameters.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.runtime import device
from pmpp.runtime.hopper import CAPABILITY, WORDS

__all__ = ["NAMES", "launch_words", "maps_of_launch", "numba_intrinsics", "soon"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("maps_of_launch", "soon")
BEFORE = 6  # words before the first map


def launch_words(*maps: tuple) -> tuple:
    """The words of tensor maps as the first parameter of a kernel, in which the first map begins where it must.

    >>> len(launch_words((np.uint64(1),) * 16, (np.uint64(2),) * 16))
    38
    """
    return sum(maps, (np.uint64(0),) * BEFORE)


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic
    from numba.cuda.np.arrayobj import make_array, populate_array

    long = ir.IntType(64)

    @intrinsic
    def maps_of_launch(typingctx, words):
        count = words.count - BEFORE if isinstance(words, types.UniTuple) and words.dtype == types.uint64 else 0
        if count <= 0 or count % WORDS:
            raise TypingError(f"maps_of_launch: words must be what launch_words gives, tuples of uint64, was {words}")
        kind = types.Array(types.uint64, 1, "C", readonly=True)

        def codegen(context, builder, signature, args):
            found = ConfigStack().top().compute_capability
            if tuple(found[:2]) != CAPABILITY:
                has = ".".join(map(str, found))
                raise TypingError(f"maps_of_launch needs a GPU of compute capability 9.0, and compiles for {has}")
            # The parameters follow one another in the order of the function's arguments.
            text = f"{{ .reg .b64 p; mov.b64 p, {builder.function.name}_param_0; cvta.param.u64 $0, p; }}"
            place = builder.call(ir.InlineAsm(ir.FunctionType(long, []), text, "=l", side_effect=False), [])
            array = make_array(kind)(context, builder)
            size, itemsize = ir.Constant(long, count), ir.Constant(long, 8)
            data = builder.inttoptr(builder.add(place, ir.Constant(long, 8 * BEFORE)), array.data.type)
            populate_array(array, data=data, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None)
            return array._getvalue()

        return kind(words), codegen

    @intrinsic
    def soon(typingctx, maps, j):
        if not isinstance(maps, types.Array) or maps.dtype != types.uint64 or not isinstance(j, types.Integer):
            raise TypingError(f"soon: maps and j must be an array of uint64 and an integer, were {maps} and {j}")

        def codegen(context, builder, signature, args):
            found = ConfigStack().top().compute_capability
            if tuple(found[:2]) != CAPABILITY:
                has = ".".join(map(str, found))
                raise TypingError(f"soon needs a GPU of compute capability 9.0, and compiles for {has}")
            data = make_array(maps)(context, builder, args[0]).data
            place = builder.gep(data, [context.cast(builder, args[1], j, types.intp)])
            function = ir.FunctionType(ir.VoidType(), [long])
            assembly = ir.InlineAsm(function, "prefetch.tensormap [$0];", "l,~{memory}", side_effect=True)
            builder.call(assembly, [builder.ptrtoint(place, long)])
            return context.get_dummy_value()

        return types.void(maps, j), codegen

    return {"maps_of_launch": maps_of_launch, "soon": soon}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.hopper_maps' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
