"""The loop of the exercise "bottleneck/cure": what it computes, what its bill says, and kernels without float64."""

import numpy as np
import pytest

from pmpp.kernels.bottleneck import gpu
from pmpp.runtime import device

ONE = np.zeros(3, np.float32)
ARGUMENTS = {
    gpu.distance_kernel: (ONE, ONE, ONE),
    gpu.loss_kernel: (ONE, ONE),
    gpu.scale_kernel: (ONE, np.float32(1)),
    gpu.move_kernel: (ONE, ONE),
    gpu.step_kernel: (np.zeros((2, 3), np.float32), 0, ONE, np.float32(1), ONE),
}


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_the_slow_loop_and_its_bill(n):
    rng = np.random.default_rng(n)
    batches, start = rng.standard_normal((4, n), dtype=np.float32), rng.standard_normal(n, dtype=np.float32)
    *losses, launches, waits, copied = gpu.slow(batches, start, np.float32(0.5))
    w = start.astype(np.float64)
    for batch, loss in zip(batches, losses, strict=True):
        expected = ((w - batch) ** 2).sum()
        # n roundings of the sum, and the few of w that each step adds, all relative to squares below loss + n
        assert abs(loss - expected) <= 2.0**-24 * (2 * n + 50) * (expected + n)
        w -= 0.5 * (w - batch)
    assert (launches, waits, copied) == (4 * 4, 1 + 2 * 4, 4 * n + 4 * 4 * n + 4 * 4)


def test_one_kernel_does_what_four_do():
    rng = np.random.default_rng(0)
    batches, start = rng.standard_normal((3, 70), dtype=np.float32), rng.standard_normal(70, dtype=np.float32)
    expected = gpu.slow(batches, start, np.float32(0.25))[:3]
    w, rows, losses = (device.to_device(x) for x in (start, batches, np.zeros(3, np.float32)))
    for k in range(3):
        gpu.step_kernel[1, gpu.BLOCK](rows, k, w, np.float32(0.25), losses)
    np.testing.assert_allclose(device.to_host(losses), expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", ARGUMENTS, ids=lambda kernel: kernel.py_func.__name__)
def test_the_kernels_compile_without_float64(kernel, ptx):
    text = ptx(kernel, *ARGUMENTS[kernel])
    assert ".entry" in text
    assert "add.f64" not in text
    assert "mul.f64" not in text
