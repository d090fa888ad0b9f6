"""Several rounds of a loop at a time: nothing may tell whether they ran one by one.

Results, counters, hazards and messages are compared between launches that run rounds together and launches that do not,
for loops of each kind that qualifies, and the loops that must not are named.
"""

import importlib.util
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.front.rounds import Several
from pmpp.simt.machine.machine import LEVELS, gathering
from pmpp.simt.observe.counters import Counters
from tests.simt.test_gathering import FEW, alike

SHAPES = st.sampled_from([(1, 1), (1, 32), (3, 33), (2, 64), (4, 20), (1, 256)])


@pytest.fixture
def together(monkeypatch):
    """The runs of several rounds together, each with whether it counted."""
    found = []
    run = Several._run

    def noted(self, *args):
        found.append(run(self, *args))
        return found[-1]

    monkeypatch.setattr(Several, "_run", noted)
    return found


@cuda.jit
def rows(starts, columns, values, x, out):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for k in range(starts[i], starts[i + 1]):
            total += values[k] * x[columns[k]]
        out[i] = total


@cuda.jit
def everything(begin, end, step, x, y, out):
    """Shared and local memory, views that differ, casts, int32, products, and variables that are read behind it."""
    tile = cuda.shared.array(256, np.float64)
    own = cuda.local.array(4, np.int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i % x.size]
    for k in range(4):
        own[k] = i * k
    cuda.syncthreads()
    k = -5
    last = np.float64(0.25)
    count = np.int32(0)
    product = np.float64(1)
    row = y[i % y.shape[0]]
    for _ in range(2):
        if i % 7 != 3:
            for k in range(begin[i], end[i], step):
                a = x[(k + i) % x.size] * np.float32(0.5)
                b = tile[k % 2] - a
                b *= 2
                last = math.sqrt(b * b) + own[k & 3] - row[(k >> 1) % y.shape[1]]
                count += np.int32(1)
                product *= 1 + a / 8
    out[i, 0] = last
    out[i, 1] = count
    out[i, 2] = product
    out[i, 3] = k


@cuda.jit
def same_for_all(n, x, y, out):
    tile = cuda.shared.array(64, np.float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x % 64] = x[i % x.size]
    cuda.syncthreads()
    j = 100
    if i % 5 != 1:
        near = np.float32(0)
        far = 0.0
        number = 0
        for j in range(1, n, 3):
            d = x[j % x.size] - x[i % x.size]
            near += d * d * tile[j % 32]
            far -= y[cuda.blockIdx.x % y.shape[0], j % y.shape[1]]
            number += j
        out[i, 0] = near
        out[i, 1] = far
        out[i, 2] = number + d if n > 1 else 0.5
    out[i, 3] = j


@FEW
@given(st.integers(0, 2**32 - 1), SHAPES, st.integers(0, 90))
def test_ranges_that_differ(seed, shape, most):
    rng = np.random.default_rng(seed)
    threads = shape[0] * shape[1]
    lengths = np.where(rng.random(threads) < 0.1, rng.integers(0, most + 1, threads), rng.integers(0, 5, threads))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    columns = rng.integers(0, threads, starts[-1] + 1).astype(np.int32)
    values, x = rng.random(starts[-1] + 1, np.float32), rng.random(threads, np.float32)
    alike(rows, *shape, lambda: (starts, columns, values, x, np.zeros(max(1, threads - 3), np.float32)))


@FEW
@given(st.integers(0, 2**32 - 1), SHAPES, st.integers(0, 60), st.integers(1, 3), st.sampled_from([np.int32, np.int64]))
def test_variables_and_memories_of_every_kind(seed, shape, most, step, dtype):
    rng = np.random.default_rng(seed)
    threads = shape[0] * shape[1]
    begin = rng.integers(-9, 9, threads).astype(dtype)
    end = (begin + np.where(rng.random(threads) < 0.3, most, rng.integers(-3, 7, threads))).astype(dtype)
    x, y = rng.random(37, np.float32), rng.random((5, 3))
    alike(everything, *shape, lambda: (begin, end, step, x, y, np.zeros((threads, 4))))


@FEW
@given(st.integers(0, 2**32 - 1), SHAPES, st.integers(0, 200))
def test_ranges_that_are_the_same_for_all(seed, shape, n):
    rng = np.random.default_rng(seed)
    x, y = rng.random(50, np.float32), rng.random((2, 7))
    alike(same_for_all, *shape, lambda: (n, x, y, np.zeros((shape[0] * shape[1], 4))))


def in_rows(n, wrong=None):
    """Arguments for `rows` of n threads, of which some have a hundred rounds; `wrong` is a column."""
    starts = np.concatenate([[0], np.cumsum(np.where(np.arange(n) % 16 == 5, 100, 2))])
    columns = np.arange(starts[-1]) % n
    if wrong is not None:
        columns[starts[6] - 4] = wrong
    values = np.ones(starts[-1], np.float32)
    return starts, columns, values, np.ones(n, np.float32), np.zeros(n, np.float32)


@pytest.mark.parametrize("level", LEVELS)
def test_rounds_do_run_together(together, level):
    args = in_rows(64)
    simt.profile(rows, 2, 32, args, level=level)
    np.testing.assert_array_equal(args[-1], np.where(np.arange(64) % 16 == 5, 100, 2))
    assert together
    assert all(together)
    together.clear()
    out = np.zeros((64, 4))
    simt.profile(same_for_all, 2, 32, (200, np.ones(50, np.float32), np.ones((2, 7)), out), level=level)
    assert together
    assert all(together)
    together.clear()
    end = np.where(np.arange(64) % 9 == 5, 100, 2)
    simt.profile(everything, 2, 32, (0 * end, end, 1, np.ones(50, np.float32), np.ones((2, 7)), out), level=level)
    assert together
    assert all(together)


@pytest.mark.parametrize("wrong", [-3, 64, 10**9])
def test_an_index_out_of_bounds_is_told_as_if_they_ran_one_by_one(together, wrong):
    alike(rows, 2, 32, lambda: in_rows(64, wrong))
    assert False in together


@cuda.jit
def two_faults(x, y, n, out):
    i = cuda.grid(1)
    total = 0.0
    for k in range(n):
        a = x[k + i]
        total += a + y[k + i + 10]
    out[i] = total


def test_of_two_faults_the_one_in_the_earlier_round_is_told(together):
    """In round 22 on the second of the two lines, and in round 27 on the first."""
    told = []
    for when in ("never", "auto"):
        with gathering(when), pytest.raises(simt.OutOfBoundsError) as error:
            simt.profile(two_faults, 2, 32, (np.ones(90), np.ones(95), 60, np.zeros(64)))
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "accesses y[95]" in told[0]
    assert together == [False]


@cuda.jit
def races(x, out, n):
    """Threads read what others have written, round by round and in two places, and write it afterwards."""
    i = cuda.grid(1)
    x[i] = i
    total = 0
    for k in range(i % 3, n):
        total += x[k] - x[(k + 1) % x.size]
    for k in range(n):
        total += x[k] * x[n - k]
    x[(i * 7) % x.size] = total
    out[i] = total


def test_races_are_the_same(together):
    alike(races, 2, 48, lambda: (np.zeros(96, np.int64), np.zeros(96, np.int64), 40))
    assert together


@cuda.jit
def reads_then_writes(x, y, out):
    """What was read in a round is written by another thread behind the loop."""
    i = cuda.grid(1)
    total = 0
    for k in range(i % 5, 40):
        total += x[k] - x[(k + 1) % x.size]
    x[(i * 7) % x.size] = 1
    for k in range(40):
        total += y[k] + y[(k + i) % y.size]
    y[i] = 1
    out[i] = total


def test_races_with_what_was_read_in_a_round_are_the_same(together):
    alike(reads_then_writes, 2, 48, lambda: (*np.zeros((2, 96), np.int64), np.zeros(96, np.int64)))
    assert True in together


@cuda.jit
def own_after_all(x, y, out):
    i = cuda.grid(1)
    total = np.float32(0)
    for j in range(y.size):
        total += x[j] - x[i] * y[j]
    x[(i + 3) % x.size] = total


@cuda.jit
def own_before_all(x, y, out):
    i = cuda.grid(1)
    total = np.float32(0)
    for j in range(y.size):
        total += y[i % y.size] * x[i] - x[j] * x[(j + 1) % x.size]
    y[(i + 1) % y.size] = total


@cuda.jit
def on_two_lines(x, y, out):
    i = cuda.grid(1)
    total = np.float32(0)
    for j in range(y.size):
        total += x[j]
        total += x[y.size - 1 - j]
    x[(i + 1) % x.size] = total


@cuda.jit
def by_all_and_by_each(x, y, out):
    i = cuda.grid(1)
    total = np.float32(0)
    for j in range(y.size):
        total += x[j] * x[(i + j) % x.size] - y[(i * 3 + j) % y.size]
    x[(i + 2) % x.size] = total


@cuda.jit
def written_before(x, y, out):
    i = cuda.grid(1)
    x[i] = np.float32(i)
    total = np.float32(0)
    for j in range(y.size):
        total += x[j] * y[(i + j) % y.size]
    y[i % y.size] = total


@pytest.mark.parametrize(("grid", "block"), [(1, 3), (1, 33), (2, 32), (3, 40)])
@pytest.mark.parametrize(
    "kernel",
    [own_after_all, own_before_all, on_two_lines, by_all_and_by_each, written_before],
    ids=lambda k: k.__name__,
)
def test_reads_that_are_told_at_once_are_remembered_as_if_told_round_by_round(together, kernel, grid, block):
    found = []
    for when in ("never", "always"):
        x, y, out = np.ones(grid * block, np.float32), np.ones(min(20, grid * block), np.float32), np.zeros(1)
        with gathering(when):
            found.append(simt.profile(kernel, grid, block, (x, y, out), level="check").hazards)
    assert found[0] == found[1]
    assert any(hazard.kind == "race" for hazard in found[0])


@cuda.jit
def carried(x, out, n):
    i = cuda.grid(1)
    before = 0.0
    total = 0.0
    for k in range(n):
        total += before * x[k]
        before = x[k]
    out[i] = total


@cuda.jit
def running(x, out, n):
    i = cuda.grid(1)
    total = 0.0
    for k in range(n):
        total += x[k]
        most = total
    out[i] = most


@cuda.jit
def storing(x, out, n):
    i = cuda.grid(1)
    total = 0.0
    for k in range(n):
        total += x[k]
        out[i] = total


@cuda.jit
def counting_twice(x, out, n):
    i = cuda.grid(1)
    total = 0.0
    for k in range(n):
        total += x[k]
        total -= 1
    out[i] = total


@cuda.jit
def divided(x, out, n):
    i = cuda.grid(1)
    total = 1.0
    for k in range(n):
        total /= 1 + x[k]
    out[i] = total


@pytest.mark.parametrize("kernel", [carried, running, storing, counting_twice, divided], ids=lambda k: k.__name__)
def test_rounds_that_depend_on_the_one_before_run_one_by_one(together, kernel):
    alike(kernel, 1, 32, lambda: (np.arange(40.0), np.zeros(32), 40))
    assert not together


@cuda.jit
def becomes_float(x, out, n):
    """An integer becomes float64 in the first round, and a temporary has one type before the loop, another inside."""
    i = cuda.grid(1)
    total = 0
    half = 1
    for k in range(n):
        half = x[k] * 0.5
        total += half
    out[i] = total + half


def test_types_settle_first():
    alike(becomes_float, 1, 32, lambda: (np.arange(40, dtype=np.float32), np.zeros(32), 40))


def test_never_means_one_by_one(together):
    with gathering("never"):
        simt.profile(rows, 2, 32, in_rows(64))
    assert not together


@cuda.jit
def outside(x, b, out, n):
    """In some rounds all lanes are out of bounds, in some only a few are, and each line is told once."""
    i = cuda.grid(1)
    total = 0.0
    for k in range(b[i], n):
        total += x[k + i] + x[k * 5 - 9]
    out[i] = total


def test_what_is_read_out_of_bounds_is_the_same(together):
    alike(outside, 2, 32, lambda: (np.arange(40.0), np.arange(64) % 3 - 4, np.zeros(64), 30))
    assert False in together


@cuda.jit
def of_one_thread(x, out, n):
    own = cuda.local.array(4, np.int64)
    for k in range(4):
        own[k] = k
    total = 0.0
    for k in range(n):
        total += x[k] * own[k % 4]
    out[0] = total


def test_one_thread_with_memory_of_its_own(together):
    alike(of_one_thread, 1, 1, lambda: (np.arange(400.0), np.zeros(1), 400))
    assert all(together)
    assert together


@cuda.jit
def changes_sign(rounds, out):
    i = cuda.grid(1)
    product = 0.0
    for _ in range(rounds[i]):
        product *= -1.5
    out[i] = product


@pytest.mark.parametrize("when", ["never", "auto", "always"])
def test_lanes_without_a_round_keep_the_sign_of_zero(when):
    """-0.0 equals 0.0, and is another number."""
    rounds, out = np.arange(64) % 6 * (np.arange(64) % 5), np.zeros(64)
    with gathering(when):
        simt.profile(changes_sign, 2, 32, (rounds, out))
    np.testing.assert_array_equal(np.signbit(out), rounds % 2 == 1)
    out = np.zeros(64)
    with gathering(when):
        simt.profile(changes_sign, 2, 32, (np.arange(64) % 2, out))
    np.testing.assert_array_equal(np.signbit(out), np.arange(64) % 2 == 1)


# -- loops at random -------------------------------------------------------------------------------------------------


#: Arrays, with what keeps an index inside of each.
ARRAYS = (("x", " % x.size"), ("y", " % 41"), ("c", " % c.shape[0]"), ("tile", " % 64"), ("own", " % 4"))
RANGES = ("n", "i % 5, n", "begin[i], end[i]", "begin[i], end[i], 2", "0, n, 3", "n - i % 7", "begin[i], n")


class Writer:
    """Writes a kernel with a loop that qualifies.  Some indices are outside, and variables change their type."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def value(self, names, depth=0):
        draw, kind = self.random, self.random.random()
        if depth > 2 or kind < 0.25:
            return draw.choice([*names, "0.5", "2", "np.float32(1.25)", "np.int32(3)"])
        if kind < 0.6:
            return f"({self.value(names, depth + 1)} {draw.choice('+-*/')} {self.value(names, depth + 1)})"
        if kind < 0.9:
            name, inside = draw.choice(ARRAYS)
            at = draw.choice(["k", "i", "k + i", "k * 2 + 1", "c[k % 37]", "n - k", "k // 3"])
            return f"{name}[({at}){inside if draw.random() < 0.97 else ''}]"
        function = draw.choice(["math.fabs", "np.float64", "np.float32"])
        return f"{function}({self.value(names, depth + 1)})"

    def text(self):
        draw, body, before, shown = self.random, [], ["k = -1"], ["k"]
        temporary = []
        for j in range(draw.randint(1, 5)):
            name = f"v{j}"
            if draw.random() < 0.5:
                body.append(f"{name} = {self.value(['k', 'i', 'w', *temporary])}")
                temporary.append(name)
                known = draw.random() < 0.5
            else:
                body.append(f"{name} {draw.choice(['+=', '-=', '*='])} {self.value(['k', 'i', 'w', *temporary])}")
                known = True
            if known:
                before.append(f"{name} = {draw.choice(['0', '0.0', 'np.float32(1)', 'np.int32(0)', '1'])}")
                shown.append(name)
        owned = [f"own[{j}] = i * {j}" for j in range(draw.randint(3, 4))]
        head = [
            "tile = cuda.shared.array(64, np.float32)", "own = cuda.local.array(4, np.int64)", "i = cuda.grid(1)",
            "tile[cuda.threadIdx.x % 64] = x[i % x.size]", *owned, "cuda.syncthreads()", "w = x[i % x.size]",
        ]  # fmt: skip
        loop = [
            f"if {draw.choice(['True', 'i % 3 != 1', 'i < 40'])}:",
            f"    for _ in range({draw.choice('12')}):",
            f"        for k in range({draw.choice(RANGES)}):",
            *("            " + line for line in body),
        ]
        tail = [f"x[(i * 5) % x.size] = {shown[-1]}"] * (draw.random() < 0.3)
        tail += [f"out[i, {j}] = {name}" for j, name in enumerate(shown)]
        lines = ["import math", "import numpy as np", "from pmpp.simt import cuda", "", "", "@cuda.jit"]
        lines += ["def kernel(x, y, c, begin, end, n, out):"]
        lines += ["    " + line for line in (*head, *before, *loop, *tail)] + [""]
        return "\n".join(lines)


class Storing(Writer):
    """Writes loops that store, update atomically and choose as well.  Some stores race, and some are outside."""

    def statement(self, names, depth=0):
        draw, kind = self.random, self.random.random()
        at = draw.choice(["i", "k", "k + i", "k * 7 + i", "c[k % 37]"]) + " "
        if kind < 0.25 and self.left:
            value = draw.choice(["1", "k", "i", self.value(names)])
            array = self.left.pop()
            return [f"{array}[({at}) % {array}.size] = {value}" if draw.random() < 0.95 else f"{array}[{at}] = {value}"]
        if kind < 0.6 and self.left:
            array = self.left.pop()
            where = f"{array}, ({at}) % {array}.size"
            operation = draw.choice(["add", "max", "sub"] if array == "z" else ["add", "max", "exch", "sub", "cas"])
            call = f"cuda.atomic.{operation}({where}, {'-1, ' * (operation == 'cas')}{draw.choice(['1', 'k', 'i'])})"
            if draw.random() < 0.5:
                return [call]
            return [f"if {call} {draw.choice(['==', '<', '>'])} {draw.choice(['k', '3', '0'])}:", "    pass"]
        if kind < 0.8 or depth > 1:
            self.sums += 1
            return [f"t{self.sums} {draw.choice(['+=', '-='])} {self.value(names)}"]
        inner = [line for _ in range(draw.randint(1, 2)) for line in self.statement(names, depth + 1)]
        test = f"{self.value(names)} {draw.choice(['<', '>=', '=='])} {draw.choice(['k', '1', 'w'])}"
        lines = [f"if {test}:", *("    " + line for line in inner)]
        if draw.random() < 0.3:
            lines += ["else:", *("    " + line for line in self.statement(names, depth + 1))]
        return lines

    def text(self):
        draw, self.left, self.sums = self.random, ["z", "h", "g"], 0
        draw.shuffle(self.left)
        body = [f"v = {self.value(['k', 'i', 'w'])}"] * (draw.random() < 0.5)
        names = ["k", "i", "w", "v"][: 3 + len(body)]
        body += [line for _ in range(draw.randint(1, 4)) for line in self.statement(names)]
        sums = [f"t{j + 1}" for j in range(self.sums)]
        lines = [
            "import math", "import numpy as np", "from pmpp.simt import cuda", "", "", "@cuda.jit",
            "def kernel(x, y, c, begin, end, n, z, h, g, out):",
            "    tile = cuda.shared.array(64, np.float32)", "    own = cuda.local.array(4, np.int64)",
            "    i = cuda.grid(1)", "    tile[cuda.threadIdx.x % 64] = x[i % x.size]",
            *(f"    own[{j}] = i * {j}" for j in range(4)), "    cuda.syncthreads()", "    w = x[i % x.size]",
            *(f"    {name} = {draw.choice(['0', '0.0', 'np.float32(1)'])}" for name in sums),
            f"    if {draw.choice(['True', 'i % 3 != 1', 'i < 40'])}:",
            f"        for k in range({draw.choice(RANGES)}):", *("            " + line for line in body),
            *(f"    out[i, {j}] = {name}" for j, name in enumerate(sums[:6])), "",
        ]  # fmt: skip
        return "\n".join(lines)


def kernel_in(text, seed, tmp_path):
    """A kernel from its source."""
    path = tmp_path / f"drawn_{seed}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def given_to_random_loops(seed):
    """A launch's size, and arguments: arrays to read, ranges, and their end."""
    rng = np.random.default_rng(seed)
    grid, block = [(1, 1), (2, 48), (3, 33), (5, 64)][seed % 4]
    threads, n = grid * block, [5, 30, 70][seed % 3]
    begin = rng.integers(-4, 5, threads).astype([np.int32, np.int64][seed % 2])
    end = begin + np.where(rng.random(threads) < 0.2, n, rng.integers(-2, 6, threads)).astype(begin.dtype)
    x, y, c = 1 + rng.random(53, np.float32), 1 + rng.random(41), 1 + np.arange(37, dtype=np.int32) * 3 % 29
    return grid, block, (x, y, c, begin, end, n)


@pytest.mark.parametrize("seed", range(30))
def test_random_loops(seed, tmp_path):
    kernel = kernel_in(Writer(seed).text(), seed, tmp_path)
    grid, block, (x, *rest) = given_to_random_loops(seed)
    alike(kernel, grid, block, lambda: (x.copy(), *rest, np.zeros((grid * block, 6))))


@pytest.mark.parametrize("seed", range(40))
def test_random_loops_that_write(seed, tmp_path):
    kernel = kernel_in(Storing(seed).text(), seed, tmp_path)
    grid, block, given = given_to_random_loops(seed)
    alike(
        kernel, grid, block,
        lambda: (
            *given, np.zeros(300), np.zeros(300, np.int32), np.full(7, -1, np.int64), np.zeros((grid * block, 6)),
        ),
    )  # fmt: skip


@cuda.jit
def neighbours_of(starts, neighbours, level, following, grew, most, nearest):
    i = cuda.grid(1)
    found = 0
    if i < level.size:
        for k in range(starts[i], starts[i + 1]):
            j = neighbours[k]
            if cuda.atomic.cas(level, j, -1, i) == -1:
                following[j] = 1
                grew[0] = 1
            else:
                found += 1
            if j > i:
                cuda.atomic.max(most, 0, j)
        nearest[i] = found


def in_graph(n):
    starts = np.concatenate([[0], np.cumsum(np.where(np.arange(n) % 16 == 5, 100, 2))])
    neighbours = np.arange(starts[-1]) * 7 % n
    level, following = np.full(n, -1), np.zeros(n, np.int32)
    return starts, neighbours, level, following, np.zeros(1), np.zeros(1, np.int64), np.zeros(n, np.int64)


@pytest.mark.parametrize("level", LEVELS)
def test_rounds_that_search_a_graph_do_run_together(together, level):
    simt.profile(neighbours_of, 2, 32, in_graph(64), level=level)
    assert together
    assert all(together)
    alike(neighbours_of, 2, 32, lambda: in_graph(64))


@cuda.jit
def written_twice(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        out[i] = x[k]
        out[(i + 1) % out.size] = x[k] + 1


@cuda.jit
def read_as_well(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        if out[k] < 3:
            out[i] = x[k]


@cuda.jit
def added_in_place(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        out[i] += x[k]


@cuda.jit
def chosen_in_a_branch(x, out, n):
    i = cuda.grid(1)
    last = 0.0
    for k in range(n):
        if x[k] > i:
            last = x[k]
    out[i] = last


@pytest.mark.parametrize(
    "kernel", [written_twice, read_as_well, added_in_place, chosen_in_a_branch], ids=lambda k: k.__name__
)
def test_rounds_that_may_see_what_others_write_run_one_by_one(together, kernel):
    alike(kernel, 1, 32, lambda: (np.arange(40.0), np.zeros(64), 40))
    assert not together


@cuda.jit
def two_names(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        out[(i + k) % out.size] = x[k] + 1


def test_two_names_of_one_array_are_noticed(together):
    found = []
    for when in ("never", "always"):
        both = cuda.to_device(np.arange(64.0))
        with gathering(when):
            simt.profile(two_names, 1, 32, (both[:40], both, 40))
        found.append(both.copy_to_host())
    np.testing.assert_array_equal(*found)
    assert not together


def test_large_arrays_are_not_copied_for_a_few_rounds(together):
    """Sixteen rounds, and an array of more than 64 KiB for each of them."""
    for size, expected in ((64, [True]), (300_000, [])):
        out = np.zeros(size)
        simt.profile(two_names, 1, 32, (np.arange(40.0), out, 16))
        np.testing.assert_array_equal(out[15:32], 16)
        assert together == expected
        together.clear()


@cuda.jit
def races_in_a_round(x, out, n):
    i = cuda.grid(1)
    for k in range(n):
        out[(i * k) % 50] = i + k


def test_what_was_written_is_put_back_where_writes_race(together):
    alike(races_in_a_round, 2, 32, lambda: (np.arange(40.0), np.zeros(64), 40))
    assert False in together


# -- rounds that count the same --------------------------------------------------------------------------------------


@cuda.jit
def collatz(start, out):
    i = cuda.grid(1)
    n = start[i]
    steps = 0
    while n != 1:
        n = (n // 2) * (1 - n % 2) + (3 * n + 1) * (n % 2)
        steps += 1
    out[i, 0] = steps


@cuda.jit
def root(start, out):
    """The first round makes a float of an integer."""
    i = cuda.grid(1)
    s = np.float32(start[i])
    x = 1
    n = np.int8(0)
    k = 0
    while math.fabs(x * x - s) > np.float32(1e-5) * s:
        x = 0.5 * (x + s / x)
        n += 1
        k = cuda.blockIdx.x + n
    for j in range(start[i] % 50):
        n = np.int8(n * 3 + j)
        x = -x
    for _ in range(30):
        x = x * np.float32(1.5) - 1
    out[i, 0] = x
    out[i, 1] = n + k


@cuda.jit
def divides_by_zero(start, out):
    i = cuda.grid(1)
    z = complex(start[i], 1)
    n = 20
    while n > -20:
        z = z / complex(n, 0)
        n -= 1
    out[i, 0] = z.real


@pytest.mark.parametrize(("grid", "block"), [(1, 1), (2, 40), (5, 64)])
@pytest.mark.parametrize("kernel", [collatz, root, divides_by_zero], ids=lambda k: k.__name__)
def test_arithmetic_counts_as_if_each_round_were_counted(kernel, grid, block):
    alike(kernel, grid, block, lambda: (1 + np.arange(grid * block), np.zeros((grid * block, 2))))


@cuda.jit
def generated(rounds, out):
    i = cuda.grid(1)
    a = np.uint32(i)
    for _ in range(rounds[i]):
        a = np.uint32(a * np.uint32(1664525) + np.uint32(1013904223))
    out[i] = a


def test_most_rounds_of_arithmetic_are_not_counted_one_by_one(monkeypatch):
    """One lane has a thousand rounds more than the others.  A round is a branch, two operations and three casts."""
    told = []
    count = Counters.instruction
    monkeypatch.setattr(Counters, "instruction", lambda self, *a: (told.append(a), count(self, *a))[1])
    rounds = np.where(np.arange(64) == 17, 1000, 1)
    report = simt.profile(generated, 2, 32, (rounds, np.zeros(64, np.uint32)))
    line = generated.py_func.__code__.co_firstlineno + 4
    assert report.by_line[line]["branches"] == 1001 + 2  # of the warp with the long lane, and of the other one
    assert report.by_line[line + 1]["thread_instructions"] == 5 * (1000 + 63)
    assert len(told) < 50
