"""Lanes that are left in a loop go on in a short batch: nothing may tell whether they did.

Results, counters, hazards and messages are compared between launches that gather lanes at every loop, at none, and
where it pays: for kernels with each kind of loop, variable and memory, and for kernels that are drawn at random.
"""

import importlib.util
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.front import gathering as front
from pmpp.simt.machine.machine import gathering

FEW = settings(max_examples=4, deadline=None, derandomize=True, database=None)
SHAPES = st.sampled_from([(1, 1), (1, 32), (3, 33), (5, 64), (2, 100), (9, 7)])
RECORD = np.dtype([("a", np.int32), ("b", np.float32)], align=True)


def observed(kernel, grid, block, make, when, level):
    """All that a launch shows: what it left in its arrays, and its report, or its error."""
    args = make()
    with gathering(when), simt.batch_lanes(1 << 16):
        try:
            report = simt.profile(kernel, grid, block, args, level=level, collect=True)
        except simt.SimtError as error:
            return [str(error)]
    left = [a.tobytes() for a in args if isinstance(a, np.ndarray)]
    return [left, report.counters, report.by_line, report.sectors, report.contention, report.hazards]


def alike(kernel, grid, block, make):
    for level in ("count", "check"):
        expected = observed(kernel, grid, block, make, "never", level)
        for when in ("always", "auto"):
            for one, other in zip(observed(kernel, grid, block, make, when, level), expected, strict=True):
                assert one == other


@cuda.jit(device=True)
def digits(n, base):
    count = 0
    while n > 0:
        n //= base
        count += 1
        if count > 40:
            return -1
    return count


@cuda.jit(device=True)
def first_of(values, n, wanted):
    """Returns from inside a loop, with a local array of its own."""
    seen = cuda.local.array(4, np.int32)
    seen[0] = 0
    for k in range(n):
        seen[k % 4] = values[k]
        if seen[k % 4] == wanted:
            return np.float32(k)
    return np.float32(-1)


@cuda.jit
def loops(rounds, x, counts, out):
    i = cuda.grid(1)
    if i >= out.shape[0]:
        return
    n = rounds[i]
    total = 0
    last = np.float32(0.5)
    kept = cuda.local.array(6, np.int32)
    for k in range(6):
        kept[k] = k
    for k in range(n):
        if k % 5 == 4:
            continue
        total += digits(k * 37 + i, 2 + k % 3)
        kept[(k + i) % 6] += total
        cuda.atomic.add(counts, (k * i) % counts.size, 1)
        j = n - k
        while j > 0:
            j -= 3
            total ^= j
            last = last * np.float32(0.5) + x[j]
            if total & 63 == 7:
                break
        else:
            total += 1
        if total % 211 == 0:
            out[i, 3] = k
            return
    out[i, 2] = j if n > 0 else -1
    out[i, 0] = total + kept[i % 6] + kept[0]
    out[i, 1] = np.int64(last * 100) + np.int64(first_of(rounds, min(n, x.size), n))


@FEW
@given(st.integers(0, 2**32 - 1), SHAPES, st.integers(1, 20))
def test_loops_of_every_kind(seed, shape, most):
    rng = np.random.default_rng(seed)
    threads = shape[0] * shape[1]
    rounds = np.where(rng.random(threads) < 0.2, rng.integers(0, most + 1, threads), rng.integers(0, 4, threads))
    x = rng.random(max(most, threads) + 4).astype(np.float32)
    alike(
        loops, *shape,
        lambda: (rounds.copy(), x.copy(), np.zeros(17, np.int32), np.zeros((threads, 4), np.int64)),
    )  # fmt: skip


@cuda.jit
def memories(starts, x, records, sums, out):
    """Views with an offset a lane, records, shared memory, tuples, a float atomic, and values from other lanes."""
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    row = x[starts[i] : starts[i + 1]]
    pair = (i, np.float32(1))
    many = cuda.local.array(3, RECORD)
    many[0].a = t
    lane = cuda.laneid
    for k in range(row.size):
        here = cuda.local.array(2, np.float32)
        here[0] = row[k]
        here[k % 2] += tile[(t + k) % cuda.blockDim.x] + tile[0]
        record = records[(i + k) % records.size]
        record.b += np.float32(0)
        pair = (pair[1], pair[1] * np.float32(0.5) + here[0])
        many[k % 3].a = record.a + many[0].a
        cuda.atomic.add(sums, k % sums.size, row[k])
        if cuda.atomic.max(out, i, k + lane) > 90:
            break
    step = starts[i + 1] - starts[i]
    while step > 0:
        mask = cuda.activemask()
        step -= 1 + (cuda.popc(mask) & 1)
        out[i] += cuda.ballot_sync(mask, step & 1) & 1023
    out[i] += np.int64(pair[1] * 8) + many[0].a


@FEW
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 32), (3, 33), (5, 64), (2, 50)]))
def test_memory_of_every_kind(seed, shape):
    rng = np.random.default_rng(seed)
    threads = shape[0] * shape[1]
    lengths = np.where(rng.random(threads) < 0.1, rng.integers(0, 25, threads), rng.integers(0, 3, threads))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.integers(0, 9, max(starts[-1], threads)).astype(np.float32)
    records = np.zeros(13, RECORD)
    records["a"] = np.arange(13)
    alike(
        memories, *shape,
        lambda: (starts, x.copy(), records.copy(), np.zeros(5, np.float32), np.zeros(threads, np.int64)),
    )  # fmt: skip


@cuda.jit
def hazards(rounds, shared_total, x, out, anything):
    """A race, an access outside, and reads of what is not set: all in a loop, or because of it."""
    i = cuda.grid(1)
    box = cuda.local.array(4, np.int32)
    for k in range(rounds[i]):
        if k > 6:
            late = k
        if k == 9 and rounds[i] == 11:
            box[1] = late
        if k > 9:
            box[2] = box[3]
            shared_total[0] += late
        out[i] += x[i + k]
    if rounds[i] > 3:
        anything[i] = late


def test_hazards():
    rounds = np.zeros(96, np.int64)
    rounds[[3, 40, 41, 95]] = 4, 11, 15, 30

    def make():
        anything = np.zeros(96, np.int64)  # on the device: what an unset variable holds is not compared
        return rounds, np.zeros(1, np.int64), np.ones(100, np.int64), np.zeros(96, np.int64), cuda.to_device(anything)

    alike(hazards, 3, 32, make)
    kinds = {hazard.kind for hazard in observed(hazards, 3, 32, make, "always", "check")[-1]}
    assert kinds == {"race", "out_of_bounds", "uninitialised_read"}


@cuda.jit
def waits_inside(x, out):
    """Blocks go round differently often, and meet at a barrier in each round: their lanes stay together."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(64, np.int64)
    for k in range(x[cuda.blockIdx.x]):
        tile[t] = k + t
        cuda.syncthreads()
        out[cuda.grid(1)] += tile[63 - t]
        cuda.syncthreads()


def test_loops_with_barriers():
    alike(waits_inside, 4, 64, lambda: (np.array([0, 1, 9, 2]), np.zeros(256, np.int64)))


@cuda.jit(device=True)
def deeper(n):
    if n <= 0:
        return 1
    total = 0
    for k in range(n):
        total += deeper(n - 2 - k)
    return total


@cuda.jit
def calls_itself(depth, out):
    i = cuda.grid(1)
    out[i] = deeper(depth[i])


def test_loops_in_functions_that_call_themselves():
    alike(calls_itself, 2, 40, lambda: (np.arange(80) % 9, np.zeros(80, np.int64)))


# -- kernels at random -----------------------------------------------------------------------------------------------


class Writer:
    """Writes a kernel with loops in loops; every loop ends after some rounds, and every index is inside."""

    def __init__(self, seed):
        self.random, self.lines, self.counters = random.Random(seed), [], 0

    def value(self):
        return self.random.choice(
            ["a", "b", "c", "i", "7", "t", "a + b", "b * 3 - c", "a ^ i", "b & 15", "x[a & 63]", "x[(b + i) & 63]",
             "box[a & 3]", "(a if b > c else i)", "step(b & 31)", "x[i & 63] - box[1]", "b // 3"]
        )  # fmt: skip

    def test(self):
        return self.random.choice(
            ["a & 1", "a > b", "b % 3 == 1", "i % 7 < 2", "x[b & 63] > 20", "a > 5 and b < 9", "not c & 2", "t == 3"]
        )

    def block(self, depth, indent, in_loop):
        for _ in range(self.random.randint(1, 4)):
            self.statement(depth, indent, in_loop)

    def statement(self, depth, indent, in_loop):
        nested = ["if", "for", "while"] * 2 if depth else []
        kind = self.random.choice([*["set"] * 4, "store", "atomic", "box", *nested])
        write = lambda text: self.lines.append("    " * indent + text)  # noqa: E731
        if kind == "set":
            write(f"{self.random.choice('abc')} {self.random.choice(['=', '+=', '^='])} {self.value()}")
        elif kind == "store":
            write(f"out[i, {self.random.randint(0, 3)}] = {self.value()}")
        elif kind == "atomic":
            write(f"{self.random.choice('abc')} = cuda.atomic.add(bins, {self.value()} & 7, 1)")
        elif kind == "box":
            write(f"box[{self.value()} & 3] = {self.value()}")
        elif kind == "if":
            write(f"if {self.test()}:")
            self.block(depth - 1, indent + 1, in_loop)
            if in_loop and self.random.random() < 0.4:
                write("    " + self.random.choice(["break", "continue", "return"]))
            if self.random.random() < 0.5:
                write("else:")
                self.block(depth - 1, indent + 1, in_loop)
        else:
            self.counters += 1
            k = f"k{self.counters}"
            if kind == "for":
                write(f"for {k} in range(({self.value()}) & {self.random.choice([1, 3, 9])}):")
                write(f"    a += {k}")
            else:
                write(f"{k} = 0")
                write(f"while {k} < 6 and ({self.test()}):")
                write(f"    {k} += 1")
            self.block(depth - 1, indent + 1, True)
            if self.random.random() < 0.3:
                write("else:")
                self.block(depth - 1, indent + 1, in_loop)

    def text(self):
        self.block(3, 1, False)
        head = ["i = cuda.grid(1)", "t = cuda.threadIdx.x", "a = x[i & 63]", "b = i", "c = 1",
                "box = cuda.local.array(4, np.int64)", "for k in range(4):", "    box[k] = t + k"]  # fmt: skip
        tail = ["out[i, 0] += a + b", "out[i, 1] ^= c + box[2]"]
        body = ["    " + line for line in head] + self.lines + ["    " + line for line in tail]
        return "\n".join(
            ["import numpy as np", "from pmpp.simt import cuda", "", "", "@cuda.jit(device=True)", "def step(n):",
             "    while n > 3:", "        n = n // 2 - 1", "        if n == 5:", "            return 50",
             "    return n", "", "", "@cuda.jit", "def kernel(x, bins, out):", *body, ""]
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_random_kernels(seed, tmp_path):
    path = tmp_path / f"drawn_{seed}.py"
    path.write_text(Writer(seed).text())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = np.random.default_rng(seed).integers(0, 40, 64)
    grid, block = [(3, 40), (1, 64), (6, 32)][seed % 3]
    alike(module.kernel, grid, block, lambda: (x, np.zeros(8, np.int64), np.zeros((grid * block, 4), np.int64)))


# -- when ------------------------------------------------------------------------------------------------------------


@cuda.jit
def long_tail(rounds, out):
    i = cuda.grid(1)
    a = 1
    for _ in range(rounds[i]):
        a = (a * 5 + i) % 1021
    out[i] = a


def test_one_lane_that_is_left_is_gathered(monkeypatch):
    """Also without being told to: so the other lanes are not computed ten thousand times."""
    sizes = []
    few = front.Few
    monkeypatch.setattr(front, "Few", lambda *args: sizes.append(few(*args)) or sizes[-1])
    rounds = np.ones(1 << 14, np.int64)
    rounds[77] = 1000
    simt.profile(long_tail, 64, 256, (rounds, np.zeros(1 << 14, np.int64)))
    assert [lanes.size for lanes in sizes] == [1]


def test_a_wrong_word_is_refused():
    with pytest.raises(simt.SimtError, match="it must be one of auto, never, always"), gathering("often"):
        pass
