"""Every collective gives what NumPy computes from the arrays of all ranks: any number of ranks, shapes and dtypes."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pmpp import cuda, parallel
from pmpp.runtime import device

pytestmark = pytest.mark.native("threads")

FLOATS = ["float16", "float32", "float64"]
NUMBERS = [*FLOATS, "int32", "int64"]
ANY = [*NUMBERS, "bool"]
OPS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean}
X = np.ones(2, np.float32)
DTYPES = {"sum": NUMBERS, "prod": NUMBERS, "max": ANY, "min": ANY, "mean": FLOATS}

sizes = st.integers(1, 5)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7)
each_op = pytest.mark.parametrize("op", sorted(OPS))
few = hypothesis.settings(max_examples=12)


@st.composite
def given_to(draw, size, shape, dtypes):
    """An array (size, *shape): what each rank passes. Numbers are small and whole, so that sums of them are exact."""
    dtype = draw(st.sampled_from(dtypes))
    seed = draw(st.integers(0, 2**32 - 1))
    low, high = (0, 2) if dtype == "bool" else (-3, 4)
    return np.random.default_rng(seed).integers(low, high, (size, *shape)).astype(dtype)


def combined(op, x):
    """What NumPy makes of it, in the dtype of ``x``."""
    return OPS[op](x, axis=0, dtype=np.float64).astype(x.dtype) if op == "mean" else OPS[op](x, axis=0).astype(x.dtype)


def run(x, function, in_place=False):
    """``function(group, mine, out)`` by each rank: the results on the host. In place, or into a new array."""

    def step(group):
        mine = device.to_device(x[group.rank])
        result = function(group, mine, mine if in_place else None)
        return None if result is None else device.to_host(result)

    return parallel.ranks(len(x), step)


def same(found, wanted):
    """The same bits, dtype and shape, on each rank."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)


# A mean of whole numbers is rounded once, by a division of the same two numbers, and so is NumPy's in float64.
@each_op
@few
@hypothesis.given(data=st.data(), size=sizes, shape=shapes, in_place=st.booleans())
def test_all_reduce(data, size, shape, op, in_place):
    x = data.draw(given_to(size, shape, DTYPES[op]))
    found = run(x, lambda group, mine, out: group.all_reduce(mine, op, out=out), in_place)
    same(found, [combined(op, x)] * size)


@each_op
@few
@hypothesis.given(data=st.data(), size=sizes, shape=shapes, in_place=st.booleans())
def test_reduce(data, size, shape, op, in_place):
    root = data.draw(st.integers(0, size - 1))
    x = data.draw(given_to(size, shape, DTYPES[op]))
    found = run(
        x, lambda group, mine, out: group.reduce(mine, root, op, out=out if group.rank == root else None), in_place
    )
    same([found.pop(root)], [combined(op, x)])
    assert found == [None] * (size - 1)


@each_op
@few
@hypothesis.given(data=st.data(), size=sizes, shape=shapes)
def test_reduce_scatter(data, size, shape, op):
    x = data.draw(given_to(size, (size, *shape), DTYPES[op]))
    same(run(x, lambda group, mine, out: group.reduce_scatter(mine, op)), list(combined(op, x)))


@hypothesis.given(st.data(), sizes, shapes, st.booleans())
def test_broadcast(data, size, shape, in_place):
    root = data.draw(st.integers(0, size - 1))
    x = data.draw(given_to(size, shape, ANY))
    same(run(x, lambda group, mine, out: group.broadcast(mine, root, out=out), in_place), [x[root]] * size)
    same(run(x, lambda group, mine, out: group.broadcast(mine if group.rank == root else None, root)), [x[root]] * size)


@hypothesis.given(st.data(), sizes, shapes)
def test_all_gather(data, size, shape):
    x = data.draw(given_to(size, shape, ANY))
    same(run(x, lambda group, mine, out: group.all_gather(mine)), [x] * size)


@hypothesis.given(st.data(), sizes, shapes, st.booleans())
def test_all_to_all(data, size, shape, in_place):
    x = data.draw(given_to(size, (size, *shape), ANY))
    found = run(x, lambda group, mine, out: group.all_to_all(mine, out=out), in_place)
    same(found, [x[:, rank] for rank in range(size)])


@hypothesis.given(st.data(), sizes, shapes)
def test_send_and_receive(data, size, shape):
    """Every rank sends to the next: around the ring, the last one receives first."""
    x = data.draw(given_to(size, shape, ANY))

    def shift(group, mine, out):
        box = device.empty(mine.shape, mine.dtype)
        right, left = (group.rank + 1) % size, (group.rank - 1) % size
        if size == 1:
            return mine
        if group.rank == size - 1:
            group.recv(box, left, tag=left)
        group.send(mine, right, tag=group.rank)
        return box if group.rank == size - 1 else group.recv(box, left, tag=left)

    same(run(x, shift), list(np.roll(x, 1, axis=0)))


@hypothesis.given(st.data(), sizes)
def test_split(data, size):
    colours = data.draw(st.lists(st.none() | st.integers(0, 2), min_size=size, max_size=size))
    keys = data.draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
    new = {c: sorted((r for r in range(size) if colours[r] == c), key=lambda r: (keys[r], r)) for c in {*colours}}

    def step(group):
        part = group.split(colours[group.rank], keys[group.rank])
        return (
            None
            if part is None
            else (part.rank, part.members, part.all_gather(np.array(group.rank)).copy_to_host().tolist())
        )

    wanted = [None if c is None else (new[c].index(r), tuple(new[c]), new[c]) for r, c in enumerate(colours)]
    assert parallel.ranks(size, step) == wanted


@pytest.mark.parametrize("method", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_sums_are_the_same_bits_on_all_ranks_and_near_the_exact_sum(method, size, rng):
    x = rng.normal(size=(size, size, 11)).astype(np.float32)
    found = run(x, lambda group, mine, out: getattr(group, method)(mine))
    if method == "all_reduce":
        assert len({one.tobytes() for one in found}) == 1
        found = found[0]
    # size - 1 additions, each of a relative error of half an epsilon, of sums no larger than that of the absolutes
    bound = (size - 1) * np.finfo(np.float32).eps / 2 * (1 + 1e-6) * np.abs(x.astype(np.float64)).sum(0)
    assert (np.abs(np.stack(found) - x.astype(np.float64).sum(0)) <= bound).all()


def test_the_sum_begins_behind_the_rank_that_the_part_belongs_to():
    """Large and small numbers show the order: 1 is lost beside 1e8 in float32, and 2e8 - 1e8 - 1e8 is 0."""
    parts = np.float32([[1e8] * 3, [1] * 3, [-1e8] * 3])
    # part 0: (1 - 1e8) + 1e8; part 1: (-1e8 + 1e8) + 1; part 2: (1e8 + 1) - 1e8
    assert run(parts, lambda group, mine, out: group.all_reduce(mine))[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("op, wanted", [("max", [np.nan, np.inf]), ("min", [np.nan, 1]), ("sum", [np.nan, np.inf])])
def test_what_is_not_finite(op, wanted):
    x = np.float32([[1, np.inf], [np.nan, 1]])
    same(run(x, lambda group, mine, out: group.all_reduce(mine, op)), [np.float32(wanted)] * 2)


def test_integers_wrap_and_floats_overflow():
    x = np.full((2, 1), np.iinfo(np.int32).max, np.int32)
    same(run(x, lambda group, mine, out: group.all_reduce(mine)), [np.int32([-2])] * 2)
    x = np.full((2, 1), 60000, np.float16)
    same(run(x, lambda group, mine, out: group.all_reduce(mine)), [np.float16([np.inf])] * 2)


def test_out_is_filled_and_returned():
    def step(group):
        x, out = device.to_device(np.float32([group.rank, 1])), device.empty((2, 2), np.float32)
        assert group.all_gather(x, out=out) is out
        single = device.empty((), np.float32)
        group.all_reduce(np.float32([2]).reshape(()), out=single)
        assert device.to_host(single) == 4
        return device.to_host(out).tolist()

    assert parallel.ranks(2, step) == [[[0, 1], [1, 1]]] * 2


def test_a_stream_is_waited_for_before_its_array_is_read(monkeypatch):
    stream, waited = cuda.stream(), []
    monkeypatch.setattr(type(stream), "synchronize", lambda self: waited.append(self))
    x = device.to_device(X)
    for number, name in enumerate(("broadcast", "reduce", "all_reduce", "all_gather"), 1):
        getattr(parallel.init(), name)(x, stream=stream)
        assert len(waited) == number

    def pair(group):
        if group.rank == 0:
            return group.send(X, 1, stream=stream)
        return group.recv(device.empty(2, X.dtype), 0, stream=stream).copy_to_host().tolist()

    assert parallel.ranks(2, pair) == [None, [1, 1]]
    assert len(waited) == 5


def test_a_group_of_one_needs_no_ranks():
    group, x = parallel.init(), np.arange(4.0).reshape(1, 4)
    assert (group.rank, group.size, group.members, group.backend) == (0, 1, (0,), "simulated")
    for result in (group.broadcast(x), group.reduce(x), group.all_reduce(x, "mean"), group.all_to_all(x)):
        np.testing.assert_array_equal(device.to_host(result), x)
    np.testing.assert_array_equal(device.to_host(group.all_gather(x)), x[None])
    np.testing.assert_array_equal(device.to_host(group.reduce_scatter(x)), x[0])
    assert group.barrier() is None
    assert group.split(None) is None
    assert group.split(3).split(0).size == 1
    with pytest.raises(parallel.CommunicationError, match=r"rank 0 sends to 0 at .*: it waits for itself to receive"):
        group.send(x, 0)


# ----------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda g: g.all_reduce([1.0]), TypeError, "x must be .*, was list"),
        (lambda g: g.all_reduce(None), TypeError, "x must be .*, was None"),
        (lambda g: g.all_reduce(X.astype(np.int8)), TypeError, "x must be float16, .* or int64, was int8"),
        (lambda g: g.all_reduce(X, "average"), ValueError, "op must be 'sum', 'prod', .*, was 'average'"),
        (lambda g: g.all_reduce(X, None), ValueError, "op must be .*, was None"),
        (lambda g: g.all_reduce(X.astype(int), "mean"), TypeError, "x must be float16, float32 or float64, was int64"),
        (lambda g: g.reduce(X > 0), TypeError, "x must be .*, was bool"),
        (lambda g: g.all_reduce(np.ones((4, 2))[::2]), ValueError, "x must be contiguous"),
        (lambda g: g.all_reduce(X, out=X), TypeError, "out must be a device array, was a NumPy array"),
        (
            lambda g: g.all_reduce(X, out=device.empty(3, X.dtype)),
            ValueError,
            r"out must have shape \(2,\), had \(3,\)",
        ),
        (lambda g: g.all_reduce(X, out=device.empty(2, np.int64)), TypeError, "out must be float32, was int64"),
        (lambda g: g.all_reduce(X[:1].reshape(()), out=X[:1].reshape(())), TypeError, "out must be a device array"),
        (lambda g: g.all_gather(X, out=device.empty(2, X.dtype)), ValueError, r"out must have shape \(1, 2\)"),
        (lambda g: g.reduce_scatter(X), ValueError, "x must have a row for each of the 1 ranks"),
        (lambda g: g.all_to_all(X[:1].reshape(())), ValueError, "x must have a row for each of the 1 ranks"),
        (lambda g: g.broadcast(X, 1), ValueError, "root must be from 0 to 0, was 1"),
        (lambda g: g.broadcast(X, True), TypeError, "root must be an integer, was True"),
        (lambda g: g.broadcast(None), TypeError, "x must be an array on the root"),
        (lambda g: g.send(X, -1), ValueError, "to must be from 0 to 0, was -1"),
        (lambda g: g.send(X, 0, tag=-1), ValueError, "tag must be .*, was -1"),
        (lambda g: g.send(X, 0, tag=0.0), TypeError, "tag must be an integer"),
        (lambda g: g.recv(None, 0), TypeError, "out must be a device array to receive into, was None"),
        (lambda g: g.recv(X, 0), TypeError, "out must be a device array, was a NumPy array"),
        (lambda g: g.recv(device.empty(2, np.int8), 0), TypeError, "out must be .*, was int8"),
        (lambda g: g.recv(device.empty(2, X.dtype), 1), ValueError, "source must be from 0 to 0, was 1"),
        (lambda g: g.split(-1), ValueError, "colour must be"),
        (lambda g: g.split("red"), TypeError, "colour must be an integer, was 'red'"),
        (lambda g: g.split(0, 1.5), TypeError, "key must be an integer, was 1.5"),
        *[
            (lambda g, name=name: getattr(g, name)(X.reshape(1, 2), stream="s"), TypeError, "stream must be")
            for name in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        ],
        (lambda g: g.barrier(stream=1), TypeError, "stream must be"),
        (lambda g: g.send(X, 0, stream=1), TypeError, "stream must be"),
        (lambda g: g.recv(device.empty(2, X.dtype), 0, stream=1), TypeError, "stream must be"),
    ],
)
def test_a_wrong_argument_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call(parallel.init())


def test_out_overlaps_x():
    def step(group):
        x = device.to_device(np.arange(6.0))
        with pytest.raises(ValueError, match="out must be x itself or share no memory with it"):
            group.all_reduce(x[:4], out=x[2:])
        with pytest.raises(ValueError, match="out must be x itself or share no memory with it"):
            group.all_gather(x[:2], out=x[:4].reshape(2, 2))

    parallel.ranks(2, step)


def test_only_the_root_has_an_out():
    def step(group):
        group.reduce(X, 1, out=device.empty(2, X.dtype))

    with pytest.raises(ValueError, match="out must be None on rank 0: the result is given to the root, rank 1, alone"):
        parallel.ranks(2, step)
