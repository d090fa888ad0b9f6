"""The tables of addresses: as they are written by a copy, and by launches, which a CUDA graph can record."""

import numpy as np
import pytest

from pmpp.kernels import optimiser
from pmpp.kernels.optimiser import tensors
from pmpp.runtime import device
from pmpp.runtime.graphs import is_recorded


@pytest.mark.parametrize("count", [1, tensors.NUMBERS - 1, tensors.NUMBERS, tensors.NUMBERS + 1])
def test_numbers_that_launches_bring_along(count):
    numbers = np.arange(2**40, 2**40 + 2 * count).reshape(count, 2)
    np.testing.assert_array_equal(device.to_host(tensors.put(numbers, 0)), numbers)


@pytest.mark.skipif(not device.on_gpu(), reason="the interpreter has no graphs")
def test_a_graph_keeps_the_addresses_of_its_recording():
    cupy = pytest.importorskip("cupy")
    stream, pool = cupy.cuda.Stream(), cupy.cuda.MemoryPool()
    parameters = [device.to_device(np.full(n, 1.0, np.float32)) for n in (3, 1025)]
    gradients = [device.to_device(np.full(n, 0.5, np.float32)) for n in (3, 1025)]
    optimiser.sgd_(parameters, gradients, lr=0.0)  # compiles
    device.backend().cuda.synchronize()
    queue = device.as_stream(stream)
    with cupy.cuda.using_allocator(pool.malloc), stream:
        tensors.put(np.zeros(1, np.int64), queue)
        optimiser.sgd_(parameters, gradients, lr=0.0, stream=stream)
        stream.synchronize()
        stream.begin_capture()
        assert is_recorded(queue)
        others = [device.empty(n, np.float32, stream=queue) for n in (3, 1025)]  # addresses that no table has
        for other, gradient in zip(others, gradients, strict=True):
            other.copy_to_device(gradient, stream=queue)
        optimiser.sgd_(parameters, others, lr=1.0, stream=stream)
        graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    for parameter in parameters:
        assert (device.to_host(parameter) == 1 - 3 * 0.5).all()
