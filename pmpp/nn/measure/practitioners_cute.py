"""A softmax of rows and a product of matrices in the CuTe DSL, for `pmpp.nn.measure.practitioners`.

A kernel says what every thread does, as in Numba. Layouts say where a thread's elements lie: which of them come with
one instruction, and how far the next are away. A copy follows from the two layouts. The package is
``nvidia-cutlass-dsl``, and it is imported where it is used.

Source: NVIDIA, the documentation of CUTLASS, "CuTe DSL"; PMPP 4e, section 10.
"""

import functools
import operator
import typing

THREADS = 256  # for a row
TOGETHER = 4  # float32 that come with one instruction

TILE = (128, 256, 64)  # of C for a block, and how much of K comes at a time
STAGES = 4  # tiles of A and of B that are on their way, or there: 48 KiB each time
MULTIPLIERS = 8  # warps: two warpgroups multiply, and one more warp fetches
GROUP = 8  # rows of tiles that come together, and find their tiles of B in the cache


@functools.cache
def softmax_program() -> typing.Any:
    """The function in the DSL that launches the kernel: ``softmax_program()(x, out, stream)``, with tensors of CuTe."""
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute, memory

    warps = THREADS // 32

    @cute.jit
    def of_the_block(value, cells, combine, across):
        """Combine what the threads have: in each warp by shuffles, and then what the warps wrote to their cells."""
        value = across(value)
        warp = cute.arch.warp_idx()  # all lanes shuffle for it, so it stands before the branch
        if cute.arch.lane_idx() == 0:
            cells[warp] = value
        cute.arch.sync_threads()
        found = cells[0]
        for warp in cutlass.range_constexpr(1, warps):
            found = combine(found, cells[warp])
        return found

    @cute.kernel
    def softmax_kernel(x: cute.Tensor, out: cute.Tensor):
        """A block for each row. A thread keeps its elements in registers, so that x is read once."""
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        shared = memory.SmemAllocator()
        of_maxima = shared.allocate_tensor(cutlass.Float32, cute.make_layout(warps), 16)
        of_sums = shared.allocate_tensor(cutlass.Float32, cute.make_layout(warps), 16)
        # A row as groups of TOGETHER elements. A thread has every THREADS-th group.
        groups = cute.zipped_divide(x[row, None], (TOGETHER,))
        targets = cute.zipped_divide(out[row, None], (TOGETHER,))
        each = cute.size(groups, mode=[1]) // THREADS
        mine = cute.make_rmem_tensor(cute.make_layout((TOGETHER, each)), cutlass.Float32)
        for i in cutlass.range_constexpr(each):
            cute.autovec_copy(groups[None, thread + i * THREADS], mine[None, i])
        values = mine.load()
        largest = values.reduce(cute.ReductionOp.MAX, -cutlass.Float32.inf, 0)
        largest = of_the_block(largest, of_maxima, cute.arch.fmax, cute.arch.warp_reduction_max)
        weights = cute.math.exp(values - largest, fastmath=True)
        total = weights.reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
        total = of_the_block(total, of_sums, operator.add, cute.arch.warp_reduction_sum)
        mine.store(weights * (cutlass.Float32(1.0) / total))
        for i in cutlass.range_constexpr(each):
            cute.autovec_copy(mine[None, i], targets[None, thread + i * THREADS])

    @cute.jit
    def launch(x: cute.Tensor, out: cute.Tensor, stream: driver.CUstream):
        softmax_kernel(x, out).launch(grid=(cute.size(x, mode=[0]), 1, 1), block=(THREADS, 1, 1), stream=stream)

    return launch


def compiled_softmax(rows: int, columns: int) -> typing.Any:
    """The softmax of matrices of such a shape, compiled; called with two tensors of CuTe and a stream."""
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute
    from cutlass.cute import runtime

    like = runtime.make_fake_compact_tensor(cutlass.Float32, (rows, columns), stride_order=(1, 0), assumed_align=16)
    return cute.compile(softmax_program(), like, like, driver.CUstream(0))


class Softmax:
    """The softmax of each row of ``x`` into ``out``: matrices of float32 in C order on the GPU, PyTorch's.

    It is compiled for the shape when it is first called. Raises ValueError unless the columns are a multiple of
    THREADS * TOGETHER.
    """

    def __init__(self, x: typing.Any, out: typing.Any) -> None:
        if x.shape[1] % (THREADS * TOGETHER):
            raise ValueError(f"columns must be a multiple of {THREADS * TOGETHER}; was {x.shape[1]}.")
        self.x, self.out = x, out

    @functools.cached_property
    def launch(self) -> typing.Any:
        """The compiled function, and its tensors."""
        from cuda.bindings import driver
        from cutlass.cute import runtime

        found = compiled_softmax(*self.x.shape)
        x, out = (runtime.from_dlpack(each, assumed_align=16) for each in (self.x, self.out))
        return lambda stream: found(x, out, driver.CUstream(stream))

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)


@functools.cache
def product_program() -> typing.Any:
    """The function in the DSL that launches the product: ``product_program()(a, b, c, stream)``.

    B is given as its transpose, (n, k), whose rows are then contiguous: only the layout says so.
    """
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute, memory, pipeline
    from cutlass.cute.nvgpu import cpasync, warpgroup
    from cutlass.tensor_utils import LayoutEnum
    from cutlass.utils import hopper_helpers

    tile_m, tile_n, tile_k = TILE

    @cute.kernel
    def product_kernel(
        copy_a: cute.CopyAtom,
        a: cute.Tensor,
        copy_b: cute.CopyAtom,
        b: cute.Tensor,
        c: cute.Tensor,
        multiply: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
    ):
        """A block for each tile of C. One warp fetches tiles of A and B, and two warpgroups multiply them."""
        thread, _, _ = cute.arch.thread_idx()
        number, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        across = cute.size(c, mode=[1]) // tile_n
        tile = (number // (GROUP * across) * GROUP + number % GROUP, number % (GROUP * across) // GROUP, None)

        shared = memory.SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * STAGES, byte_alignment=8)
        tiles_a = shared.allocate_tensor(cutlass.Float16, layout_a.outer, 1024, layout_a.inner)
        tiles_b = shared.allocate_tensor(cutlass.Float16, layout_b.outer, 1024, layout_b.inner)
        ring = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, MULTIPLIERS),
            tx_count=2 * (tile_m + tile_n) * tile_k,
        )
        of_a = cute.local_tile(a, TILE, tile, proj=(1, None, 1))
        of_b = cute.local_tile(b, TILE, tile, proj=(None, 1, 1))
        of_c = cute.local_tile(c, TILE, tile, proj=(1, 1, None))
        steps = cute.size(of_a, mode=[2])

        if warp == MULTIPLIERS:
            alone = cute.make_layout(1)
            to_a, from_a = cpasync.tma_partition(
                copy_a, 0, alone, cute.group_modes(tiles_a, 0, 2), cute.group_modes(of_a, 0, 2)
            )
            to_b, from_b = cpasync.tma_partition(
                copy_b, 0, alone, cute.group_modes(tiles_b, 0, 2), cute.group_modes(of_b, 0, 2)
            )
            place = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
            for step in cutlass.range(steps, unroll=1):
                ring.producer_acquire(place)
                full = ring.producer_get_barrier(place)
                cute.copy(copy_a, from_a[None, step], to_a[None, place.index], tma_bar_ptr=full)
                cute.copy(copy_b, from_b[None, step], to_b[None, place.index], tma_bar_ptr=full)
                ring.producer_commit(place)
                place.advance()
            ring.producer_tail(place)
        else:
            mine = multiply.get_slice(thread)
            target = mine.partition_C(of_c)
            sums = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            # wgmma reads shared memory itself: a fragment of A or B is a description of where its tile lies.
            group = multiply.get_slice(cute.arch.make_warp_uniform(thread // 128) * 128)
            parts_a = multiply.make_fragment_A(group.partition_A(tiles_a))
            parts_b = multiply.make_fragment_B(group.partition_B(tiles_b))
            place = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
            free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
            sums.fill(0.0)
            multiply.set(warpgroup.Field.ACCUMULATE, True)
            for step in cutlass.range(steps, unroll=1):
                ring.consumer_wait(place)
                warpgroup.fence()
                for part in cutlass.range_constexpr(cute.size(parts_a, mode=[2])):
                    at = (None, None, part, place.index)
                    cute.gemm(multiply, sums, parts_a[at], parts_b[at], sums)
                warpgroup.commit_group()
                # The products of the step before are done when only these are under way. Then its tiles may go.
                warpgroup.wait_group(1)
                if step > 0:
                    ring.consumer_release(free)
                    free.advance()
                place.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(free)
            rounded = cute.make_rmem_tensor(target.shape, cutlass.Float16)
            rounded.store(sums.load().to(cutlass.Float16))
            cute.autovec_copy(rounded, target)

    @cute.jit
    def launch(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: driver.CUstream):
        order_a, order_b = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        majors = (order_a.sm90_mma_major_mode(), order_b.sm90_mma_major_mode())
        multiply = hopper_helpers.make_trivial_tiled_mma(
            cutlass.Float16, cutlass.Float16, *majors, cutlass.Float32, (2, 1, 1), tiler_mn=(64, tile_n)
        )
        layout_a = hopper_helpers.make_smem_layout_a(order_a, TILE, cutlass.Float16, STAGES)
        layout_b = hopper_helpers.make_smem_layout_b(order_b, TILE, cutlass.Float16, STAGES)
        load, first = cpasync.CopyBulkTensorTileG2SOp(), (None, None, 0)
        copy_a, all_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, first), (tile_m, tile_k))
        copy_b, all_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, first), (tile_n, tile_k))
        blocks = cute.size(c) // (tile_m * tile_n)
        product_kernel(copy_a, all_a, copy_b, all_b, c, multiply, layout_a, layout_b).launch(
            grid=(blocks, 1, 1), block=((MULTIPLIERS + 1) * 32, 1, 1), stream=stream
        )

    return launch


def compiled_product(m: int, n: int, k: int) -> typing.Any:
    """The product of matrices of such sides, compiled."""
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute
    from cutlass.cute import runtime

    def like(rows: int, columns: int, first: int) -> typing.Any:
        order = (first, 1 - first)
        return runtime.make_fake_compact_tensor(cutlass.Float16, (rows, columns), stride_order=order, assumed_align=16)

    return cute.compile(product_program(), like(m, k, 1), like(n, k, 0), like(m, n, 1), driver.CUstream(0))


class Product:
    """The product of ``a`` and ``b`` into ``c``: matrices of float16 in C order on the GPU, PyTorch's.

    Sums are float32. It is compiled for the shape when it is first called. Raises ValueError unless the sides are
    multiples of TILE, and the rows of C of GROUP tiles.
    """

    def __init__(self, a: typing.Any, b: typing.Any, c: typing.Any) -> None:
        (m, k), n = a.shape, b.shape[1]
        for name, size, whole in zip("mnk", (m, n, k), (TILE[0] * GROUP, *TILE[1:]), strict=True):
            if size % whole:
                raise ValueError(f"{name} must be a multiple of {whole}; was {size}.")
        self.a, self.b, self.c = a, b, c

    @functools.cached_property
    def launch(self) -> typing.Any:
        """The compiled function, and its tensors."""
        from cuda.bindings import driver
        from cutlass.cute import runtime

        found = compiled_product(*self.c.shape, self.a.shape[1])
        tensors = [runtime.from_dlpack(each, assumed_align=16) for each in (self.a, self.b.t(), self.c)]
        return lambda stream: found(*tensors, driver.CUstream(stream))

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)
