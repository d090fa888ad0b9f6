"""How many operations a second the tensor cores of a Hopper GPU do at best, by the type of their operands.

Two warpgroups a multiprocessor multiply 64 x 256 again and again, out of shared memory, and fetch nothing. The numbers
are random: with zeros the GPU needs less power and is faster. A GPU of another compute capability than 9.0 has other
instructions, and is not measured.
"""

from __future__ import annotations

import typing

import numpy as np

__all__ = ["KINDS", "measure"]

TURNS = 2000  # of four products each: a millisecond, about
THREADS, ROWS, COLUMNS = 256, 128, 256  # of a block: two warpgroups, and the sums that they have
STAGE = (ROWS + COLUMNS) * 64  # 16-bit numbers in shared memory: 128 bytes of each row of A and each column of B


def _normal(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(STAGE).astype(np.float16).view(np.uint16)


def _singles(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(STAGE // 2).astype(np.float32).view(np.uint16)


def _bytes(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, 2 * STAGE).astype(np.uint8).view(np.uint16)


def _e4m3(rng: np.random.Generator) -> np.ndarray:
    """Of both signs, and from 1/2 to 1.875."""
    bits = rng.integers(0x30, 0x40, 2 * STAGE) | rng.integers(0, 2, 2 * STAGE) << 7
    return bits.astype(np.uint8).view(np.uint16)


#: By type: the instruction, bytes of a number, and what draws operands.
KINDS: dict[str, tuple[str, int, typing.Callable[[np.random.Generator], np.ndarray]]] = {
    "float16": ("wgmma_f16", 2, _normal),
    "tf32": ("wgmma_tf32", 4, _singles),
    "int8": ("wgmma_s8", 1, _bytes),
    "e4m3": ("wgmma_e4m3", 1, _e4m3),
}


def measure(timer: typing.Any, max_seconds: float) -> dict[str, float]:
    """Operations a second by type, a multiply-add being two; none on a GPU of another compute capability than 9.0.

    Raises pmpp.lab.measure.timing.WrongResult if a kernel did not multiply: its sums would not be finite numbers other
    than 0.
    """
    from pmpp.lab.measure import timing
    from pmpp.runtime import device

    if device.limits()["compute_capability"] != (9, 0):
        return {}
    cuda, blocks, found = device.backend().cuda, device.limits()["multiprocessors"], {}
    for kind, (instruction, itemsize, draw) in KINDS.items():
        kernel = kernel_of(instruction)
        bits = cuda.to_device(draw(np.random.default_rng(0)))
        out = cuda.device_array(blocks * THREADS, np.int32 if kind == "int8" else np.float32)

        def check(result: typing.Any, bits: typing.Any, out: typing.Any) -> tuple[float, float]:
            sums = out.copy_to_host()
            return float(np.count_nonzero(sums == 0) + np.count_nonzero(~np.isfinite(sums))), THREADS / 4

        time = timing.measure(
            lambda bits, out, kernel=kernel: kernel[blocks, THREADS, 0, 2 * STAGE](bits, TURNS, out),
            [(bits, out)], timer=timer, check=check, max_seconds=max_seconds,
        )  # fmt: skip
        products = TURNS * 4 * blocks * ROWS * COLUMNS * (32 // itemsize)
        found[kind] = 2 * products / time.median
    return found


def kernel_of(instruction: str) -> typing.Any:
    """A kernel that multiplies the same tiles ``turns`` times and adds the products up."""
    from pmpp import cuda
    from pmpp.runtime import hopper

    wgmma, by_rows = getattr(hopper, instruction), instruction == "wgmma_f16"
    tile_descriptor, fence, commit = hopper.tile_descriptor, hopper.wgmma_fence, hopper.wgmma_commit
    wait, visible = hopper.wgmma_wait, hopper.copies_visible
    nothing = ((np.int32 if instruction == "wgmma_s8" else np.float32)(0),) * (COLUMNS // 2)
    begin, apart, down = ROWS * 64, 4096 if by_rows else 0, 1024 if by_rows else 16

    @cuda.jit(launch_bounds=(THREADS, 1))
    def multiply_again(bits, turns, out):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        thread = cuda.threadIdx.x
        for i in range(thread, bits.size, THREADS):
            shared[i] = bits[i]
        visible()
        cuda.syncthreads()
        mine, sums = thread // 128 * 4096, nothing
        for _ in range(turns):
            fence()
            sums = wgmma(tile_descriptor(shared, mine, 0), tile_descriptor(shared, begin, apart), sums)
            sums = wgmma(tile_descriptor(shared, mine + 16, 0), tile_descriptor(shared, begin + down, apart), sums)
            sums = wgmma(tile_descriptor(shared, mine + 32, 0), tile_descriptor(shared, begin + 2 * down, apart), sums)
            sums = wgmma(tile_descriptor(shared, mine + 48, 0), tile_descriptor(shared, begin + 3 * down, apart), sums)
            commit()
            sums = wait(1, sums)
        sums = wait(0, sums)
        out[cuda.grid(1)] = sums[0] + sums[1]

    return multiply_again
