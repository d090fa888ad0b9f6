"""Products of float16 of drawn shapes: `matmul.products.product`."""

from __future__ import annotations

import functools

import numpy as np

from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.matmul import products
from pmpp.kernels.matmul.tensor_cores_workloads import halves, stored_as_float16, verify
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """(m, k) by (k, n), with sums in float32 that are stored as float16, beside cuBLAS that does the same."""
    m, n, k = (shape.sizes[extent] for extent in "mnk")

    return contenders.workload(
        shape,
        "products.product",
        functools.partial(products.product, rounded=True),
        {"torch.matmul": stored_as_float16},
        make=lambda seed: (halves((m, k), seed), halves((k, n), seed + 1000)),
        verify=verify,
        output=lambda: device.empty((m, n), np.float16),
    )
