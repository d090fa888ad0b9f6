"""Blocks that count themselves: one of them is the last, it sees what the others have stored, and zeros are left."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.common import arrivals
from pmpp.kernels.common.arrivals import ARRIVALS, arrivals_for, is_last_block
from pmpp.runtime import device
from tests.support.wrong import result_of


@cuda.jit
def total_kernel(x, kept, out, arrivals):
    """Each part of a tile keeps its elements, and the last one adds up what all have kept."""
    before = cuda.shared.array(1, np.uint32)
    tile, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    threads = cuda.blockDim.x * cuda.blockDim.y
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    at = (tile * parts + part) * threads
    kept[at + thread] = x[at + thread]
    if is_last_block(arrivals, tile, parts, before) and thread == 0:
        total = np.int32(0)
        for i in range(parts * threads):
            total += kept[tile * parts * threads + i]
        cuda.atomic.add(out, tile, total)


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("block", [(32, 1), (8, 12)])
def test_one_block_of_a_tile_is_the_last_and_sees_what_all_have_kept(parts, block):
    tiles, threads = 3, block[0] * block[1]
    x = np.arange(tiles * parts * threads, dtype=np.int32)
    given, out = device.to_device(x), device.to_device(np.zeros(tiles, np.int32))

    def launch():
        total_kernel[(tiles, parts), block](given, device.empty(x.size, np.int32), out, arrivals_for(0))
        return out

    for turn in (1, 2):
        result = result_of(launch)
        assert result.tolist() == (turn * x.reshape(tiles, -1).sum(axis=1)).tolist()
        assert not device.to_host(arrivals_for(0)).any()


def test_each_stream_has_counts_of_its_own():
    stream = cuda.stream()
    assert arrivals_for(stream) is arrivals_for(stream)
    assert arrivals_for(stream) is not arrivals_for(0)
    assert arrivals_for(0).shape == (ARRIVALS,)


def test_what_is_recorded_has_zeros_of_its_own_that_are_written_anew(monkeypatch):
    monkeypatch.setattr(arrivals, "is_recorded", lambda stream: True)
    first, second = arrivals_for(0), arrivals_for(0)
    assert first is not second
    for counts in (first, second):
        assert device.to_host(counts).tolist() == [0] * ARRIVALS
