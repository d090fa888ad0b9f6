"""Many tensors copied in one launch: every length and alignment, one launch, and what is refused."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.optimiser import copies, tensors
from pmpp.runtime import device

SIZES = [0, 1, 3, 4, 5, tensors.CHUNK - 1, tensors.CHUNK, tensors.CHUNK + 6]


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, 2), (3, 3)], ids=str)
def test_all_arrive_and_nothing_else_is_written(shift, rng):
    """Views into one vector each, at places that 128-bit access can and cannot take; what lies between them stays."""
    room = sum(SIZES) + 8 * len(SIZES) + 8
    numbers = rng.normal(size=room).astype(np.float32)
    source, target = device.to_device(numbers), device.to_device(np.full(room, -1, np.float32))
    wanted, pairs, begin = np.full(room, -1, np.float32), [], 0
    for size in SIZES:
        a, b = begin + shift[0], begin + shift[1]
        pairs.append((target[b : b + size], source[a : a + size]))
        wanted[b : b + size] = numbers[a : a + size]
        begin += -(-size // 4) * 4 + 4
    copies.copy_(*map(list, zip(*pairs, strict=True)))
    np.testing.assert_array_equal(target.copy_to_host(), wanted)


def test_bits_stay_and_shapes_may_have_axes():
    numbers = np.array([[np.nan, -0.0, np.inf], [1e-45, -np.inf, 3e38]], np.float32)
    out = device.empty((2, 3), np.float32)
    copies.copy_([out], [numbers])
    np.testing.assert_array_equal(out.copy_to_host().view(np.int32), numbers.view(np.int32))


@pytest.mark.skipif(device.on_gpu(), reason="the interpreter counts launches")
@pytest.mark.parametrize("sizes, launches", [((1, 7, 2000), 1), ((0, 0), 0)])
def test_it_is_one_launch_or_none(sizes, launches):
    targets, sources = ([device.to_device(np.zeros(n, np.float32)) for n in sizes] for _ in range(2))
    with simt.record("check") as reports:
        copies.copy_(targets, sources)
    assert len(reports) == launches


def test_what_does_not_fit_is_named():
    x, y = device.empty(4, np.float32), device.to_device(np.zeros(4, np.float32))
    for targets, sources, kind, said in [
        ([], [], ValueError, "targets must be"),
        ([x], [y, y], ValueError, "sources must be one array for each"),
        ([x], [np.zeros(3, np.float32)], ValueError, r"sources\[0\] must have shape \(4,\)"),
        ([x], [np.zeros(4)], TypeError, r"sources\[0\] must be float32"),
        ([np.zeros(4, np.float32)], [y], TypeError, r"targets\[0\] must be a device array"),
        ([x], [x], ValueError, "sources must share no memory with targets|targets must share no memory with sources"),
        ([x, x], [y, y], ValueError, "must share no memory"),
    ]:
        with pytest.raises(kind, match=said):
            copies.copy_(targets, sources)
