"""Hopper's matrix path: four warps multiply tiles in shared memory, a copy engine brings them, barriers count both.

Inside a kernel, on both backends. *Products.* A warpgroup is four neighbouring warps of a block, the first of which has
a number that is a multiple of 4. It computes ``sums += a @ b``, where ``a`` is 64 x 16, ``b`` 16 x n, and n is 64, 128,
192 or 256. Both lie in shared memory; a warp has 16 rows of the sums in registers::

    wgmma_fence()
    sums = wgmma_f16(tile_descriptor(shared, i, 0), tile_descriptor(shared, j, apart), sums)
    wgmma_commit()
    sums = wgmma_wait(0, sums)

- ``sums`` is a tuple of n / 2 float32. Register r of lane 4 g + t is in row ``g + 8 * (r // 2 % 2)`` and column
  ``8 * (r // 4) + 2 * t + r % 2`` of the warp's 16 rows.
- ``wgmma_f16(a, b, sums)`` and ``wgmma_bf16(a, b, sums)`` start a product. All four warps execute them together. The
  result stands for sums that are not there yet: give it to the next product or to ``wgmma_wait``, and to nothing else.
- ``wgmma_tf32(a, b, sums)`` multiplies float32, of which it sees the upper 19 bits; k is 8. ``wgmma_s8(a, b, sums)``
  multiplies int8; k is 32, and the sums are int32, which wrap. ``wgmma_e4m3`` and ``wgmma_e5m2`` multiply numbers of 8
  bits with 4 or 5 bits of exponent; k is 32, and of each sum only 13 bits behind the largest summand's point are kept.
  For all of them a row of ``b`` in shared memory is a *column* of the matrix: n rows that lie like those of ``a``, of
  which a product takes 32 bytes each. Such arrays are given to this module as arrays of 16-bit numbers, and ``apart``
  is 0: + 16 is the next k in ``b`` as well.
- ``wgmma_fence()`` comes before the first product, and after each time that a thread has used or changed the sums.
- ``wgmma_commit()`` makes a group of the products since the last one. ``wgmma_wait(n, sums)`` waits until all groups of
  the warp are done but the newest n, a literal from 0 to 7, and returns the sums. Until then the operands must stay.
  Where a warp has several sums under way, each goes through a wait of its own.
- ``copies_visible()``: what this thread has stored or copied into shared memory is there for products that come after
  the next barrier, and for bulk copies over it. What bulk copies bring needs no such fence.
- ``tile_descriptor(shared, i, apart)`` says where an operand begins, as a uint64. Rows of 64 numbers (128 bytes) follow
  each other, rows of ``a``, or rows of ``b`` in panels of 64 columns, whose beginnings are ``apart`` elements from each
  other (0 if there is one). Row r has its chunk c of 8 numbers in place ``c ^ (r % 8)``. ``i`` is the place of a chunk
  that was not moved: + 16 is the next 16 of k in ``a``, and + 16 * 64 in ``b``. The array's ``alignment`` must be 1024.

*Bulk copies.* A tensor map describes a matrix of 16-bit numbers to the copy engine, and boxes that it copies::

    place_map(maps, j, words)                              # words: what tensor_map(x, rows, columns) gave on the host
    expect_bytes(barriers, b, nbytes)
    bulk_tile(shared, i, maps, j, row, column, barriers, b)

- ``place_map`` puts a map into ``maps[j : j + 16]``, an array of uint64 in global memory; j is a multiple of 16. The
  same thread may use it at once, another one after a barrier.
- ``bulk_tile`` starts to copy the box whose corner is at (row, column). Beyond the edges of the matrix it has zeros.
  One thread calls it. Rows go to ``shared[i]`` and on, with chunks exchanged as above. ``i`` leads to a multiple of
  1024 bytes. All bytes of the box are counted by the barrier. Whoever uses the box, or writes to that part of the
  matrix, has waited for the barrier, or has met somebody who has; and so has a thread of the block before it ends. If
  threads have stored anything there, ``copies_visible()`` comes before, in these threads, and a barrier of them. The
  engine need not see what a thread has stored into the matrix before the next kernel.
- ``bulk_store(maps, j, row, column, shared, i)`` starts to copy the other way: a box from ``shared[i]`` and on, with
  its chunks exchanged, to (row, column). What lies beyond the edges of the matrix is left out. ``copies_visible()``
  comes before it, in the threads that have written the box, and a barrier of them.
- ``commit_stores()`` makes a group of the stores that this thread has started since the last one, and
  ``wait_stores(n)`` waits until all groups of this thread have been read but the newest n, a literal from 0 to 7. Until
  then ``shared`` must stay, and the thread must not end. The results stand in the matrix when the kernel has ended:
  until then nobody reads them, and nobody stores anything else there.
- ``stmatrix(shared, i, words)`` stores what `pmpp.runtime.matrix.ldmatrix` loads: four matrices of 8 rows of 16 bytes,
  a tuple of 4 uint32 a lane. Lane 8 m + r says in ``i`` where row r of matrix m begins.

*Barriers.* ``barriers`` is an array of uint64 in shared memory, ``barriers[b]`` an mbarrier. Its phase ends when it has
counted its arrivals and all bytes that were expected; then the next phase begins.

- ``mbarrier_init(barriers, b, count)``: one thread, and ``cuda.syncthreads()`` before anyone uses it.
- ``mbarrier_arrive(barriers, b)`` is one arrival; ``expect_bytes(barriers, b, n)`` is one, too, and n bytes to come.
- ``mbarrier_wait(barriers, b, parity)`` waits for the end of the first (0), the second (1), the third (0) phase, ...
  A parity that is not that of the phase under way has ended: the phase before the first counts as ended. A wait of
  several seconds is a mistake and ends the kernel with an error.

A GPU of another compute capability than 9.0 has no wgmma. Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions", "Tensor Maps", "mbarrier", "Proxies".
"""

from __future__ import annotations

import ctypes
import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.runtime import device

__all__ = [  # noqa: F822
    "NAMES", "bulk_store", "bulk_tile", "commit_stores", "copies_visible", "expect_bytes", "mbarrier_arrive",
    "mbarrier_init", "mbarrier_wait", "numba_intrinsics", "place_map", "stmatrix", "tensor_map", "tile_descriptor",
    "wait_stores", "wgmma_bf16", "wgmma_commit", "wgmma_e4m3", "wgmma_e5m2", "wgmma_f16", "wgmma_fence", "wgmma_s8",
    "wgmma_tf32", "wgmma_wait",
]  # fmt: skip

#: What this module gives a kernel.
NAMES = (
    "tile_descriptor", "wgmma_f16", "wgmma_bf16", "wgmma_tf32", "wgmma_s8", "wgmma_e4m3", "wgmma_e5m2", "wgmma_fence",
    "wgmma_commit", "wgmma_wait", "copies_visible", "mbarrier_init", "mbarrier_arrive", "expect_bytes", "mbarrier_wait",
    "place_map", "bulk_tile", "bulk_store", "commit_stores", "wait_stores", "stmatrix",
)  # fmt: skip

CAPABILITY = (9, 0)
COLUMNS = {32: 64, 64: 128, 96: 192, 128: 256}  # columns of a product, by how many sums a thread has
ATOM = 1024  # bytes: 8 rows of 128 bytes, within which chunks of 16 bytes are exchanged
ROUNDS = 1 << 22  # attempts of mbarrier_wait, each of which the hardware lets wait a while
#: Of a product: k, the types as PTX names them, and what follows the descriptors: predicate, signs, transpositions.
PRODUCTS = {
    "wgmma_f16": ("k16", "f32.f16.f16", "p, 1, 1, 0, 1"),
    "wgmma_bf16": ("k16", "f32.bf16.bf16", "p, 1, 1, 0, 1"),
    "wgmma_tf32": ("k8", "f32.tf32.tf32", "p, 1, 1"),
    "wgmma_s8": ("k32", "s32.s8.s8", "p"),
    "wgmma_e4m3": ("k32", "f32.e4m3.e4m3", "p, 1, 1"),
    "wgmma_e5m2": ("k32", "f32.e5m2.e5m2", "p, 1, 1"),
}
_SHARED = 3  # the number of NVVM's address space
WORDS = 16  # of 64 bits in a tensor map


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    word, long, single, void = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()

    def needs(name: str) -> None:
        found = ConfigStack().top().compute_capability
        if tuple(found[:2]) != CAPABILITY:
            has = ".".join(map(str, found))
            raise TypingError(f"{name} needs a GPU of compute capability 9.0, and compiles for {has}")

    def check_array(name, argument, array, dtypes):
        if not isinstance(array, types.Array):
            raise TypingError(f"{name}: {argument} must be an array, was {array}")
        if str(array.dtype) not in dtypes:
            raise TypingError(f"{name}: the dtype of {argument} must be one of {', '.join(dtypes)}, was {array.dtype}")
        if array.layout not in "CF":
            raise TypingError(f"{name}: {argument} must be contiguous (C or F order), was {array}")

    def check_integer(name, argument, given):
        if not isinstance(given, types.Integer):
            raise TypingError(f"{name}: {argument} must be one integer, was {given}")

    def check_sums(name, argument, given, *numbers):
        if not isinstance(given, types.UniTuple) or given.dtype not in numbers or given.count not in COLUMNS:
            kinds = " or ".join(map(str, numbers))
            raise TypingError(f"{name}: {argument} must be a tuple of 32, 64, 96 or 128 {kinds}, was {given}")

    def check_literal(name, n):
        if not isinstance(n, types.IntegerLiteral) or not 0 <= n.literal_value <= 7:
            given = n.literal_value if isinstance(n, types.IntegerLiteral) else n
            raise TypingError(f"{name}: n must be a literal, an integer from 0 to 7, was {given}")

    def pointer(context, builder, array, value, index, index_value):
        data = context.make_array(array)(context, builder, value).data
        return builder.gep(data, [context.cast(builder, index_value, index, types.intp)])

    def shared_address(context, builder, array, value, index, index_value):
        data = context.make_array(array)(context, builder, value).data
        start = builder.addrspacecast(data, data.type.pointee.as_pointer(_SHARED))
        start = builder.trunc(builder.ptrtoint(start, long), word)
        elements = context.cast(builder, index_value, index, types.uint32)
        return builder.add(start, builder.mul(elements, ir.Constant(word, array.dtype.bitwidth // 8)))

    def emit(builder, text, result, operands, constraints):
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        assembly = ir.InlineAsm(kind, text, ",".join([*constraints, "~{memory}"]), side_effect=True)
        return builder.call(assembly, operands, attrs=("convergent",))

    def as_tuple(context, builder, kind, registers):
        return context.make_tuple(builder, kind, [builder.extract_value(registers, k) for k in range(kind.count)])

    HALVES = ("float16", "int16", "uint16")

    @intrinsic
    def tile_descriptor(typingctx, shared, i, apart):
        check_array("tile_descriptor", "shared", shared, HALVES)
        check_integer("tile_descriptor", "i", i)
        check_integer("tile_descriptor", "apart", apart)

        def codegen(context, builder, signature, args):
            needs("tile_descriptor")
            address = builder.zext(shared_address(context, builder, shared, args[0], i, args[1]), long)
            address = builder.lshr(builder.and_(address, ir.Constant(long, 0x3FFFF)), ir.Constant(long, 4))
            leading = builder.mul(context.cast(builder, args[2], apart, types.uint64), ir.Constant(long, 2))
            leading = builder.shl(builder.lshr(leading, ir.Constant(long, 4)), ir.Constant(long, 16))
            fixed = (ATOM >> 4) << 32 | 1 << 62
            return builder.or_(builder.or_(address, leading), ir.Constant(long, fixed))

        return types.uint64(shared, i, apart), codegen

    def multiply_add(name):
        depth, kinds, rest = PRODUCTS[name]
        number, register, letter = (types.int32, word, "r") if name == "wgmma_s8" else (types.float32, single, "f")

        def wgmma(typingctx, a, b, c):
            for argument, given in (("a", a), ("b", b)):
                if given != types.uint64:
                    raise TypingError(f"{name}: {argument} must be a descriptor (uint64), was {given}")
            check_sums(name, "c", c, number)

            def codegen(context, builder, signature, args):
                needs(name)
                count = c.count
                sums = ", ".join(f"${k}" for k in range(count))
                text = (
                    "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
                    f"wgmma.mma_async.sync.aligned.m64n{COLUMNS[count]}{depth}.{kinds} {{{sums}}}, "
                    f"${2 * count}, ${2 * count + 1}, {rest}; }}"
                )
                operands = [*cgutils.unpack_tuple(builder, args[2]), args[0], args[1]]
                constraints = [f"={letter}"] * count + [str(k) for k in range(count)] + ["l", "l"]
                result = ir.LiteralStructType([register] * count)
                return as_tuple(context, builder, c, emit(builder, text, result, operands, constraints))

            return c(a, b, c), codegen

        wgmma.__name__ = wgmma.__qualname__ = name
        return intrinsic(wgmma)

    def plain(name, text):
        def instruction(typingctx):
            def codegen(context, builder, signature, args):
                needs(name)
                emit(builder, text, void, [], [])
                return context.get_dummy_value()

            return types.void(), codegen

        instruction.__name__ = instruction.__qualname__ = name
        return intrinsic(instruction)

    @intrinsic
    def wgmma_wait(typingctx, n, sums):
        check_literal("wgmma_wait", n)
        check_sums("wgmma_wait", "sums", sums, types.float32, types.int32)
        register, letter = (word, "r") if sums.dtype == types.int32 else (single, "f")

        def codegen(context, builder, signature, args):
            needs("wgmma_wait")
            count = sums.count
            text = f"wgmma.wait_group.sync.aligned {n.literal_value};"
            constraints = [f"={letter}"] * count + [str(k) for k in range(count)]
            operands = cgutils.unpack_tuple(builder, args[1])
            result = ir.LiteralStructType([register] * count)
            return as_tuple(context, builder, sums, emit(builder, text, result, operands, constraints))

        return sums(n, sums), codegen

    def check_barriers(name, barriers, b):
        check_array(name, "barriers", barriers, ("uint64",))
        check_integer(name, "b", b)

    def on_barrier(name, text, *more):
        """An instruction on barriers[b], with some integers of 32 bits."""

        def build(barriers, b, *given):
            check_barriers(name, barriers, b)
            for argument, kind in zip(more, given, strict=True):
                check_integer(name, argument, kind)

            def codegen(context, builder, signature, args):
                needs(name)
                address = shared_address(context, builder, barriers, args[0], b, args[1])
                numbers = [
                    context.cast(builder, value, kind, types.uint32)
                    for value, kind in zip(args[2:], given, strict=True)
                ]
                emit(builder, text, void, [address, *numbers], ["r"] * (1 + len(numbers)))
                return context.get_dummy_value()

            return types.void(barriers, b, *given), codegen

        def alone(typingctx, barriers, b):
            return build(barriers, b)

        def with_number(typingctx, barriers, b, number):
            return build(barriers, b, number)

        instruction = with_number if more else alone
        instruction.__name__ = instruction.__qualname__ = name
        return intrinsic(instruction)

    wait = (
        "{ .reg .pred p; .reg .b32 n; mov.b32 n, 0; "
        "TRY_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1, 1000; @p bra DONE_${:uid}; "
        f"add.u32 n, n, 1; setp.lt.u32 p, n, {ROUNDS}; @p bra TRY_${{:uid}}; trap; DONE_${{:uid}}: }}"
    )

    @intrinsic
    def place_map(typingctx, maps, j, words):
        check_array("place_map", "maps", maps, ("uint64",))
        check_integer("place_map", "j", j)
        if not isinstance(words, types.UniTuple) or words.dtype != types.uint64 or words.count != WORDS:
            raise TypingError(f"place_map: words must be a tuple of {WORDS} uint64, was {words}")

        def codegen(context, builder, signature, args):
            needs("place_map")
            first = pointer(context, builder, maps, args[0], j, args[1])
            for k, value in enumerate(cgutils.unpack_tuple(builder, args[2])):
                builder.store(value, builder.gep(first, [ir.Constant(word, k)]))
            address = builder.ptrtoint(first, long)
            fence = "fence.proxy.tensormap::generic"
            text = f"{fence}.release.gpu; {fence}.acquire.gpu [$0], 128;"
            emit(builder, text, void, [address], ["l"])
            return context.get_dummy_value()

        return types.void(maps, j, words), codegen

    @intrinsic
    def bulk_tile(typingctx, shared, i, maps, j, row, column, barriers, b):
        check_array("bulk_tile", "shared", shared, HALVES)
        check_array("bulk_tile", "maps", maps, ("uint64",))
        check_barriers("bulk_tile", barriers, b)
        for argument, given in (("i", i), ("j", j), ("row", row), ("column", column)):
            check_integer("bulk_tile", argument, given)

        def codegen(context, builder, signature, args):
            needs("bulk_tile")
            target = shared_address(context, builder, shared, args[0], i, args[1])
            tensor = builder.ptrtoint(pointer(context, builder, maps, args[2], j, args[3]), long)
            down, along = (
                context.cast(builder, args[4], row, types.int32),
                context.cast(builder, args[5], column, types.int32),
            )
            barrier = shared_address(context, builder, barriers, args[6], b, args[7])
            text = (
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[$0], [$1, {$2, $3}], [$4];"
            )
            emit(builder, text, void, [target, tensor, along, down, barrier], ["r", "l", "r", "r", "r"])
            return context.get_dummy_value()

        return types.void(shared, i, maps, j, row, column, barriers, b), codegen

    @intrinsic
    def bulk_store(typingctx, maps, j, row, column, shared, i):
        check_array("bulk_store", "maps", maps, ("uint64",))
        check_array("bulk_store", "shared", shared, HALVES)
        for argument, given in (("j", j), ("row", row), ("column", column), ("i", i)):
            check_integer("bulk_store", argument, given)

        def codegen(context, builder, signature, args):
            needs("bulk_store")
            tensor = builder.ptrtoint(pointer(context, builder, maps, args[0], j, args[1]), long)
            down, along = (
                context.cast(builder, args[2], row, types.int32),
                context.cast(builder, args[3], column, types.int32),
            )
            source = shared_address(context, builder, shared, args[4], i, args[5])
            text = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$1, $2}], [$3];"
            emit(builder, text, void, [tensor, along, down, source], ["l", "r", "r", "r"])
            return context.get_dummy_value()

        return types.void(maps, j, row, column, shared, i), codegen

    @intrinsic
    def wait_stores(typingctx, n):
        check_literal("wait_stores", n)

        def codegen(context, builder, signature, args):
            needs("wait_stores")
            emit(builder, f"cp.async.bulk.wait_group.read {n.literal_value};", void, [], [])
            return context.get_dummy_value()

        return types.void(n), codegen

    @intrinsic
    def stmatrix(typingctx, shared, i, words):
        check_array("stmatrix", "shared", shared, HALVES)
        check_integer("stmatrix", "i", i)
        if not isinstance(words, types.UniTuple) or words.dtype != types.uint32 or words.count != 4:
            raise TypingError(f"stmatrix: words must be a tuple of 4 uint32, was {words}")

        def codegen(context, builder, signature, args):
            needs("stmatrix")
            address = shared_address(context, builder, shared, args[0], i, args[1])
            text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
            emit(builder, text, void, [address, *cgutils.unpack_tuple(builder, args[2])], ["r"] * 5)
            return context.get_dummy_value()

        return types.void(shared, i, words), codegen

    return {
        "tile_descriptor": tile_descriptor,
        **{name: multiply_add(name) for name in PRODUCTS},
        "wgmma_fence": plain("wgmma_fence", "wgmma.fence.sync.aligned;"),
        "wgmma_commit": plain("wgmma_commit", "wgmma.commit_group.sync.aligned;"),
        "wgmma_wait": wgmma_wait,
        "copies_visible": plain("copies_visible", "fence.proxy.async.shared::cta;"),
        "mbarrier_init": on_barrier(
            "mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1; fence.proxy.async.shared::cta;", "count"
        ),
        "mbarrier_arrive": on_barrier("mbarrier_arrive", "{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [$0]; }"),
        "expect_bytes": on_barrier(
            "expect_bytes", "{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [$0], $1; }", "bytes"
        ),
        "mbarrier_wait": on_barrier("mbarrier_wait", wait, "parity"),
        "place_map": place_map,
        "bulk_tile": bulk_tile,
        "bulk_store": bulk_store,
        "commit_stores": plain("commit_stores", "cp.async.bulk.commit_group;"),
        "wait_stores": wait_stores,
        "stmatrix": stmatrix,
    }


def tensor_map(x: typing.Any, rows: int, columns: int) -> tuple[np.uint64, ...]:
    """A description of a matrix for the copy engine, which then copies boxes of so many rows and columns.

    Args:
        x: a device array of 16-bit numbers of shape (M, K), in C order. Its rows begin at multiples of 16 bytes.
        rows: of a box, from 1 to 256.
        columns: of a box, from 8 to 64 in steps of 8: a row of it has at most 128 bytes.

    Returns 16 words of 64 bits, for `place_map`. They hold as long as the matrix lies where it is.
    Raises ValueError that says what is accepted; RuntimeError if the driver refuses.
    """
    if len(x.shape) != 2 or np.dtype(x.dtype).itemsize != 2:
        raise ValueError(f"x must be a matrix of 16-bit numbers, was an array of {x.dtype} of shape {tuple(x.shape)}")
    if x.strides != (2 * x.shape[1], 2) or x.shape[1] % 8 or device.address(x) % 16:
        raise ValueError("x must be in C order, and its rows must begin at multiples of 16 bytes")
    if rows not in range(1, 257) or columns not in range(8, 65, 8):
        raise ValueError(f"a box has 1 to 256 rows and 8, 16, ... 64 columns, not {rows} and {columns}")
    return _words(device.address(x), *x.shape, rows, columns)


@functools.lru_cache(1024)
def _words(address: int, height: int, width: int, rows: int, columns: int) -> tuple[np.uint64, ...]:
    """The same tuple for the same matrix: launches keep what they have packed."""
    if device.backend().name == "simt":
        from pmpp.simt.machine import engines

        return engines.words_of(engines.Map(address, height, width, rows, columns))
    from pmpp.runtime import array

    buffer = (ctypes.c_uint64 * (WORDS + 8))()
    start = -(-ctypes.addressof(buffer) // 64) * 64
    # CUtensorMapDataType and the like. Each miss of the L2 cache brings 128 bytes, a row of a box: with 256, products
    # whose rows begin at odd multiples of 16 bytes took a tenth longer on an H200, and no other was faster.
    uint16, plain, swizzle_128, promote_128, zeros = 1, 0, 3, 2, 0
    code = array.library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(start), uint16, 2, ctypes.c_void_p(address), (ctypes.c_uint64 * 2)(width, height),
        (ctypes.c_uint64 * 1)(width * 2), (ctypes.c_uint32 * 2)(columns, rows), (ctypes.c_uint32 * 2)(1, 1), plain,
        swizzle_128, promote_128, zeros,
    )  # fmt: skip
    if code:
        raise RuntimeError(f"cuTensorMapEncodeTiled refused the matrix: error {code}")
    return tuple(np.uint64(v) for v in (ctypes.c_uint64 * WORDS).from_address(start))


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.hopper' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
