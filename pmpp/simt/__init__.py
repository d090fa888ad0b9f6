"""The SIMT interpreter: runs `numba.cuda` kernels on any machine, and explains them.

It executes a kernel's Python source over NumPy arrays that hold one variable of every thread.  Three levels:

    "run"    results only
    "count"  and the counters of a profiler: sectors, wavefronts, divergence, FLOPs, by source line
    "check"  and the findings of a sanitizer: races, out of bounds, uninitialised reads, divergent barriers

`simt.cuda` is a drop-in for `numba.cuda`; `simt.profile` runs one launch and reports on it.  `report.metrics()` names
each counter as Nsight Compute does; `report.occupancy(gpu)` and `report.bound(gpu)` say what a GPU of `simt.GPUS` could
make of it.  With `trace=True` the report also keeps who touched which address when, for `pmpp.lab.plots` to draw.

A thread-instruction costs some nanoseconds, whatever the grid.  A launch takes at most 64 MiB beyond its arrays and the
shared and local memory of 65,536 threads (machine.py has the account); `python -m pmpp.simt.versus` measures both.
"""

from pmpp.simt import cuda, random
from pmpp.simt.counting import COUNTERS
from pmpp.simt.errors import (
    ArgumentError,
    Hazard,
    HazardError,
    LaunchError,
    OutOfBoundsError,
    SimtError,
    TraceError,
    UnsupportedError,
)
from pmpp.simt.gpus import GPUS, Gpu, occupancy
from pmpp.simt.launch import profile, record
from pmpp.simt.machine import batch_lanes, loop_limit
from pmpp.simt.metrics import METRICS
from pmpp.simt.precision import KernelWarning
from pmpp.simt.refusals import refusal
from pmpp.simt.report import Report
from pmpp.simt.scheduler import schedule
from pmpp.simt.trace import Access, Heat, Step, Trace, Tracing

cuda.random = random  # its device functions are made with cuda.jit

__all__ = [
    "COUNTERS", "GPUS", "METRICS", "Access", "ArgumentError", "Gpu", "Hazard", "HazardError", "Heat", "KernelWarning",
    "LaunchError", "OutOfBoundsError", "Report", "SimtError", "Step", "Trace", "TraceError", "Tracing",
    "UnsupportedError", "batch_lanes", "cuda", "loop_limit", "occupancy",
    "profile", "record", "refusal", "schedule",
]  # fmt: skip
