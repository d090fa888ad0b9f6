"""A product of matrices with cuBLASDx in a kernel of Numba, for `pmpp.nn.measure.practitioners`.

nvmath-python makes functions of NVIDIA's cuBLASDx that a kernel calls. A pipeline copies tiles of A and B to shared
memory and multiplies them on the tensor cores. The kernel says which tile of C a block has, and what becomes of its
sums: here they are rounded to float16.

nvmath replaces parts of Numba when it is imported, so `pmpp` must have chosen its backend before. Therefore it is
imported where it is used.

Source: the documentation of nvmath-python, "Device APIs"; that of cuBLASDx, "Using pipelines".
"""

import functools
import typing

import numpy as np

TILE = (128, 256, 64)  # rows and columns of C for each block, and how much of K comes at a time
THREADS = 256
DEPTH = 4  # tiles of A and of B that are on their way, or there: 48 KiB each time


def description(sm: typing.Any = None) -> typing.Any:
    """What a block multiplies: a tile of matrices of float16 in C order, with sums in float32.

    ``sm`` is nvmath's ComputeCapability; by default that of the GPU.
    """
    from nvmath.device import Matmul
    from nvmath.device.cublasdx import MAX_ALIGNMENT

    return Matmul(
        size=TILE,
        precision=(np.float16, np.float16, np.float32),
        data_type="real",
        arrangement=("row_major", "row_major", "row_major"),
        execution="Block",
        block_size=THREADS,
        alignment=MAX_ALIGNMENT,
        with_pipeline=True,
        enable_input_streaming=True,
        static_block_dim=True,
        sm=sm,
    )


def kernel(tiles: typing.Any) -> typing.Any:
    """The kernel for a product of such tiles. It is compiled when it is first launched."""
    from numba import cuda
    from nvmath.device.common import make_tensor
    from nvmath.device.cublasdx_numba import pipeline_extensions

    tile_m, tile_n, _ = TILE

    @cuda.jit(extensions=pipeline_extensions, launch_bounds=[THREADS, 1])
    def product_kernel(c, pipeline):
        shared = cuda.shared.array(0, np.byte, alignment=pipeline.buffer_alignment)
        row, column = cuda.blockIdx.x, cuda.blockIdx.y
        tile = c[row * tile_m : (row + 1) * tile_m, column * tile_n : (column + 1) * tile_n]
        target = make_tensor(tile, tiles.get_layout_gmem_c(c.shape[1]))
        sums = tiles.suggest_accumulator()
        of_tile = pipeline.get_tile(shared, row, column)
        of_tile.execute(sums)
        of_tile._del()
        if sums.is_thread_active():
            exact = sums.get_results()
            # A fragment of float16 for this thread. What it is filled with is replaced, so that nothing is read for it.
            rounded = sums.make_partition_and_copy(target)
            for i in range(exact.layout.cosize):
                rounded[i] = np.float16(exact[i])
            sums.partition_and_copy(rounded, target)

    return product_kernel


class Product:
    """The product of ``a`` and ``b`` into ``c``: matrices of float16 in C order on the GPU, PyTorch's.

    Sums are float32. A pipeline knows where A and B lie, so an object is for these two; it is made when it is first
    called. Raises ValueError unless the sides are multiples of TILE.
    """

    def __init__(self, a: typing.Any, b: typing.Any, c: typing.Any) -> None:
        (m, k), n = a.shape, b.shape[1]
        for name, size, tile in zip("mnk", (m, n, k), TILE, strict=True):
            if size % tile:
                raise ValueError(f"{name} must be a multiple of {tile}; was {size}.")
        self.a, self.b, self.c = a, b, c

    @functools.cached_property
    def launch(self) -> typing.Any:
        """The kernel, configured for a stream, and what it takes."""
        from numba import cuda

        tiles = description()
        pipeline = tiles.suggest_device_pipeline(DEPTH, self.a, self.b)
        found, grid = kernel(tiles), (self.c.shape[0] // TILE[0], self.c.shape[1] // TILE[1])
        c = cuda.as_cuda_array(self.c)

        @functools.cache
        def on(stream: int) -> typing.Any:
            return found[grid, pipeline.block_dim, cuda.external_stream(stream), pipeline.buffer_size]

        return lambda stream: on(stream)(c, pipeline)

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)
