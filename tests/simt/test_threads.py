"""Several Python threads launch kernels at the same time."""

import contextvars
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.host.depth import DEEP, deep_calls

needs_threads = pytest.mark.native("threads")

THREADS = 4
BLOCK = 64


def together(*jobs):
    """The results of these functions, each in a thread of its own; all start at the same time."""
    start = threading.Barrier(len(jobs))

    def run(job):
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(run, job) for job in jobs]]


@cuda.jit(device=True)
def power(x, n):
    if n == 0:
        return np.float32(1)
    return x * power(x, n - 1)


@cuda.jit
def powers(x, out, n):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = power(x[i], n)


@cuda.jit
def block_sums(x, out):
    tile = cuda.shared.array(BLOCK, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = BLOCK // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(out, 0, tile[0])


@cuda.jit
def histogram(x, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, int(x[i]) % out.size, 1)


@cuda.jit
def in_turn(turn, out):
    """Blocks write in order: each waits for the one before it."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(turn, 0, 0) != cuda.blockIdx.x:
            pass
        out[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.threadfence()
        cuda.atomic.add(turn, 0, 1)


def whole(n):
    return np.arange(n, dtype=np.float32)


#: Kernel, blocks, fresh arguments (the output last but for powers), by what each computes.
JOBS = {
    "powers": (powers, 8, lambda x: (x / 512, np.zeros(512, np.float32), 12), 1),
    "sums": (block_sums, 8, lambda x: (x, np.zeros(1, np.float32)), 1),
    "histogram": (histogram, 8, lambda x: (x, np.zeros(7, np.int32)), 1),
    "turns": (in_turn, 5, lambda x: (np.zeros(1, np.int32), np.zeros(5, np.int32)), 1),
}


def run(name, level, x):
    kernel, blocks, arguments, at = JOBS[name]
    args = arguments(x)
    report = simt.profile(kernel, blocks, BLOCK, args, level=level)
    return args[at].tolist(), report.counters, [str(h) for h in report.hazards]


@needs_threads
@pytest.mark.parametrize("level", ["run", "count", "check"])
def test_different_kernels_at_once_do_what_each_does_alone(level):
    x = whole(512)
    alone = [run(name, level, x) for name in JOBS]
    for _ in range(3):
        assert together(*(lambda name=name: run(name, level, x) for name in JOBS)) == alone


@needs_threads
@pytest.mark.parametrize("name", JOBS)
def test_one_kernel_at_once_in_several_threads(name):
    x = whole(512)
    alone = run(name, "check", x)
    assert together(*[lambda: run(name, "check", x)] * THREADS) == [alone] * THREADS


@needs_threads
def test_a_kernel_that_is_new_to_all_threads():
    for _ in range(5):

        @cuda.jit
        def fresh(x, out):
            i = cuda.grid(1)
            value = x[i] if i < 100 else 0.0
            out[i] = value * 2 if i % 2 else value

        def job(kernel=fresh):
            out = np.zeros(128, np.float64)
            kernel[2, 64](whole(128), out)
            return out.tolist()

        results = together(*[job] * THREADS)
        assert results == [job()] * THREADS


@needs_threads
def test_threads_read_one_device_array():
    x = cuda.to_device(whole(512))

    def job():
        out = cuda.device_array(1, np.float32)
        out.copy_to_device(np.zeros(1, np.float32))
        report = simt.profile(block_sums, 8, BLOCK, (x, out), level="check")
        return float(out.copy_to_host()[0]), report.hazards

    assert together(*[job] * THREADS) == [(float(whole(512).sum()), [])] * THREADS


@needs_threads
def test_a_record_sees_the_launches_of_its_own_thread():
    x = whole(512)

    def job(launches):
        with simt.record() as reports:
            for _ in range(launches):
                block_sums[8, BLOCK](x, np.zeros(1, np.float32))
        return len(reports)

    with simt.record() as outer:
        assert together(*(lambda n=n: job(n) for n in (1, 2, 3, 4))) == [1, 2, 3, 4]
        histogram[8, BLOCK](x, np.zeros(7, np.int32))
    inherit = getattr(sys.flags, "thread_inherit_context", 0)
    assert [report.kernel for report in outer] == ["histogram"] or inherit


@needs_threads
def test_a_copy_of_the_context_takes_the_record_along():
    with simt.record() as reports:
        contexts = [contextvars.copy_context() for _ in range(THREADS)]
        together(*(lambda c=c: c.run(run_once) for c in contexts))
    assert [report.kernel for report in reports] == ["block_sums"] * THREADS


def run_once():
    block_sums[8, BLOCK](whole(512), np.zeros(1, np.float32))


@needs_threads
def test_settings_hold_in_the_thread_that_makes_them():
    @cuda.jit
    def rounds(x, n):
        k = 0
        while k < n:
            k += 1
        x[0] = k

    ready, done = threading.Event(), threading.Event()

    def strict():
        with simt.loop_limit(10), simt.schedule("shuffled", 3), simt.batch_lanes(32):
            ready.set()
            done.wait()
            with pytest.raises(simt.SimtError, match="looks endless"):
                rounds[1, 1](np.zeros(1, np.int64), 100)
            return simt.profile(histogram, 2, BLOCK, (whole(128), np.zeros(7, np.int32))).schedule

    def free():
        ready.wait()
        x = np.zeros(1, np.int64)
        rounds[1, 1](x, 100)
        done.set()
        return int(x[0]), simt.profile(histogram, 2, BLOCK, (whole(128), np.zeros(7, np.int32))).schedule

    assert together(strict, free) == ["shuffled, seed 3", (100, "lockstep")]


def test_the_recursion_limit_is_put_back_by_the_last_launch():
    usual = sys.getrecursionlimit()
    first, second = deep_calls(), deep_calls()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getrecursionlimit() == DEEP > usual  # the second launch still needs it
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == usual


def test_a_limit_that_somebody_else_sets_meanwhile_stays():
    usual = sys.getrecursionlimit()
    try:
        with deep_calls():
            sys.setrecursionlimit(DEEP + 1)
        assert sys.getrecursionlimit() == DEEP + 1
    finally:
        sys.setrecursionlimit(usual)


@needs_threads
def test_launches_of_nested_calls_leave_the_recursion_limit_as_it_was():
    usual = sys.getrecursionlimit()

    def job():
        out = np.zeros(32, np.float32)
        for _ in range(3):
            simt.profile(powers, 1, 32, (np.full(32, 1.0, np.float32), out, 100), level="run")
        return float(out.sum())

    assert together(*[job] * THREADS) == [32.0] * THREADS
    with pytest.raises(simt.SimtError, match="deep"):
        simt.profile(powers, 1, 32, (np.ones(32, np.float32), np.zeros(32, np.float32), 500), level="run")
    assert sys.getrecursionlimit() == usual
