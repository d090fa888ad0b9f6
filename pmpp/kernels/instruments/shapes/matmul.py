"""Products of drawn shapes: `matmul.matmul`."""

from __future__ import annotations

import numpy as np

from pmpp.kernels import matmul
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.matmul.workloads import LIBRARIES, verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """(m, k) by (k, n), beside cuBLAS in float32 by PyTorch and by CuPy."""
    m, n, k = (shape.sizes[extent] for extent in "mnk")

    return contenders.workload(
        shape,
        "matmul.matmul",
        matmul.matmul,
        LIBRARIES,
        make=lambda seed: (normal((m, k), seed), normal((k, n), seed + 1000)),
        verify=verify,
        output=lambda: device.empty((m, n), np.float32),
    )
