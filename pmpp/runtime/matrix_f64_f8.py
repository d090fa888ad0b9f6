"""Tensor cores for float64 and for floats of 8 bits: more instructions of the kind that `pmpp.runtime.matrix` has.

They compute ``d = a @ b + c`` as those do: a warp holds the three matrices in registers, and all of its lanes execute
the instruction together. ``c`` and ``d`` are 16 by 8. Inside a kernel, on both backends::

    c = mma_f64(a, b, c)                    # c += a @ b
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

__all__ = ["NAMES", "mma_e4m3", "mma_e5m2", "mma_f64", "numba_intrinsics"]  # noqa: F822

#: What this module gives a kernel.
NAMES = ("mma_f64", "mma_e4m3", "mma_e5m2")


class _Instruction(typing.NamedTuple):
    """As PTX names it, the oldest GPU that has it, and the types of the registers of ``a`` and ``b``, and of ``c``."""

    shape: str
    capability: tuple[int, int]
    operand: str
    number: str


_MMA = {
    "mma_f64": _Instruction("m16n8k8.row.col.f64.f64.f64.f64", (9, 0), "float64", "float64"),
    "mma_e4m3": _Instruction("m16n8k32.row.col.f32.e4m3.e4m3.f32", (8, 9), "uint32", "float32"),
    "mma_e5m2": _Instruction("m16n8k32.row.col.f32.e5m2.e5m2.f32", (8, 9), "uint32", "float32"),
}
_LETTERS = {"uint32": "r", "float32": "f", "float64": "d"}  # of a register in PTX


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    def needs(name: str, capability: tuple[int, int]) -> None:
        # Asked when code is made, not when types are found: Numba keeps those, and one process may compile for several.
        found = tuple(ConfigStack().top().compute_capability[:2])
        if found < capability:
            needed, has = (".".join(map(str, each)) for each in (capability, found))
            raise TypingError(f"{name} needs a GPU of compute capability {needed} or more, and compiles for {has}")

    def check_registers(name: str, argument: str, given: types.Type, count: int, kind: types.Type) -> None:
        if not isinstance(given, types.BaseTuple) or len(given) != count or any(each != kind for each in given):
            raise TypingError(f"{name}: {argument} must be a tuple of {count} {kind}, was {given}")

    def multiply_add(name: str, shape: str, capability: tuple[int, int], operand: str, number: str) -> Callable:
        text = f"mma.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
        constraints = [f"={_LETTERS[number]}"] * 4 + [_LETTERS[operand]] * 6 + [_LETTERS[number]] * 4

        def mma(typingctx, a, b, c):
            check_registers(name, "a", a, 4, getattr(types, operand))
            check_registers(name, "b", b, 2, getattr(types, operand))
            check_registers(name, "c", c, 4, getattr(types, number))

            def codegen(context, builder, signature, args):
                needs(name, capability)
                operands = [part for value in args for part in cgutils.unpack_tuple(builder, value)]
                result = ir.LiteralStructType([context.get_value_type(c.dtype)] * 4)
                kind = ir.FunctionType(result, [one.type for one in operands])
                assembly = ir.InlineAsm(kind, text, ",".join(constraints))
                made = builder.call(assembly, operands, attrs=("convergent",))
                parts = [builder.extract_value(made, k) for k in range(4)]
                return context.make_tuple(builder, signature.return_type, parts)

            return types.UniTuple(getattr(types, number), 4)(a, b, c), codegen

        mma.__name__ = mma.__qualname__ = name
        return intrinsic(mma)

    return {name: multiply_add(name, *one) for name, one in _MMA.items()}


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.matrix_f64_f8' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
