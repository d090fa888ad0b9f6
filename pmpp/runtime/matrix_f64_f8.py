"""Tensor cores for float64 and for floats of 8 bits: multiply-adds like those of `pmpp.runtime.matrix`.

They compute ``d = a @ b + c``, where ``a`` has 16 rows and ``c`` and ``d`` are 16 by 8. The 32 lanes of a warp hold the
matrices in registers, and all of them must execute the instruction together. Inside a kernel, on both backends::

    c = mma_f64(a, b, c)                    # c += a @ b

============  ==========================  =======  ================  =======  ============================
name          numbers in ``a`` and ``b``  ``a``    a register holds  ``c``    from compute capability
============  ==========================  =======  ================  =======  ============================
``mma_f64``   float64                     16 x 8   1 number          float64  8.0
``mma_e4m3``  4 bits of exponent, 3 more  16 x 32  4 numbers         float32  8.9
``mma_e5m2``  5 bits of exponent, 2 more  16 x 32  4 numbers         float32  8.9
============  ==========================  =======  ================  =======  ============================

- ``a`` is a tuple of 4 registers, ``b`` of 2, and ``c`` of 4. A register of ``a`` or ``b`` is a float64 for
  ``mma_f64``, else a uint32, such as `pmpp.runtime.matrix.load32` gives. The result is a tuple like ``c``.
  `pmpp.simt.fragment` says which rows and columns a register of a lane holds.
- ``mma_f64`` adds one product after another to ``c``, in the order of k: eight fused multiply-adds, each rounded to the
  nearest. From compute capability 9.0 on it is one instruction. An older GPU only has a smaller one, m8n8k4, and
  executes four of those.
- ``mma_e4m3`` and ``mma_e5m2``: a Hopper GPU has no instruction for them, other than ``wgmma``. NVIDIA's compiler makes
  float16 of the numbers, which have them all, and multiplies by two instructions for float16. So the sums keep more
  bits than those of ``wgmma_e4m3``; ``c`` is added at the end, and rounded to the nearest.

Anything else is a typing error when the kernel is compiled, as is a GPU without the instruction. Source: PTX ISA, "Warp
Level Matrix Multiply-Accumulate Instructions".
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
    "mma_f64": _Instruction("m16n8k8.row.col.f64.f64.f64.f64", (8, 0), "float64", "float64"),
    "mma_e4m3": _Instruction("m16n8k32.row.col.f32.e4m3.e4m3.f32", (8, 9), "uint32", "float32"),
    "mma_e5m2": _Instruction("m16n8k32.row.col.f32.e5m2.e5m2.f32", (8, 9), "uint32", "float32"),
}
_LETTERS = {"uint32": "r", "float32": "f", "float64": "d"}  # of a register in PTX

#: `mma_f64` before compute capability 9.0. A lane's registers are those of the large instruction: rows 0 to 7 have the
#: first two sums and $4 and $6 of ``a``, rows 8 to 15 the others; $4, $5 and $8 are for the first four of k.
_SMALL = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
_IN_FOUR = (
    f"{_SMALL} {{$0, $1}}, {{$4}}, {{$8}}, {{$10, $11}}; {_SMALL} {{$0, $1}}, {{$6}}, {{$9}}, {{$0, $1}}; "
    f"{_SMALL} {{$2, $3}}, {{$5}}, {{$8}}, {{$12, $13}}; {_SMALL} {{$2, $3}}, {{$7}}, {{$9}}, {{$2, $3}};"
)


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    def compiled_for(name: str, capability: tuple[int, int]) -> tuple[int, int]:
        # Asked when code is made, not when types are found: Numba keeps those, and one process may compile for several.
        found = tuple(ConfigStack().top().compute_capability[:2])
        if found < capability:
            needed, has = (".".join(map(str, each)) for each in (capability, found))
            raise TypingError(f"{name} needs a GPU of compute capability {needed} or more, and compiles for {has}")
        return found

    def check_registers(name: str, argument: str, given: types.Type, count: int, kind: types.Type) -> None:
        if not isinstance(given, types.BaseTuple) or len(given) != count or any(each != kind for each in given):
            raise TypingError(f"{name}: {argument} must be a tuple of {count} {kind}, was {given}")

    def multiply_add(name: str, shape: str, capability: tuple[int, int], operand: str, number: str) -> Callable:
        whole = f"mma.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
        of_inputs = [_LETTERS[operand]] * 6 + [_LETTERS[number]] * 4

        def mma(typingctx, a, b, c):
            check_registers(name, "a", a, 4, getattr(types, operand))
            check_registers(name, "b", b, 2, getattr(types, operand))
            check_registers(name, "c", c, 4, getattr(types, number))

            def codegen(context, builder, signature, args):
                in_four = compiled_for(name, capability) < (9, 0) and name == "mma_f64"
                # Of four instructions, the first writes sums before the last has read its operands.
                constraints = [f"={'&' if in_four else ''}{_LETTERS[number]}"] * 4 + of_inputs
                operands = [part for value in args for part in cgutils.unpack_tuple(builder, value)]
                result = ir.LiteralStructType([context.get_value_type(c.dtype)] * 4)
                kind = ir.FunctionType(result, [one.type for one in operands])
                assembly = ir.InlineAsm(kind, _IN_FOUR if in_four else whole, ",".join(constraints))
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
