"""What is measured of ``gradients_on_warpgroups``: the workloads of ``attention_gradients``, on a Hopper GPU.

Beside the rungs stand the best kernels with mma.sync. What the forward pass leaves, its result and the logarithms, is
there when the clock starts, for the libraries as well.
"""

from __future__ import annotations

from pmpp.kernels.attention import attention_gradients, gradients_on_warpgroups
from pmpp.kernels.attention.attention_gradients_workloads import OTHER, work
from pmpp.kernels.attention.workloads import LARGE
from pmpp.runtime.dtypes import known

RUNGS = (attention_gradients.overlapped, *gradients_on_warpgroups.LADDER)
LAST = gradients_on_warpgroups.LADDER[-1:]
WORKLOADS = [
    *(work(name, shape, RUNGS, design=True, quick=shape.size == 64) for name, shape in LARGE.items()),
    *(work("causal", shape._replace(causal=True), RUNGS) for shape in LARGE.values()),
    *(
        work(f"{name}, {dtype}", shape, LAST, str(dtype))
        for dtype in known(gradients_on_warpgroups.DTYPES[1:])
        for name, shape in LARGE.items()
    ),
    *(work("other shapes", shape, LAST) for shape in OTHER),
]
