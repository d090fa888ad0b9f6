"""What is measured of ``on_warpgroups``: the workloads of ``on_tensor_cores``, on a Hopper GPU.

Beside the rungs stands the best kernel with mma.sync. What counts is the comparison with the faster of PyTorch's two
kernels for tensor cores, FlashAttention and cuDNN's.
"""

from __future__ import annotations

from pmpp.kernels.attention import on_tensor_cores, on_warpgroups
from pmpp.kernels.attention.on_tensor_cores_workloads import CAUSAL, OTHER, SWEEP, work
from pmpp.kernels.attention.workloads import LARGE, square
from pmpp.runtime.dtypes import known

RUNGS = (on_tensor_cores.wide, *on_warpgroups.LADDER)
LAST = on_warpgroups.LADDER[-1:]
WORKLOADS = [
    *(work(name, shape, RUNGS, design=True, quick=True) for name, shape in LARGE.items()),
    *(work("causal", shape, RUNGS, quick=shape.size == 64) for shape in CAUSAL.values()),
    *(
        work(f"{name}, {dtype}", shape, LAST, str(dtype))
        for dtype in known(on_warpgroups.DTYPES[1:])
        for name, shape in LARGE.items()
    ),
    *(work("sweep", square(1, 16, length, 64), LAST, cache="warm") for length in SWEEP),
    *(work("other shapes", shape, LAST) for shape in OTHER),
]
