"""The instructions of tensor cores: a warp multiplies small matrices that its lanes hold in registers.

A tensor core computes ``d = a @ b + c``, where ``a`` has 16 rows and ``c`` and ``d`` are 16 by 8. The 32 lanes hold the
three matrices together: each lane has some registers of every matrix, its *fragment*. All lanes of a warp must execute
these instructions together.

Inside a kernel, on both backends::

    a = ldmatrix(x, i)                      # 4 registers: 16 rows of 32 bytes, out of shared memory
    c = mma_f16(a, b, c)                    # c += a @ b

===============  ==========================  =================  ================  ==============
name             numbers in ``a`` and ``b``  ``a`` is           a register holds  ``c`` is
===============  ==========================  =================  ================  ==============
``mma_f16``      float16                     16 x 16            2 numbers         float32
``mma_bf16``     bfloat16                    16 x 16            2 numbers         float32
``mma_tf32``     float32, of which 19 bits   16 x 8             1 number          float32
``mma_s8``       int8                        16 x 32            4 numbers         int32, wraps
===============  ==========================  =================  ================  ==============

- ``a`` is a tuple of 4 uint32, ``b`` of 2 uint32, and ``c`` of 4 float32 or int32. The result is a tuple like ``c``.
  `pmpp.simt.fragment` says which rows and columns a register of a lane holds.
- ``ldmatrix(x, i)`` loads four matrices of 8 rows of 16 bytes out of shared memory. Lane 8 m + r says in ``i`` where
  row r of matrix m begins. Each lane gets one register of each matrix: word ``lane % 4`` of row ``lane // 4``.
- ``ldmatrix_transposed(x, i)`` loads four matrices of 8 x 8 numbers of 16 bits, and gives each lane its register of the
  transposed ones: of column ``lane // 4`` the rows ``2 * (lane % 4)`` and the next.
- ``load32(x, i)`` is a register with the 4 bytes from ``x[i]`` on. ``pack_halves(lo, hi)`` is a register of two numbers
  of 16 bits. ``rounded_f16(lo, hi)`` and ``rounded_bf16(lo, hi)`` are a register of two float32 that are rounded to
  float16 or bfloat16, to the nearest, ties to even.
- ``copy_async(shared, i, x, j, count)`` starts to copy ``count`` elements from ``x[j]`` on to ``shared[i]`` on, then
  zeros up to 16 bytes. With a count of 0 ``x`` is not touched, wherever ``j`` leads. The thread goes on at once.
  It must not use that part of ``shared`` until the copy has arrived, and nobody may write to that part of ``x``.
- ``commit_copies()`` makes a group of the copies that the thread has started since its last group.
- ``wait_copies(n)`` waits until all groups of the thread have arrived but the newest n; n is a literal. Other threads
  may read what has arrived after a barrier.

Arrays are contiguous, and ``i`` and ``j`` are element indices into the flat storage. They must lead to an address that
is a multiple of 16 bytes (``load32``: of 4). Numba does not know where an array lies: if ``x`` of ``ldmatrix`` or
``shared`` of ``copy_async`` is not in shared memory, a GPU answers with an error or a wrong result.

Anything else is a typing error when the kernel is compiled, as is a GPU without the instruction: they need compute
capability 8.0, and ``ldmatrix`` needs 7.5. Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions" and
"Data Movement and Conversion Instructions: Asynchronous copy".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device

# __getattr__ makes those that the linter cannot see.
__all__ = [  # noqa: F822
    "NAMES", "commit_copies", "copy_async", "ldmatrix", "ldmatrix_transposed", "load32", "mma_bf16", "mma_f16",
    "mma_s8", "mma_tf32", "numba_intrinsics", "pack_halves", "rounded_bf16", "rounded_f16", "wait_copies",
]  # fmt: skip

#: What this module gives a kernel.
NAMES = (
    "mma_f16", "mma_bf16", "mma_tf32", "mma_s8", "ldmatrix", "ldmatrix_transposed", "load32", "pack_halves",
    "rounded_f16", "rounded_bf16", "copy_async", "commit_copies", "wait_copies",
)  # fmt: skip

_MMA = {
    "mma_f16": "m16n8k16.row.col.f32.f16.f16.f32",
    "mma_bf16": "m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma_tf32": "m16n8k8.row.col.f32.tf32.tf32.f32",
    "mma_s8": "m16n8k32.row.col.s32.s8.s8.s32",
}
_BYTES = {"int8": 1, "uint8": 1, "float16": 2, "int16": 2, "uint16": 2, "float32": 4, "int32": 4, "uint32": 4}
_HALVES = ("float16", "int16", "uint16")
_SHARED = 3  # the number of NVVM's address space


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    word = ir.IntType(32)

    def needs(name: str, capability: tuple[int, int]) -> None:
        # Asked when code is made, not when types are found: Numba keeps those, and one process may compile for several.
        found = ConfigStack().top().compute_capability
        if found < capability:
            needed, has = (".".join(map(str, each)) for each in (capability, found))
            raise TypingError(f"{name} needs a GPU of compute capability {needed} or more, and compiles for {has}")

    def check_registers(name: str, argument: str, given: types.Type, count: int, kind: types.Type) -> None:
        if not isinstance(given, types.BaseTuple) or len(given) != count or any(each != kind for each in given):
            raise TypingError(f"{name}: {argument} must be a tuple of {count} {kind}, was {given}")

    def check_array(name: str, argument: str, array: types.Type, dtypes: typing.Iterable[str]) -> None:
        if not isinstance(array, types.Array):
            raise TypingError(f"{name}: {argument} must be an array, was {array}")
        if str(array.dtype) not in dtypes:
            raise TypingError(f"{name}: the dtype of {argument} must be one of {', '.join(dtypes)}, was {array.dtype}")
        if array.layout not in "CF":
            raise TypingError(f"{name}: {argument} must be contiguous (C or F order), was {array}")

    def check_integer(name: str, argument: str, given: types.Type) -> None:
        if not isinstance(given, types.Integer):
            raise TypingError(f"{name}: {argument} must be one integer, was {given}")

    def pointer(context, builder, array, value, index, index_value):
        """Where an element lies."""
        data = context.make_array(array)(context, builder, value).data
        return builder.gep(data, [context.cast(builder, index_value, index, types.intp)])

    def shared_address(context, builder, array, value, index, index_value):
        """The same as the 32-bit address that the instructions for shared memory take."""
        data = context.make_array(array)(context, builder, value).data
        start = builder.addrspacecast(data, data.type.pointee.as_pointer(_SHARED))
        start = builder.trunc(builder.ptrtoint(start, ir.IntType(64)), word)
        elements = context.cast(builder, index_value, index, types.uint32)
        return builder.add(start, builder.mul(elements, ir.Constant(word, _BYTES[str(array.dtype)])))

    def emit(builder, text, result, operands, constraints, *, memory):
        """An instruction that the lanes of a warp execute together; `memory`: it has its place among the accesses."""
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        constraints = ",".join([*constraints, "~{memory}"] if memory else constraints)
        return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=memory), operands, attrs=("convergent",))

    def as_tuple(context, builder, kind, registers):
        parts = [builder.extract_value(registers, each) for each in range(4)]
        return context.make_tuple(builder, kind, parts)

    def multiply_add(name: str, shape: str) -> Callable:
        number = types.int32 if name == "mma_s8" else types.float32
        letter = "r" if name == "mma_s8" else "f"
        text = f"mma.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"

        def mma(typingctx, a, b, c):
            check_registers(name, "a", a, 4, types.uint32)
            check_registers(name, "b", b, 2, types.uint32)
            check_registers(name, "c", c, 4, number)

            def codegen(context, builder, signature, args):
                needs(name, (8, 0))
                operands = [part for value in args for part in cgutils.unpack_tuple(builder, value)]
                result = ir.LiteralStructType([context.get_value_type(number)] * 4)
                constraints = [f"={letter}"] * 4 + ["r"] * 6 + [letter] * 4
                registers = emit(builder, text, result, operands, constraints, memory=False)
                return as_tuple(context, builder, signature.return_type, registers)

            return types.UniTuple(number, 4)(a, b, c), codegen

        mma.__name__ = mma.__qualname__ = name
        return intrinsic(mma)

    def load_matrices(name: str, modifier: str, dtypes: typing.Iterable[str]) -> Callable:
        text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

        def load(typingctx, x, i):
            check_array(name, "x", x, dtypes)
            check_integer(name, "i", i)

            def codegen(context, builder, signature, args):
                needs(name, (7, 5))
                address = shared_address(context, builder, x, args[0], i, args[1])
                result = ir.LiteralStructType([word] * 4)
                registers = emit(builder, text, result, [address], ["=r"] * 4 + ["r"], memory=True)
                return as_tuple(context, builder, signature.return_type, registers)

            return types.UniTuple(types.uint32, 4)(x, i), codegen

        load.__name__ = load.__qualname__ = name
        return intrinsic(load)

    @intrinsic
    def load32(typingctx, x, i):
        check_array("load32", "x", x, _BYTES)
        check_integer("load32", "i", i)

        def codegen(context, builder, signature, args):
            element = pointer(context, builder, x, args[0], i, args[1])
            return builder.load(builder.bitcast(element, word.as_pointer(element.type.addrspace)), align=4)

        return types.uint32(x, i), codegen

    @intrinsic
    def pack_halves(typingctx, lo, hi):
        for argument, given in (("lo", lo), ("hi", hi)):
            if str(given) not in _HALVES:
                raise TypingError(f"pack_halves: {argument} must be one of {', '.join(_HALVES)}, was {given}")

        def codegen(context, builder, signature, args):
            low, high = (builder.zext(value, word) for value in args)  # Numba has a float16 as an integer of 16 bits
            return builder.or_(low, builder.shl(high, ir.Constant(word, 16)))

        return types.uint32(lo, hi), codegen

    def rounded(name: str, kind: str) -> Callable:
        text = f"cvt.rn.{kind}x2.f32 $0, $2, $1;"  # the first source goes to the upper half

        def round_two(typingctx, lo, hi):
            for argument, given in (("lo", lo), ("hi", hi)):
                if given != types.float32:
                    raise TypingError(f"{name}: {argument} must be a float32, was {given}")

            def codegen(context, builder, signature, args):
                needs(name, (8, 0))
                kind = ir.FunctionType(word, [value.type for value in args])
                return builder.call(ir.InlineAsm(kind, text, "=r,f,f", side_effect=False), args)

            return types.uint32(lo, hi), codegen

        round_two.__name__ = round_two.__qualname__ = name
        return intrinsic(round_two)

    @intrinsic
    def copy_async(typingctx, shared, i, x, j, count):
        check_array("copy_async", "shared", shared, _BYTES)
        check_array("copy_async", "x", x, _BYTES)
        if shared.dtype != x.dtype:
            raise TypingError(f"copy_async: shared and x must have one dtype, were {shared.dtype} and {x.dtype}")
        if not shared.mutable:
            raise TypingError(f"copy_async: shared must be writable, was {shared}")
        for argument, given in (("i", i), ("j", j), ("count", count)):
            check_integer("copy_async", argument, given)

        def codegen(context, builder, signature, args):
            needs("copy_async", (8, 0))
            target = shared_address(context, builder, shared, args[0], i, args[1])
            source = builder.ptrtoint(pointer(context, builder, x, args[2], j, args[3]), ir.IntType(64))
            elements = context.cast(builder, args[4], count, types.int32)
            size = builder.mul(elements, ir.Constant(word, _BYTES[str(x.dtype)]))
            text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
            emit(builder, text, ir.VoidType(), [target, source, size], ["r", "l", "r"], memory=True)
            return context.get_dummy_value()

        return types.void(shared, i, x, j, count), codegen

    @intrinsic
    def commit_copies(typingctx):

        def codegen(context, builder, signature, args):
            needs("commit_copies", (8, 0))
            emit(builder, "cp.async.commit_group;", ir.VoidType(), [], [], memory=True)
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def wait_copies(typingctx, n):
        if not isinstance(n, types.IntegerLiteral) or n.literal_value < 0:
            given = n.literal_value if isinstance(n, types.IntegerLiteral) else n
            raise TypingError(f"wait_copies: n must be a literal, an integer from 0 on, was {given}")

        def codegen(context, builder, signature, args):
            needs("wait_copies", (8, 0))
            emit(builder, f"cp.async.wait_group {n.literal_value};", ir.VoidType(), [], [], memory=True)
            return context.get_dummy_value()

        return types.void(n), codegen

    made = [multiply_add(name, shape) for name, shape in _MMA.items()]
    made += [load_matrices("ldmatrix", "", _BYTES), load_matrices("ldmatrix_transposed", ".trans", _HALVES)]
    made += [load32, pack_halves, rounded("rounded_f16", "f16"), rounded("rounded_bf16", "bf16")]
    made += [copy_async, commit_copies, wait_copies]
    return dict(zip(NAMES, made, strict=True))


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.matrix' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
