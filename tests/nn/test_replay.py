"""Operations that are launched again from a recording: what is taken from it, and what is left to their own code."""

import struct

import numpy as np
import pytest

from pmpp import nn
from pmpp.kernels import elementwise, matmul, normalisation
from pmpp.nn import functional as F
from pmpp.nn import replay
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

gpu = pytest.mark.skipif(not device.on_gpu() or replay._replayer() is None, reason="needs a GPU, and CuPy")


# ---------------------------------------------------------------------------------------- addresses among the arguments


def recording(begin, words, nbytes=(64, 128), extents=(1, 1, 1, 32, 1, 1, 0), function=7):
    """Two pieces of memory from ``begin`` on, far apart, and a kernel with these arguments."""
    begins = [begin, begin * 3]
    return replay.Recording(begins, list(nbytes), [replay.Launched(function, extents, tuple(words(*begins)))])


def packed(*numbers):
    return [struct.pack("=Q", number) for number in numbers]


def of(words, **others):
    first, second = recording(1 << 20, words), recording(1 << 21, words, **others)
    return replay.patches(first, second, lambda word: False)


def test_what_differs_is_an_address():
    words, found = of(lambda a, b: [*packed(a, 5, b + 16), struct.pack("=QQ", 9, b)])
    assert found == [(0, 0, 0), (2, 1, 16), (4, 1, 0)]
    assert words[1] == 5
    assert words[3] == 9


def test_an_argument_of_less_than_a_word_has_a_word_of_its_own():
    words, found = of(lambda a, b: [struct.pack("=i", -1), *packed(a), b"\x01"])
    assert words[0] == 0xFFFFFFFF
    assert words[2] == 1
    assert found == [(1, 0, 0)]


@pytest.mark.parametrize(
    "words",
    [
        lambda a, b: packed(a, a >> 8),  # a number that depends on an address
        lambda a, b: packed(a + 64),  # behind the first piece of memory
        lambda a, b: packed(a - 1),
        lambda a, b: packed(b + (a >> 19)),  # another distance from the beginning
    ],
)
def test_a_number_that_differs_and_is_no_address_is_refused(words):
    with pytest.raises(replay.Unlike, match="not the same each time"):
        of(words)


@pytest.mark.parametrize(
    "others, said",
    [
        ({"function": 8}, "another kernel"),
        ({"extents": (2, 1, 1, 32, 1, 1, 0)}, "another kernel or other extents"),
        ({"nbytes": (64, 256)}, "allocations"),
    ],
)
def test_other_launches_are_refused(others, said):
    with pytest.raises(replay.Unlike, match=said):
        of(lambda a, b: packed(a), **others)


def test_another_number_of_kernels_is_refused():
    first, second = recording(1 << 20, lambda a, b: packed(a)), recording(1 << 21, lambda a, b: packed(a))
    second.launched *= 2
    with pytest.raises(replay.Unlike, match="number of kernels"):
        replay.patches(first, second, lambda word: False)


def test_an_address_that_is_the_same_each_time_is_refused():
    table = 1 << 30
    both = [recording(begin, lambda a, b: packed(a, table)) for begin in (1 << 20, 1 << 21)]
    with pytest.raises(replay.Unlike, match="memory that the operation keeps"):
        replay.patches(*both, lambda word: word == table)


def test_without_a_gpu_an_operation_is_carried_out_as_it_is():
    if device.on_gpu():
        pytest.skip("there is a GPU")
    assert replay._replayer() is None
    x = device.to_device(np.float32([1, 2]))
    np.testing.assert_array_equal(device.to_host(replay.call(elementwise.multiply, x, 3.0)), [3, 6])


# ------------------------------------------------------------------------------------------------------------ on a GPU


@pytest.fixture
def replayer(monkeypatch):
    """A replayer that has recorded nothing."""
    made = replay.Replayer()
    monkeypatch.setattr(replay, "_replayer", lambda: made)
    return made


def array(*shape, seed=0):
    return device.to_device(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def kept(replayer):
    return [one for one in replayer.recorded.values() if one is not None]


@gpu
def test_the_third_call_is_a_replay_and_reads_new_memory(replayer):
    for seed in range(5):
        a, b = array(33, 65, seed=seed), array(65, 17, seed=seed + 9)
        found = replay.call(matmul.matmul, a, b)
        np.testing.assert_array_equal(device.to_host(found), device.to_host(matmul.matmul(a, b)))
        assert len(kept(replayer)) == (seed > 0)


@gpu
def test_results_have_memory_of_their_own(replayer):
    x = array(1000)
    found = [replay.call(elementwise.multiply, x, 2.0) for _ in range(5)]
    assert len({device.address(one) for one in found}) == 5
    del x
    noise = [array(1000, seed=9) for _ in range(5)]
    for one in found[1:]:
        np.testing.assert_array_equal(device.to_host(one), device.to_host(found[0]))
    assert len(noise) == 5


@gpu
def test_other_layouts_numbers_and_addresses_have_recordings_of_their_own(replayer):
    base = array(64, 65)
    views = [base, base[:32], base[1:33], array(65, 64)]  # base[1:] begins at no multiple of 512 bytes
    for factor in (2.0, 3.0, -0.0, 0.0):
        for x in views * 3:
            found = device.to_host(replay.call(elementwise.multiply, x, factor))
            np.testing.assert_array_equal(found, device.to_host(x) * np.float32(factor))
            np.testing.assert_array_equal(np.signbit(found), np.signbit(device.to_host(x) * np.float32(factor)))
    assert len(kept(replayer)) == 16


@gpu
def test_arrays_that_begin_at_the_same_address_are_left_to_the_operation(replayer):
    x = array(100)
    for _ in range(4):
        np.testing.assert_array_equal(
            device.to_host(replay.call(elementwise.multiply, x, x)), device.to_host(x) * device.to_host(x)
        )
    assert not replayer.recorded


@gpu
def test_another_stream_is_left_to_the_operation(replayer):
    from pmpp.nn.tape import state

    x = array(100)
    state.stream = device.backend().cuda.stream()
    try:
        for _ in range(4):
            found = replay.call(elementwise.multiply, x, 2.0)
            state.stream.synchronize()
            np.testing.assert_array_equal(device.to_host(found), device.to_host(x) * 2)
    finally:
        state.stream = 0
    assert not replayer.recorded


@gpu
def test_errors_are_the_operations_own(replayer):
    a, b = array(8, 9), array(8, 9)
    for _ in range(4):
        with pytest.raises(ValueError, match="b must"):
            replay.call(matmul.matmul, a, b)
    assert not kept(replayer)


@gpu
def test_several_results_come_as_the_operation_returns_them(replayer):
    x, weight, bias = array(8, 6, 5, 5), array(6), array(6)
    for _ in range(4):
        running = array(6), array(6)
        found = replay.call(normalisation.batch_norm, x, weight, bias, *running, momentum=0.5, return_moments=True)
        again = array(6), array(6)
        wanted = normalisation.batch_norm(x, weight, bias, *again, momentum=0.5, return_moments=True)
        assert type(found) is type(wanted)
        for one, other in zip((*found, *running), (*wanted, *again), strict=True):
            np.testing.assert_array_equal(device.to_host(one), device.to_host(other))
    assert len(kept(replayer)) == 1


@gpu
def test_what_is_no_chain_of_kernels_is_left_to_the_operation(replayer):
    import cupy

    def copies(x, *, stream=0):
        """A copy that no kernel makes."""
        made = device.empty(x.shape, x.dtype, stream=stream)
        handle = int(getattr(stream, "handle", 0))
        cupy.cuda.runtime.memcpyAsync(device.address(made), device.address(x), x.alloc_size, 3, handle)
        return made

    def keeps(x, *, stream=0):
        """It reads memory that is no argument."""
        return elementwise.add(x, table, stream=stream)

    def counts(x, *, stream=0):
        """Another number in each call."""
        calls.append(None)
        return elementwise.multiply(x, float(len(calls)), stream=stream)

    table, calls, x = array(100), [], array(100)
    for operation in (copies, keeps, counts):
        for _ in range(4):
            replay.call(operation, x)
    assert not kept(replayer)
    assert len(replayer.left) == 3
    np.testing.assert_array_equal(device.to_host(replay.call(copies, x)), device.to_host(x))


@gpu
def test_a_timeline_names_the_kernels_of_a_replay(replayer):
    from pmpp.nn.timeline import Recorder

    x, found = array(100), []
    for _ in range(4):
        with Recorder() as recorder:
            replay.call(elementwise.multiply, x, 2.0)
        found.append([span.name for span in recorder.timeline().row("GPU")])
        assert recorder.counts["launches"] == 1
    assert len(kept(replayer)) == 1
    assert found == found[:1] * 4, found


@gpu
def test_a_network_learns_the_same_to_the_last_bit(monkeypatch):
    def trained():
        nn.manual_seed(3)
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        net = nn.Sequential(*layers, nn.Linear(8 * 36, 20), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 5))
        optimizer = nn.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        rng = np.random.default_rng(1)
        for n in (16, 16, 16, 7, 16, 16, 7, 7, 16):
            x = Tensor(rng.standard_normal((n, 3, 12, 12), dtype=np.float32))
            optimizer.zero_grad()
            F.cross_entropy(net(x), Tensor(rng.integers(0, 5, n))).backward()
            optimizer.step()
        return net.state_dict()

    made = replay.Replayer()
    monkeypatch.setattr(replay, "_replayer", lambda: made)
    found = trained()
    assert len(kept(made)) > 20
    assert not made.left
    monkeypatch.setattr(replay, "_replayer", lambda: None)
    for name, value in trained().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
