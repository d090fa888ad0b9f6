"""Threads that wait for one another, wherever in a kernel they do; no operating-system thread is used for it."""

import threading

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

BLOCK = 64
SCHEDULES = ("lockstep", "blocks", "warps", "shuffled")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    """There are none in a browser."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


@cuda.jit(device=True)
def left(x, t):
    """What the thread to the left has written, after a barrier."""
    cuda.syncthreads()
    value = x[(t - 1) % BLOCK]
    cuda.syncthreads()
    return value


@cuda.jit(device=True)
def noted(x, t, value):
    """Writes, and returns what was there."""
    old = left(x, t + 1)
    x[t] = value
    return old


@cuda.jit(device=True)
def add(a, b, times=1):
    return a + b * times


@cuda.jit(device=True)
def down(x, t, n):
    """Waits n times, by recursion."""
    if n == 0:
        return x[t]
    return left(x, t) + down(x, t, n - 1)


@cuda.jit
def in_every_expression(out):
    x = cuda.shared.array(BLOCK, np.int64)
    y = cuda.local.array(4, np.int64)
    t = cuda.threadIdx.x
    x[t] = t * t
    first = x[t] - left(x, t) * 2
    second = -left(x, t) if left(x, 0) > 100 else left(x, t) + 1  # in a block, all go one way
    third = left(x, 0) > 50 and left(x, t) % 2 == 0
    fourth = add(left(x, t), x[t], times=left(x, t) % 5)
    pair = left(x, t), (t, left(x, t))
    y[left(x, t) % 4] = 7
    y[left(x, t) % 4] += left(x, t)
    total = 5
    total -= left(x, t)
    for k in range(left(x, t) % 3 * 0 + 3):
        total += k * left(x, t)
    rounds = 0
    while left(x, t) + rounds * 0 >= 0 and rounds < 2:
        rounds += 1
    twice = lambda v: left(x, t) + v  # noqa: E731
    low, high = pair[1]
    same = low < left(x, t) == high
    assert left(x, t) >= 0
    out[cuda.grid(1), 0] = first
    out[cuda.grid(1), 1] = second + third
    out[cuda.grid(1), 2] = fourth + pair[0] + high + same
    out[cuda.grid(1), 3] = total + y[left(x, t) % 4]
    out[cuda.grid(1), 4] = twice(3) + min(left(x, t), 9) + np.int64(left(x, t))
    out[cuda.grid(1), 5] = down(x, t, 3) + x[left(x, t) % BLOCK]


def expected():
    t = np.arange(BLOCK)
    x = t * t
    before = x[(t - 1) % BLOCK]
    out = np.empty((BLOCK, 6), np.int64)
    out[:, 0] = x - before * 2
    out[:, 1] = -before + (before % 2 == 0)
    same = t < before
    out[:, 2] = before + x * (before % 5) + before + before + same
    out[:, 3] = 5 - before + 3 * before + 7 + before
    out[:, 4] = before + 3 + np.minimum(before, 9) + before
    out[:, 5] = 3 * before + x + x[before % BLOCK]
    return out


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("level", ["run", "check"])
def test_a_device_function_may_wait_in_every_expression(schedule, level):
    out = np.zeros((3 * BLOCK, 6), np.int64)
    report = simt.profile(in_every_expression, 3, BLOCK, (out,), level=level, schedule=schedule)
    assert report.hazards == []
    np.testing.assert_array_equal(out, np.tile(expected(), (3, 1)))


def test_counters_do_not_depend_on_who_takes_turns():
    found = [
        simt.profile(in_every_expression, 2, BLOCK, (np.zeros((2 * BLOCK, 6), np.int64),), schedule=each).counters
        for each in SCHEDULES
    ]
    assert found == [found[0]] * len(found)


@cuda.jit
def operands_in_order(out):
    """Each left operand is read before the call to its right waits and changes it."""
    x = cuda.shared.array(BLOCK, np.int64)
    t = cuda.threadIdx.x
    x[t] = 10
    a = x[t] * 100 + noted(x, t, 20)
    x[t] += noted(x, t, 30)
    b = x[t]
    out[t] = a * 1000 + b


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operands_are_read_before_a_call_to_their_right_waits(schedule):
    out = np.zeros(BLOCK, np.int64)
    simt.profile(operands_in_order, 1, BLOCK, (out,), schedule=schedule)
    assert out.tolist() == [(10 * 100 + 10) * 1000 + 20 + 20] * BLOCK


@cuda.jit(device=True)
def locked(lock):
    return cuda.atomic.cas(lock, 0, 0, 1) != 0


@cuda.jit(device=True)
def take(lock):
    while locked(lock):
        pass
    cuda.threadfence()
    return 1


@cuda.jit
def count_under_a_lock(lock, counter):
    counter[0] += take(lock)
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


def test_a_lock_that_a_device_function_takes():
    """The loop waits inside two calls, and lanes of one warp wait for each other.

    `counter[0] += take(lock)` reads the counter before it has the lock, so increments are lost, as on a GPU.
    """
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int64)
    report = simt.profile(count_under_a_lock, 3, 32, (lock, counter), level="count")
    assert report.schedule == "lanes"
    assert lock[0] == 0
    assert 1 <= counter[0] <= 96


@cuda.jit
def chain_by_an_atomic_maximum(states, out):
    t = cuda.blockIdx.x
    if t > 0:
        while cuda.atomic.max(states, t - 1, 0) == 0:
            pass
        cuda.threadfence()
    out[t] = out[t - 1] + 1 if t > 0 else 1
    cuda.threadfence()
    cuda.atomic.add(states, t, 1)


def test_an_atomic_maximum_reads_memory():
    """The function `max` does not, and has the same name."""
    states, out = np.zeros(5, np.int32), np.zeros(5, np.int64)
    chain_by_an_atomic_maximum[5, 1](states, out)
    assert out.tolist() == [1, 2, 3, 4, 5]


@cuda.jit
def halves_a_complex(x):
    x[0] = x[0] / np.complex64(2j)


def test_a_complex_constant_divides(recwarn):
    x = np.complex64([4 + 2j])
    halves_a_complex[1, 1](x)
    assert x[0] == 1 - 2j
    assert not list(recwarn)


@cuda.jit
def vote_in_turn(out):
    t = cuda.threadIdx.x
    mine = cuda.syncthreads_count(np.int32(t % 3 == 0)) * 100 + cuda.syncthreads_or(np.int32(t == 5))
    out[cuda.grid(1)] = mine + 10 * (cuda.syncthreads_and(np.int32(t >= 0)) if mine else 0)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "lanes"])
def test_barriers_with_a_result_inside_expressions(schedule):
    out = np.zeros(2 * BLOCK, np.int64)
    simt.profile(vote_in_turn, 2, BLOCK, (out,), schedule=schedule)
    assert out.tolist() == [22 * 100 + 1 + 10] * (2 * BLOCK)


@cuda.jit
def chain(turn, out):
    """Each block waits for the one before it, and the first for nobody."""
    b = cuda.blockIdx.x
    while cuda.atomic.add(turn, 0, 0) != b:
        pass
    out[b] = b
    cuda.threadfence()
    cuda.atomic.add(turn, 0, 1)


@pytest.mark.parametrize("seed", range(3))
def test_many_blocks_wait_without_a_thread_of_their_own(seed):
    out = np.zeros(200, np.int64)
    simt.profile(chain, 200, 1, (np.zeros(1, np.int32), out), schedule="lanes", seed=seed)
    assert out.tolist() == list(range(200))


@cuda.jit
def whole_grid(x, out):
    g = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    g.sync()
    out[i] = x[x.size - 1 - i]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_of_the_grid(schedule):
    x, out = np.zeros(256, np.int64), np.zeros(256, np.int64)
    simt.profile(whole_grid, 4, BLOCK, (x, out), schedule=schedule)
    assert out.tolist() == list(range(255, -1, -1))


@cuda.jit
def loop_target(x, out):
    for out[left(x, 0)] in range(3):
        pass


def test_the_target_of_a_loop_cannot_wait():
    with pytest.raises(simt.UnsupportedError, match="target of a loop"):
        simt.profile(loop_target, 1, 1, (np.zeros(1), np.zeros(1)))


def test_an_error_in_one_block_ends_the_launch():
    @cuda.jit
    def kernel(turn, out):
        if cuda.blockIdx.x == 3:
            assert out[0] > 0
        while cuda.atomic.add(turn, 0, 0) != cuda.blockIdx.x:
            pass
        cuda.atomic.add(turn, 0, 1)

    with pytest.raises(simt.SimtError, match="assert"):
        simt.profile(kernel, 5, 1, (np.zeros(1, np.int32), np.zeros(1)), schedule="blocks")
