"""A softmax of rows in the CuTe DSL, for `pmpp.nn.measure.practitioners`.

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


@functools.cache
def program() -> typing.Any:
    """The function in the DSL that launches the kernel: ``program()(x, out, stream)``, with tensors of CuTe."""
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute, memory

    warps = THREADS // 32

    @cute.jit
    def of_the_block(value, cells, combine, across):
        """Combine what the threads have: in each warp by shuffles, and then what the warps wrote to their cells."""
        value = across(value)
        if cute.arch.lane_idx() == 0:
            cells[cute.arch.warp_idx()] = value
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


def compiled(rows: int, columns: int) -> typing.Any:
    """The softmax of matrices of such a shape, compiled; called with two tensors of CuTe and a stream."""
    import cutlass
    from cuda.bindings import driver
    from cutlass import cute
    from cutlass.cute import runtime

    like = runtime.make_fake_compact_tensor(cutlass.Float32, (rows, columns), stride_order=(1, 0), assumed_align=16)
    return cute.compile(program(), like, like, driver.CUstream(0))


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

        found = compiled(*self.x.shape)
        x, out = (runtime.from_dlpack(each, assumed_align=16) for each in (self.x, self.out))
        return lambda stream: found(x, out, driver.CUstream(stream))

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)
