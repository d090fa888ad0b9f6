"""What a loader queues on its streams: nothing is read before it is copied, and nothing overwritten before it is read.

The streams are those of tests/nn/streams.py, which run an operation as late, or as early, as its order allows.
"""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest

import pmpp
from pmpp import nn
from pmpp.nn.tape import Tensor
from pmpp.nn.utils import data
from pmpp.nn.utils.data import DataLoader, TensorDataset
from tests.nn.streams import Event, Machine

NUMBERS = TensorDataset(np.arange(1, 24, dtype=np.float32))


class Own:
    """The same as a dataset of one's own. The example ``bad`` cannot be read."""

    def __init__(self, bad=None):
        self.bad = bad
        self.threads = set()

    def __len__(self):
        return len(NUMBERS)

    def __getitem__(self, i):
        self.threads.add(threading.current_thread().name)
        if i == self.bad:
            raise OSError(f"example {i} cannot be read")
        return (np.float32(i + 1),)


@pytest.fixture(params=["late copies", "early copies"])
def machine(request, monkeypatch):
    return Machine(request.param == "early copies").install(monkeypatch, data)


def sums(machine, loader):
    """The sum of each batch of an epoch, by kernels that run when all is queued."""
    found = []
    for (batch,) in loader:
        machine.sum_of(batch, found)
    machine.computes.run()
    return found


def expected(n=4):
    numbers = NUMBERS.arrays[0]
    return [float(numbers[i : i + n].sum()) for i in range(0, len(numbers), n)]


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("dataset", [NUMBERS, Own()], ids=["arrays", "of one's own"])
@pytest.mark.parametrize("prefetch", [1, 2, 5, 40])
def test_each_kernel_finds_its_batch(machine, dataset, prefetch, thread):
    loader = DataLoader(dataset, 4, prefetch=prefetch, thread=thread)
    for _ in range(3):
        assert sums(machine, loader) == expected()


def test_pinned_memory_is_kept_from_epoch_to_epoch(machine):
    loader = DataLoader(NUMBERS, 4, prefetch=2)
    sums(machine, loader)
    before = machine.pinned
    assert before == 3
    sums(machine, loader)
    assert machine.pinned == before


def test_two_iterators_of_one_loader_do_not_share_buffers(machine):
    loader = DataLoader(NUMBERS, 4, prefetch=2)
    found, other = [], []
    for (a,), (b,) in zip(loader, loader, strict=True):
        machine.sum_of(a, found)
        machine.sum_of(b, other)
    machine.computes.run()
    assert found == other == expected()


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("taken", [1, 3])
def test_memory_of_batches_that_nobody_took_is_not_overwritten_by_their_copies(machine, taken, thread):
    """Left in the middle of an epoch: memory that was copied to ahead is used again, for a result of a kernel."""
    loader = DataLoader(NUMBERS, 4, prefetch=3, thread=thread)
    found = []
    for number, (batch,) in enumerate(loader, 1):
        machine.sum_of(batch, found)
        if number == taken:
            break
    del batch
    results = [machine.empty((4,), np.float32, 0) for _ in range(8)]  # memory of the pool
    for result in results:
        machine.computes.add(lambda memory=result.memory: memory.__setitem__(..., 7))
    machine.computes.run()
    machine.copies.run()
    assert found == expected()[:taken]
    assert all((result.memory == 7).all() for result in results)
    assert sums(machine, loader) == expected()


@pytest.mark.parametrize("thread", [False, True])
def test_an_error_of_the_dataset_comes_with_its_batch(machine, thread):
    loader = DataLoader(Own(bad=9), 4, prefetch=1, thread=thread)
    with pytest.raises(OSError, match="example 9 cannot be read"):
        sums(machine, loader)
    assert not [one for one in threading.enumerate() if one.name.startswith("DataLoader")]
    loader.dataset.bad = None
    assert sums(machine, loader) == expected()


def test_the_thread_ends_with_the_loop(machine):
    loader = DataLoader(Own(), 4, thread=True)
    next(iter(loader))
    sums(machine, loader)
    assert all(name.startswith("DataLoader") for name in loader.dataset.threads)
    assert not [one for one in threading.enumerate() if one.name.startswith("DataLoader")]


@pytest.mark.parametrize("read", [1, 23], ids=["left in the middle", "read to the end"])
def test_no_event_is_asked_that_python_has_destroyed(monkeypatch, machine, read):
    """The driver destroys an event as Numba's does, by a callback. In circular garbage those come first of all."""
    asked = []

    class Mortal(Event):
        def __init__(self, timing=True):
            super().__init__(timing)
            self.alive = [True]
            weakref.finalize(self, self.alive.clear)

        def wait(self, stream):
            asked.append(bool(self.alive))
            super().wait(stream)

        def synchronize(self):
            asked.append(bool(self.alive))
            super().synchronize()

    monkeypatch.setattr(pmpp.cuda, "event", Mortal)
    loader = DataLoader(NUMBERS, 4, prefetch=2)
    circle = [loader, iter(loader)]
    circle.append(circle)
    for _ in itertools.islice(circle[1], read):
        pass
    before = len(asked)
    del loader, circle
    gc.collect()
    assert len(asked) > before
    assert all(asked)
    assert not data._in_use


@pytest.mark.parametrize("name", ["synchronize", "wait"])
def test_the_streams_show_a_wait_that_is_missing(monkeypatch, name):
    """The tests above would find such a loader."""
    wrong = []
    for eager in (False, True):
        machine = Machine(eager).install(monkeypatch, data)
        monkeypatch.setattr(Event, name, lambda *_: None)
        wrong.append(sums(machine, DataLoader(NUMBERS, 4, prefetch=1)) != expected())
    assert any(wrong)


# --------------------------------------------------------------------------------------------------- without a machine


@pytest.mark.parametrize("thread", [False, True])
def test_orders_and_batches_are_the_same_however_they_come(thread):
    dataset = TensorDataset(np.arange(44, dtype=np.float32).reshape(11, 2, 2)[:, ::-1], np.arange(11))
    plain = list(DataLoader(dataset, 3, shuffle=True, seed=5, prefetch=0))
    ahead = list(DataLoader(dataset, 3, shuffle=True, seed=5, prefetch=2, thread=thread))
    assert len(plain) == len(ahead) == 4
    for batch, other in zip(plain, ahead, strict=True):
        for tensor, same in zip(batch, other, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), same.numpy())


def test_empty_batches_and_empty_examples():
    assert list(DataLoader(TensorDataset(np.zeros((0, 3), np.float32)), 4)) == []
    (batch,) = DataLoader(TensorDataset(np.zeros((3, 0), np.float32)), 4)
    assert batch[0].shape == (3, 0)


class Listed(list):
    """A list of examples as a dataset."""


@pytest.mark.parametrize(
    ("examples", "error", "words"),
    [
        ([np.zeros(2, np.float32)], TypeError, "example 0 must be a tuple of arrays or numbers, was ndarray"),
        ([(1.0, 2), (1.0,)], ValueError, "example 1 has 1 parts, and example 0 has 2"),
        ([(1.0,), (2,)], ValueError, r"part 0 of example 1 is int64\(\), and that of example 0 is float32\(\)"),
        ([(np.zeros(2, np.float32),), (np.zeros(3, np.float32),)], ValueError, r"part 0 of example 1 is float32\(3,\)"),
        ([(np.zeros(2),)], TypeError, "array 0 of a batch must be of float32, .*int32 or int64, was float64"),
    ],
)
def test_an_example_that_does_not_fit_is_named(examples, error, words):
    with pytest.raises(error, match=words):
        next(iter(DataLoader(Listed(examples), 2)))


def test_a_thread_without_prefetch_is_refused():
    with pytest.raises(ValueError, match="prefetch must be at least 1, was 0"):
        DataLoader(NUMBERS, 4, prefetch=0, thread=True)


# ------------------------------------------------------------------------------------------------------------- capture


def test_a_captured_step_takes_its_own_inputs():
    seen = []

    def step(x):
        seen.append(x)
        return (x * 2).sum()

    recorded = nn.capture(step, Tensor([1.0, 2.0]))
    given = Tensor([3.0, 4.0])
    assert recorded(given).item() == 14
    assert seen[-1] is recorded.inputs[0]
    np.testing.assert_array_equal(recorded.inputs[0].numpy(), [3, 4])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f: nn.capture(f, np.zeros(2, np.float32)), TypeError, "input 0 must be a Tensor, was ndarray"),
        (lambda f: nn.capture(f, Tensor([1.0]))(np.zeros(1)), TypeError, "input 0 must be a Tensor, was ndarray"),
        (lambda f: nn.capture(f, Tensor([1.0]))(Tensor([1.0, 2.0])), ValueError, r"input 0 must be float32\(1,\)"),
        (lambda f: nn.capture(f, Tensor([1.0]))(Tensor(np.arange(1))), ValueError, r"as it was recorded, was int64"),
        (lambda f: nn.capture(f, Tensor([1.0]))(), TypeError, "recorded with 1 inputs, was given 0"),
        (lambda f: nn.capture(f, Tensor([1.0], requires_grad=True)), ValueError, "input 0 requires a gradient"),
    ],
)
def test_what_a_captured_step_refuses(call, error, words):
    with pytest.raises(error, match=words):
        call(lambda x: x * 2)


def test_a_step_that_is_recorded_cannot_read_a_result(monkeypatch):
    from pmpp.nn.tape import state

    x = Tensor([1.0])
    monkeypatch.setattr(state, "capturing", True)
    for read in (x.item, x.numpy, lambda: bool(x), lambda: float(x)):
        with pytest.raises(RuntimeError, match="cannot read a result on the host"):
            read()
