"""How fast is the interpreter where lanes part?  `python -m tests.support.parting` measures it on this machine.

In a tiled matmul all lanes do the same.  Here they do not: rows of a sparse matrix have very different lengths, one
lane loops long after the others have ended, a lock lets one lane in at a time.  An interpreter that computes every lane
until the last one is done wastes most of its work.

Each case is compared with Numba's CUDA simulator, per unit of its work, which may be a pixel's iterations or a pair of
bodies: the simulator gets a size that it can finish.  It runs in a process of its own, and its result is verified as
well.  Times are CPU seconds: those of the simulator count all of its threads.  The targets are those of issue 18.

`python -m tests.support.parting spmv lock` measures only the cases whose names begin so.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_FLAG = "--in-the-simulator"
IN_SIMULATOR = __name__ == "__main__" and _FLAG in sys.argv[1:]

if IN_SIMULATOR:
    from numba import cuda
else:
    from pmpp import simt
    from pmpp.simt import cuda

BLOCK = 256
ROUNDS = 200
WORDS = 10_000  # float32 of a local array of 40 KB
CORNERS = 8  # a quadrilateral that is cut by four lines has at most so many


# -- the kernels -----------------------------------------------------------------------------------------------------


@cuda.jit
def spmv(starts, columns, values, x, out):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for k in range(starts[i], starts[i + 1]):
            total += values[k] * x[columns[k]]
        out[i] = total


@cuda.jit
def bfs_level(starts, neighbours, level, frontier, following, grew, depth):
    i = cuda.grid(1)
    if i < level.size and frontier[i] != 0:
        for k in range(starts[i], starts[i + 1]):
            j = neighbours[k]
            if cuda.atomic.cas(level, j, -1, depth) == -1:
                following[j] = 1
                grew[0] = 1


@cuda.jit
def mandelbrot(side, out):
    j, i = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        c = complex(-2.0 + 2.5 * j / side, -1.25 + 2.5 * i / side)
        z = complex(0.0, 0.0)
        n = 0
        while n < ROUNDS and z.real * z.real + z.imag * z.imag <= 4.0:
            z = z * z + c
            n += 1
        out[i, j] = n


@cuda.jit
def collatz_like(rounds, out):
    i = cuda.grid(1)
    a = np.uint32(i)
    for _ in range(rounds[i]):
        a = np.uint32(a * np.uint32(1664525) + np.uint32(1013904223))
    out[i] = a


@cuda.jit
def take_turns(lock, value):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    value[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def nbody(x, y, z, mass, out):
    i = cuda.grid(1)
    if i < x.size:
        ax = np.float32(0)
        ay = np.float32(0)
        az = np.float32(0)
        for j in range(x.size):
            dx = x[j] - x[i]
            dy = y[j] - y[i]
            dz = z[j] - z[i]
            square = dx * dx + dy * dy + dz * dz + np.float32(1e-3)
            s = mass[j] / (square * np.float32(math.sqrt(square)))
            ax += s * dx
            ay += s * dy
            az += s * dz
        out[i, 0] = ax
        out[i, 1] = ay
        out[i, 2] = az


@cuda.jit(device=True)
def leaves(n):
    if n < 2:
        return 1
    return leaves(n - 1) + leaves(n - 2)


@cuda.jit
def count_leaves(depth, out):
    i = cuda.grid(1)
    out[i] = leaves(depth[i])


@cuda.jit(device=True)
def corners(box, i, xs, ys):
    c = math.cos(box[i, 4])
    s = math.sin(box[i, 4])
    for k in range(4):
        a = np.float32(0.5) if k % 3 == 0 else np.float32(-0.5)
        b = np.float32(0.5) if k < 2 else np.float32(-0.5)
        dx = box[i, 2] * a
        dy = box[i, 3] * b
        xs[k] = box[i, 0] + dx * c - dy * s
        ys[k] = box[i, 1] + dx * s + dy * c


@cuda.jit(device=True)
def overlap(boxes, i, queries, j):
    """The area that two turned boxes share: the first is cut by the four edges of the second, one after the other."""
    px = cuda.local.array(CORNERS, np.float32)
    py = cuda.local.array(CORNERS, np.float32)
    qx = cuda.local.array(CORNERS, np.float32)
    qy = cuda.local.array(CORNERS, np.float32)
    ex = cuda.local.array(4, np.float32)
    ey = cuda.local.array(4, np.float32)
    corners(boxes, i, px, py)
    corners(queries, j, ex, ey)
    n = 4
    for edge in range(4):
        ax = ex[edge]
        ay = ey[edge]
        bx = ex[(edge + 1) % 4] - ax
        by = ey[(edge + 1) % 4] - ay
        m = 0
        for k in range(n):
            last = (k + n - 1) % n
            here = bx * (py[k] - ay) - by * (px[k] - ax)
            before = bx * (py[last] - ay) - by * (px[last] - ax)
            if (here >= 0) != (before >= 0):
                t = before / (before - here)
                qx[m] = px[last] + t * (px[k] - px[last])
                qy[m] = py[last] + t * (py[k] - py[last])
                m += 1
            if here >= 0:
                qx[m] = px[k]
                qy[m] = py[k]
                m += 1
        n = m
        if n == 0:
            break
        for k in range(n):
            px[k] = qx[k]
            py[k] = qy[k]
    area = np.float32(0)
    for k in range(n):
        after = (k + 1) % n
        area += px[k] * py[after] - px[after] * py[k]
    return abs(area) * np.float32(0.5)


@cuda.jit
def rotated_iou(boxes, queries, out):
    j, i = cuda.grid(2)
    if i < boxes.shape[0] and j < queries.shape[0]:
        shared = overlap(boxes, i, queries, j)
        both = boxes[i, 2] * boxes[i, 3] + queries[j, 2] * queries[j, 3]
        out[i, j] = shared / (both - shared)


@cuda.jit
def large_locals(x, out):
    kept = cuda.local.array(WORDS, np.float32)
    i = cuda.grid(1)
    kept[i % WORDS] = x[i]
    kept[(i + 1) % WORDS] = np.float32(2)
    out[i] = kept[i % WORDS] * kept[(i + 1) % WORDS]


@cuda.jit
def small(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + np.float32(1)


@cuda.jit
def spin_with_a_counter(flag, out):
    n = 0
    while flag[0] == 0:
        n += 1
    out[0] = n


# -- the cases -------------------------------------------------------------------------------------------------------

#: Launches kernels one after the other: `launch(kernel, grid, block, args)`.
Launcher = Callable[[Any, Any, Any, tuple], Any]


@dataclass(frozen=True)
class Case:
    """A program: `make(size)` gives a function that runs it by a launcher and returns what came out and what should.

    sizes   for the simulator, and for the interpreter
    work    units of work at a size
    target  how many times as fast as the simulator, per unit
    """

    name: str
    unit: str
    sizes: tuple[int, int]
    make: Callable[[int], Callable[[Launcher], tuple[np.ndarray, np.ndarray]]]
    work: Callable[[int], float]
    target: float = 1


def lengths_by_power_law(n: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths of which few are very large: the longest have 512, most fewer than ten."""
    return np.minimum(1 + rng.pareto(1.2, n) * 3, 512).astype(np.int64)


def graph(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A sparse matrix with rows of such lengths, the same for a size: where each row begins, and its columns."""
    rng = np.random.default_rng(n)
    starts = np.concatenate([[0], np.cumsum(lengths_by_power_law(n, rng))])
    return starts, rng.integers(0, n, starts[-1])


def make_spmv(n: int) -> Callable:
    starts, columns = graph(n)
    rng = np.random.default_rng(1)
    values, x = (rng.integers(0, 4, k).astype(np.float32) for k in (columns.size, n))
    expected = np.add.reduceat(values * x[columns], starts[:-1])

    def run(launch: Launcher) -> tuple:
        out = np.zeros(n, np.float32)
        launch(spmv, -(-n // BLOCK), BLOCK, (starts, columns, values, x, out))
        return out, expected

    return run


def make_bfs(n: int) -> Callable:
    starts, neighbours = graph(n)
    expected = np.full(n, -1, np.int32)
    expected[0], front, depth = 0, [0], 0
    while front:
        depth += 1
        reached = np.unique(np.concatenate([neighbours[starts[i] : starts[i + 1]] for i in front]))
        front = reached[expected[reached] < 0].tolist()
        expected[front] = depth

    def run(launch: Launcher) -> tuple:
        level = np.full(n, -1, np.int32)
        level[0], depth = 0, 0
        frontier, grew = np.zeros(n, np.int32), np.ones(1, np.int32)
        frontier[0] = 1
        while grew[0]:
            depth += 1
            grew[0], following = 0, np.zeros(n, np.int32)
            launch(
                bfs_level, -(-n // BLOCK), BLOCK,
                (starts, neighbours, level, frontier, following, grew, np.int32(depth)),
            )  # fmt: skip
            frontier = following
        return level, expected

    return run


def escape_times(n: int) -> np.ndarray:
    c = -2.0 + 2.5 * np.arange(n) / n + 1j * (-1.25 + 2.5 * np.arange(n)[:, None] / n)
    z, count = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(ROUNDS):
        inside = z.real * z.real + z.imag * z.imag <= 4.0
        count += inside
        with np.errstate(all="ignore"):
            z = np.where(inside, z * z + c, z)
    return count


def make_mandelbrot(n: int) -> Callable:
    expected = escape_times(n)

    def run(launch: Launcher) -> tuple:
        out = np.zeros((n, n), np.int64)
        launch(mandelbrot, (-(-n // 16),) * 2, (16, 16), (n, out))
        chaotic = out != expected  # a fused multiply-add may escape a round earlier or later
        assert np.count_nonzero(chaotic) <= 0.01 * out.size
        return np.where(chaotic, 0, out), np.where(chaotic, 0, expected)

    return run


def make_long_tail(n: int) -> Callable:
    rounds = np.ones(n, np.int64)
    rounds[n // 3] = 10_000
    expected = np.arange(n, dtype=np.uint32)
    for k in range(10_000):
        here = rounds > k if k < 1 else slice(n // 3, n // 3 + 1)
        expected[here] = expected[here] * np.uint32(1664525) + np.uint32(1013904223)

    def run(launch: Launcher) -> tuple:
        out = np.zeros(n, np.uint32)
        launch(collatz_like, n // BLOCK, BLOCK, (rounds, out))
        return out, expected

    return run


def make_lock(n: int) -> Callable:
    def run(launch: Launcher) -> tuple:
        lock, value = np.zeros(1, np.int32), np.zeros(1, np.int32)
        launch(take_turns, 1, n, (lock, value))
        return value, np.array([n], np.int32)

    return run


def make_nbody(n: int) -> Callable:
    x, y, z, mass = np.random.default_rng(2).random((4, n), np.float32)
    d = np.stack([a[None, :].astype(np.float64) - a[:, None] for a in (x, y, z)])
    expected = (d * mass / ((d**2).sum(0) + 1e-3) ** 1.5).sum(2).T

    def run(launch: Launcher) -> tuple:
        out = np.zeros((n, 3), np.float32)
        launch(nbody, -(-n // 64), 64, (x, y, z, mass, out))
        near = np.abs(out - expected) <= 1e-3 * np.abs(expected).max()
        return near, np.ones_like(near)

    return run


def make_recursion(n: int) -> Callable:
    depth = np.arange(n, dtype=np.int64) % 10
    known = [1, 1]
    while len(known) < 10:
        known.append(known[-1] + known[-2])

    def run(launch: Launcher) -> tuple:
        out = np.zeros(n, np.int64)
        launch(count_leaves, n // 64, 64, (depth, out))
        return out, np.array(known)[depth]

    return run


def make_iou(n: int) -> Callable:
    rng = np.random.default_rng(3)
    boxes, queries = (
        np.column_stack([rng.uniform(0, 4, (n, 2)), rng.uniform(1, 3, (n, 2)), rng.uniform(0, np.pi, n)]).astype(
            np.float32
        )
        for _ in range(2)
    )
    expected = np.array([[_iou(a, b) for b in queries] for a in boxes])

    def run(launch: Launcher) -> tuple:
        out = np.zeros((n, n), np.float32)
        launch(rotated_iou, (-(-n // 8),) * 2, (8, 8), (boxes, queries, out))
        near = np.abs(out - expected) < 1e-4
        return near, np.ones_like(near)

    return run


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    """The same in float64, with Python's complex numbers as points."""

    def quadrilateral(box: np.ndarray) -> list[complex]:
        x, y, w, h, angle = map(float, box)
        turn = complex(math.cos(angle), math.sin(angle))
        halves = [(0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5), (0.5, -0.5)]
        return [complex(x, y) + complex(w * p, h * q) * turn for p, q in halves]

    points, edges = quadrilateral(a), quadrilateral(b)
    for start, end in zip(edges, [*edges[1:], edges[0]], strict=True):
        sides = [((end - start).conjugate() * (p - start)).imag for p in points]
        kept = []
        for p, side, q, before in zip(points, sides, [points[-1], *points], [sides[-1], *sides], strict=False):
            if (side >= 0) != (before >= 0):
                kept.append(q + before / (before - side) * (p - q))
            if side >= 0:
                kept.append(p)
        points, sides = kept, []
        if not points:
            return 0.0
    area = abs(sum((p.conjugate() * q).imag for p, q in zip(points, [*points[1:], points[0]], strict=True))) / 2
    return area / (float(a[2]) * float(a[3]) + float(b[2]) * float(b[3]) - area)


def make_locals(n: int) -> Callable:
    x = np.arange(n, dtype=np.float32)

    def run(launch: Launcher) -> tuple:
        out = np.zeros(n, np.float32)
        launch(large_locals, n // BLOCK, BLOCK, (x, out))
        return out, 2 * x

    return run


def make_small(n: int) -> Callable:
    x = np.arange(64, dtype=np.float32)

    def run(launch: Launcher) -> tuple:
        out = cuda.to_device(np.zeros(64, np.float32))
        there = cuda.to_device(x)
        for _ in range(n):
            launch(small, 1, 64, (there, out))
        return out.copy_to_host(), x + 1

    return run


def entries(n: int) -> float:
    return float(graph(n)[0][-1])


CASES = (
    Case("spmv, power law", "entry", (4096, 4096), make_spmv, entries, 100),
    Case("bfs, power law", "edge", (2_500, 10_000), make_bfs, entries, 100),
    Case("mandelbrot, complex", "iteration", (32, 512), make_mandelbrot, lambda n: float(escape_times(n).sum()), 50),
    Case("long tail", "launch", (16_384, 16_384), make_long_tail, lambda n: 1, 20),
    Case("lock, one block", "lane", (256, 256), make_lock, float, 5),
    Case("n-body", "pair", (64, 1024), make_nbody, lambda n: n * n, 500),
    Case("recursion", "thread", (256, 256), make_recursion, float),
    Case("recursion, many", "thread", (256, 16_384), make_recursion, float),
    Case("rotated iou", "pair", (16, 16), make_iou, lambda n: n * n),
    Case("rotated iou, many", "pair", (16, 128), make_iou, lambda n: n * n),
    Case("local arrays, 40 KB", "thread", (1024, 65_536), make_locals, float),
    Case("launch of 64 threads", "launch", (10, 200), make_small, float),
)


def chosen() -> list[Case]:
    """The cases that the command line names, or all."""
    names = tuple(a for a in sys.argv[1:] if not a.startswith("--"))
    return [case for case in CASES if not names or case.name.startswith(names)]


def seconds(case: Case, size: int, launch: Launcher, repeats: int) -> float:
    """CPU seconds of one run, the fastest of so many or, if runs are short, of a second's; each result is verified."""
    run, times = case.make(size), []
    while len(times) < repeats or sum(times) < 1:
        start = time.process_time()
        out, expected = run(launch)
        times.append(time.process_time() - start)
        np.testing.assert_array_equal(out, expected)
    return min(times)


def in_simulator() -> None:
    """The subprocess: one JSON line a case."""
    for case in chosen():
        took = seconds(case, case.sizes[0], lambda kernel, grid, block, args: kernel[grid, block](*args), 2)
        print(json.dumps([case.name, took]), flush=True)


def simulator_times() -> Iterator[tuple[str, float]]:
    """Name and seconds of each case in Numba's simulator, as they become known."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.support.parting", *sys.argv[1:], _FLAG]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield tuple(json.loads(line))
    if process.returncode:
        raise SystemExit(f"Numba's simulator did not finish (exit {process.returncode}); is numba-cuda installed?")


def in_interpreter(case: Case, level: str) -> float:
    """CPU seconds of a case at a level."""

    def launch(kernel: Any, grid: Any, block: Any, args: tuple) -> None:
        report = simt.profile(kernel, grid, block, args, level=level)
        assert not report.hazards, report.hazards

    return seconds(case, case.sizes[1], launch, 4)


def refused_after() -> float:
    """CPU seconds until a loop that waits for nobody, and counts its rounds, is refused."""
    start = time.process_time()
    try:
        simt.profile(spin_with_a_counter, 1, 32, (np.zeros(1, np.int32), np.zeros(1, np.int64)))
    except simt.SimtError:
        return time.process_time() - start
    raise AssertionError("a loop that waits for ever has ended")


def peak_of_locals() -> int:
    """The most bytes that local arrays of 40 KB in 65,536 threads hold at a time."""
    run = make_locals(65_536)
    tracemalloc.start()
    try:
        run(simt.profile)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    header = f"{'per unit of work':24}{'unit':12}{'simulator':>17}{'count':>17}{'check':>17}{'gain':>12}{'target':>9}"
    print(f"{header}{'check/count':>13}", flush=True)
    simulated, known = dict(simulator_times()) if "--alone" not in sys.argv else {}, math.nan
    for case in chosen():
        each = simulated.get(case.name, known) / case.work(case.sizes[0])
        count, check = (in_interpreter(case, level) / case.work(case.sizes[1]) for level in ("count", "check"))
        print(f"{case.name:24}{case.unit:12}{each * 1e6:14.3f} us{count * 1e6:14.3f} us{check * 1e6:14.3f} us"
              f"{each / count:11,.1f}x{case.target:8,}x{check / count:12.1f}x", flush=True)  # fmt: skip
    if len(chosen()) == len(CASES):
        print(f"\na loop that waits and counts its rounds is refused after {refused_after():.2f} s")
        print(f"local arrays of 40 KB in 65,536 threads hold {peak_of_locals() / 2**20:,.0f} MiB at most", flush=True)


if __name__ == "__main__":
    in_simulator() if IN_SIMULATOR else main()
