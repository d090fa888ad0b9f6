"""Windows: what is read and written, what it costs, and which orders are enough."""

import numpy as np
import pytest

from pmpp import parallel
from pmpp.parallel.windows import Unordered
from pmpp.runtime import device

pytestmark = pytest.mark.native("threads")


def full(value, rows=4, dtype=np.float32):
    return device.to_device(np.full((rows, 2), value, dtype))


# ------------------------------------------------------------------------------------------------------------ a stencil


def jacobi(group, start, steps):
    """Every cell becomes the mean of its neighbours. A rank writes its border cells into the neighbours' halos."""
    count = (len(start) - 2) // group.size
    x = device.to_device(start[count * group.rank : count * (group.rank + 1) + 2])
    window = group.window(x)
    beside = [rank for rank in (group.rank - 1, group.rank + 1) if 0 <= rank < group.size]
    for _ in range(steps):
        for rank in beside:
            edge = count if rank > group.rank else 1
            window.write(x[edge : edge + 1], to=rank, at=0 if rank > group.rank else count + 1)
            window.signal(to=rank)
        for rank in beside:
            window.wait(source=rank)
        cells = device.to_host(window.rows())
        group.barrier()  # nobody writes the halos again before all have read them
        x[1 : count + 1].copy_to_device((cells[:-2] + cells[2:]) / 2)
    return device.to_host(group.all_gather(x[1 : count + 1])).reshape(-1)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_stencil_by_peer_stores(size, rng):
    start = rng.random(18)
    wanted = start.copy()
    for _ in range(3):
        wanted[1:-1] = (wanted[:-2] + wanted[2:]) / 2
    for found in parallel.ranks(size, jacobi, start, 3):
        np.testing.assert_array_equal(found, wanted[1:-1])


# ----------------------------------------------------------------------------------------------------- what is enough


ENOUGH = {
    "barrier": lambda group: group.barrier(),
    "all_reduce": lambda group: group.all_reduce(np.ones(1)),
    "broadcast from the writer": lambda group: group.broadcast(np.ones(1), root=0),
    "reduce to the reader": lambda group: group.reduce(np.ones(1), root=1),
    "split": lambda group: group.split(0),
    "a message": lambda group: (
        group.send(np.ones(1), 1) if group.rank == 0 else group.recv(device.empty(1, np.float64), 0)
    ),
    "a message back": lambda group: (
        group.send(np.ones(1), 0) if group.rank else group.recv(device.empty(1, np.float64), 1)
    ),
}
NOT_ENOUGH = {
    "nothing": lambda group: None,
    "broadcast to the writer": lambda group: group.broadcast(np.ones(1), root=1),
    "reduce to the writer": lambda group: group.reduce(np.ones(1), root=0),
}


def write_and_read(group, between):
    x = full(0)
    window = group.window(x)
    if group.rank == 0:
        x.copy_to_device(np.ones((4, 2), np.float32))
    between(group)
    if group.rank == 1:
        return device.to_host(window.read(device.empty((4, 2), np.float32), source=0))[0, 0]
    return None


@pytest.mark.parametrize("between", ENOUGH.values(), ids=ENOUGH)
def test_an_order_that_is_enough(between):
    assert parallel.ranks(2, write_and_read, between) == [None, 1.0]


def closed(group, between):
    found = write_and_read(group, between)
    group.barrier()  # a window whose owner writes after the last look is looked at once more
    return found


@pytest.mark.parametrize("between", NOT_ENOUGH.values(), ids=NOT_ENOUGH)
def test_an_order_that_is_not_enough(between):
    with pytest.raises(Unordered, match=r"rank 0 writes rows 0 to 3 itself, before .* and rank 1 reads|rank 1 reads"):
        parallel.ranks(2, closed, between)


def test_rows_that_do_not_meet_and_readers_need_no_order():
    def step(group):
        x = device.to_device(np.arange(8, dtype=np.int64).reshape(4, 2))
        window = group.window(x)
        box = device.empty((2, 2), np.int64)
        window.read(box, source=0, at=2)
        if group.rank == 1:
            window.write(np.full((1, 2), 9), to=0, at=1)
        window.read(box, source=0, at=2)
        group.barrier()
        return device.to_host(box).tolist(), device.to_host(x[1]).tolist()

    assert parallel.ranks(2, step) == [([[4, 5], [6, 7]], [9, 9]), ([[4, 5], [6, 7]], [2, 3])]


# ------------------------------------------------------------------------------------------------------ cost, errors


def test_messages_bytes_and_clocks():
    """Alpha is 1 s, and a byte takes 1 s. Who reads waits for its rows, and nobody else does."""

    def step(group):
        window = group.window(full(0, rows=1))  # 8 bytes; the barrier of two ranks takes 1 s
        if group.rank == 0:
            window.write(np.ones((1, 2), np.float32), to=1)  # until 10
            window.signal(to=1)  # arrives at 11
        else:
            window.wait(source=0)
            window.rows()

    report = parallel.ranks(2, step, links=parallel.Links(1.0, 1.0)).report
    assert report.seconds == (10.0, 11.0)
    assert report.kinds == {"window": (1, 2, 0), "write": (1, 1, 8), "signal": (1, 1, 0)}


def in_a_smaller_group(group):
    pair = group.split(group.rank // 2)
    window = pair.window(full(group.rank))
    window.write(np.full((1, 2), 10 + group.rank, np.float32), to=1 - pair.rank)
    window.signal(to=1 - pair.rank)
    window.wait(source=1 - pair.rank)
    return device.to_host(window.rows())[:2, 0].tolist()


def test_ranks_of_a_smaller_group():
    assert parallel.ranks(4, in_a_smaller_group) == [[11, 0], [10, 1], [13, 2], [12, 3]]


@pytest.mark.parametrize(
    "use, error, says",
    [
        (lambda w: w.read(np.zeros((4, 2), np.float32), 0), TypeError, "out must be a device array, was ndarray"),
        (lambda w: w.read(device.empty((4, 3), np.float32), 0), ValueError, r"there are 4 of shape \(2,\) and float32"),
        (lambda w: w.read(device.empty((4, 2), np.float32), 0, at=1), ValueError, "from row 1 on, of which there are"),
        (lambda w: w.read(device.empty((4, 2), np.float32), 2), ValueError, "source must be from 0 to 1, was 2"),
        (lambda w: w.write(np.zeros((1, 2)), 0), TypeError, "x must be"),
        (lambda w: w.write(np.zeros((1, 2), np.float32), 0, at=5), ValueError, "at must be from 0 to 4, was 5"),
        (lambda w: w.write(np.zeros(2, np.float32), 0), ValueError, "x must be rows of the window"),
        (lambda w: w.rows(3, 2), ValueError, "count must be from 0 to 1, was 2"),
        (lambda w: w.signal(-1), ValueError, "to must be from 0 to 1, was -1"),
        (lambda w: w.group.window(np.zeros(3)), TypeError, "x must be a device array"),
        (lambda w: w.group.window(None), TypeError, "x must be a device array, was None"),
        (lambda w: w.group.window(device.to_device(np.float32(1))), ValueError, "x must have rows"),
    ],
)
def test_a_wrong_argument_is_named(use, error, says):
    with pytest.raises(error, match=says):
        parallel.ranks(2, lambda group: use(group.window(full(0))))


def test_windows_that_differ_are_a_mismatch():
    with pytest.raises(parallel.CommunicationError, match="ranks disagree on the shape of window"):
        parallel.ranks(2, lambda group: group.window(full(0, rows=3 + group.rank)))


def test_alone_there_are_no_windows():
    with pytest.raises(RuntimeError, match="backend 'simulated' has no windows here: ranks in one process do"):
        parallel.init().window(full(0))


def test_arrays_that_are_the_same_and_that_are_not():
    parallel.ranks(3, lambda group: group.same(np.arange(4)))
    for other in (np.arange(4.0), np.arange(4).reshape(2, 2), np.arange(5), np.arange(4)[::-1].copy()):
        with pytest.raises(parallel.CommunicationError, match=r"rank 1 has another table than ranks 0 and 2 at .*py:"):
            parallel.ranks(
                3, lambda group, other: group.same(other if group.rank == 1 else np.arange(4), "table"), other
            )


def test_what_an_owner_writes_after_its_last_call_is_said_to_be_after_it():
    def step(group):
        x = full(0)
        window = group.window(x)
        if group.rank == 0:
            x.copy_to_device(np.ones((4, 2), np.float32))
        else:
            window.read(device.empty((4, 2), np.float32), source=0)

    with pytest.raises(Unordered, match=r"rank 0 writes rows 0 to 3 itself, after window at .*, and rank 1 reads"):
        parallel.ranks(2, step)
