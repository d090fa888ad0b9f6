"""How fast is the interpreter, and how large?  `python -m tests.support.versus` measures it on this machine.

Against Numba's CUDA simulator: both run the same kernels one after the other, in one call, and both results are
verified first.  The simulator starts an operating-system thread for every CUDA thread and counts nothing; the
interpreter is timed at level "count" and at level "check".  The simulator runs in a process of its own, the only one
that imports Numba, and is timed once: its runs take seconds.  The interpreter's time is the median of several runs.

Then by itself: a tiled matmul of 512^3, what a thread-instruction costs in launches of 10^4 to 10^8 of them, and the
most memory that a launch holds, by Python's own account (tracemalloc), over grids of 2^8 to 2^16 blocks.

Times against the simulator are by the clock on the wall, so the machine should have nothing else to do; those of the
interpreter by itself are CPU seconds, which on an idle machine are the same, because it uses one core.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_FLAG = "--in-the-simulator"
IN_SIMULATOR = __name__ == "__main__" and sys.argv[1:] == [_FLAG]

if IN_SIMULATOR:
    from numba import cuda
else:
    from pmpp import simt
    from pmpp.simt import cuda

TILE = 16
BLOCK = 256
SIDE = 32
PITCH = SIDE + 1


@cuda.jit
def vector_add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@cuda.jit
def transpose(x, out):
    tile = cuda.shared.array((SIDE, PITCH), np.float32)
    i = cuda.blockIdx.y * SIDE + cuda.threadIdx.y
    j = cuda.blockIdx.x * SIDE + cuda.threadIdx.x
    tile[cuda.threadIdx.y, cuda.threadIdx.x] = x[i, j]
    cuda.syncthreads()
    i = cuda.blockIdx.x * SIDE + cuda.threadIdx.y
    j = cuda.blockIdx.y * SIDE + cuda.threadIdx.x
    out[i, j] = tile[cuda.threadIdx.x, cuda.threadIdx.y]


@cuda.jit
def tiled_matmul(a, b, c):
    left = cuda.shared.array((TILE, TILE), np.float32)
    right = cuda.shared.array((TILE, TILE), np.float32)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    j, i = cuda.grid(2)
    total = np.float32(0)
    for k in range(0, a.shape[1], TILE):
        left[y, x] = a[i, k + x]
        right[y, x] = b[k + y, j]
        cuda.syncthreads()
        for p in range(TILE):
            total += left[y, p] * right[p, x]
        cuda.syncthreads()
    c[i, j] = total


@cuda.jit
def shared_reduction(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.size:
        partial[t] = x[i]
    else:
        partial[t] = 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if t < stride:
            partial[t] += partial[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        cuda.atomic.add(out, 0, partial[0])


def cases() -> Iterator[tuple[str, Any, Any, Any, Callable[[], tuple], Callable[..., Any]]]:
    """Name, kernel, grid, block, fresh arguments (the output last), and the expected output of those arguments."""
    rng = np.random.default_rng(0)
    n = 1 << 14
    vectors = rng.integers(0, 16, (2, n)).astype(np.float32)  # small integers: every sum is exact in float32
    yield ("vector add, 16 k", vector_add, n // BLOCK, BLOCK,
           lambda: (*vectors, np.zeros(n, np.float32)), lambda a, b, _: a + b)  # fmt: skip
    square = rng.random((128, 128), np.float32)
    yield ("transpose, 128^2", transpose, (128 // SIDE,) * 2, (SIDE, SIDE),
           lambda: (square, np.zeros_like(square)), lambda x, _: x.T)  # fmt: skip
    matrices = rng.integers(0, 16, (2, 64, 64)).astype(np.float32)
    yield ("tiled matmul, 64^3", tiled_matmul, (64 // TILE,) * 2, (TILE, TILE),
           lambda: (*matrices, np.zeros((64, 64), np.float32)), lambda a, b, _: a @ b)  # fmt: skip
    yield ("shared reduction, 16 k", shared_reduction, n // BLOCK, BLOCK,
           lambda: (vectors[0], np.zeros(1, np.float32)), lambda x, _: x.sum())  # fmt: skip


def seconds(
    run: Callable[[tuple], Any],
    make: Callable[[], tuple],
    expected: Callable[..., Any],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time of `run`, after a check of its first result; with one repeat the checked run is the timed one."""
    times = []
    for k in range(repeats):
        args = make()
        start = clock()
        run(args)
        times.append(clock() - start)
        if k == 0:
            np.testing.assert_array_equal(args[-1], np.broadcast_to(expected(*args), args[-1].shape))
    return statistics.median(times[1:] or times)


def in_simulator() -> None:
    """The subprocess: one JSON line a case."""
    for name, kernel, grid, block, make, expected in cases():
        print(json.dumps([name, seconds(lambda args, k=kernel[grid, block]: k(*args), make, expected, 1)]), flush=True)


def in_interpreter(level: str, repeats: int = 8) -> dict[str, float]:
    """Seconds of each case at a level."""
    return {
        name: seconds(
            lambda args, k=kernel, g=grid, b=block: simt.profile(k, g, b, args, level=level), make, expected, repeats
        )
        for name, kernel, grid, block, make, expected in cases()
    }


def simulator_times() -> Iterator[tuple[str, float]]:
    """Name and seconds of each case in Numba's simulator, as they become known."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.support.versus", _FLAG]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield tuple(json.loads(line))
    if process.returncode:
        raise SystemExit(f"Numba's simulator did not finish (exit {process.returncode}); is numba-cuda installed?")


def matmul(n: int, level: str) -> float:
    """Seconds of a tiled product of n x n matrices; n is a multiple of TILE."""
    a, b = np.random.default_rng(0).integers(0, 4, (2, n, n)).astype(np.float32)
    return seconds(
        lambda args: simt.profile(tiled_matmul, (n // TILE,) * 2, (TILE, TILE), args, level=level),
        lambda: (a, b, np.zeros_like(a)), lambda x, y, _: x @ y, 1, time.process_time,
    )  # fmt: skip


@cuda.jit
def iterate(x, out, rounds):
    i = cuda.grid(1)
    a = x[i]
    for _ in range(rounds):
        a = a * a + np.float32(0.25)
    out[i] = a


#: Threads and rounds of `iterate`: first more threads, then more instructions for each.
GROWTH = [(1 << k, 2) for k in (10, 13, 16, 19, 21, 23)] + [(1 << 16, k) for k in (100, 200, 400)]


def growth() -> Iterator[tuple[int, int, int, float]]:
    """Threads, rounds, thread-instructions, and seconds, the best of three."""
    for threads, rounds in GROWTH:
        x, best = np.full(threads, 0.1, np.float32), float("inf")
        for _ in range(3):
            start = time.process_time()
            report = simt.profile(iterate, threads // BLOCK, BLOCK, (x, np.zeros_like(x), rounds))
            best = min(best, time.process_time() - start)
        yield threads, rounds, report.counters["thread_instructions"], best


def peak_memory(blocks: int, level: str = "count") -> int:
    """The most bytes that a launch of so many blocks holds at a time, over arrays of 1 MiB in all."""
    args = np.ones(1 << 17, np.float32), np.zeros(1 << 17, np.float32)
    tracemalloc.start()
    try:
        simt.profile(round_and_round, blocks, BLOCK, args, level=level)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@cuda.jit
def round_and_round(x, out):
    tile = cuda.shared.array(BLOCK, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1) % x.size
    tile[t] = x[i]
    cuda.syncthreads()
    total = np.float32(0)
    for k in range(4):
        total += tile[(t + k) % BLOCK]
    cuda.atomic.max(out, i, total)


def main() -> None:
    for level in ("count", "check"):
        print(f'tiled matmul, 512^3, level "{level}": {matmul(512, level):.2f} s', flush=True)
    print(f"\n{'threads':>12}{'rounds':>8}{'thread-instructions':>22}{'seconds':>10}{'ns each':>9}")
    for threads, rounds, instructions, took in growth():
        each = 1e9 * took / instructions
        print(f"{threads:12,}{rounds:8}{instructions:22,}{took:10.4f}{each:9.2f}", flush=True)
    print(f"\n{'blocks':>12}{'threads':>14}{'peak memory, level count':>28}")
    for blocks in (1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16):
        print(f"{blocks:12,}{blocks * BLOCK:14,}{peak_memory(blocks) / 2**20:24.1f} MiB", flush=True)
    print()
    count, check = in_interpreter("count"), in_interpreter("check")
    print(f"{'':24}{'simulator':>12}{'count':>12}{'check':>12}{'count':>9}{'check':>9}", flush=True)
    for name, simulated in simulator_times():
        print(f"{name:24}{simulated:10.2f} s{count[name] * 1e3:9.2f} ms{check[name] * 1e3:9.2f} ms"
              f"{simulated / count[name]:8,.0f}x{simulated / check[name]:8,.0f}x", flush=True)  # fmt: skip


if __name__ == "__main__":
    in_simulator() if IN_SIMULATOR else main()
