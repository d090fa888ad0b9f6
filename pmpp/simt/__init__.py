"""The SIMT interpreter: runs `numba.cuda` kernels on any machine, and explains them.

It executes a kernel's Python source over NumPy arrays that hold one variable of every thread.  Three levels:

    "run"    results only
    "count"  and the counters of a profiler: sectors, wavefronts, divergence, FLOPs, by source line
    "check"  and the findings of a sanitizer: races, out of bounds, uninitialised reads, divergent barriers, lost writes

`simt.cuda` is a drop-in for `numba.cuda`; `simt.profile` runs one launch and reports on it.  `report.metrics()` names
each counter as Nsight Compute does; `report.occupancy(gpu)` and `report.bound(gpu)` say what a GPU of `simt.GPUS` could
make of it.  With `trace=True` the report also keeps who touched which address when, for `pmpp.lab.draw.plots` to draw.

Its floors, from the top; each imports only from those below, and a test holds it:

    host            launches, device arrays, reports, and the rest of numba.cuda's host side
    front, observe  front: from a kernel's source to closures over lanes.  observe: counters, sanitizers, traces
    api             what the names of `cuda` do in a kernel
    machine         lanes and masks, memory, schedules, one launch while it runs
    values          numbers with Numba's types, and what operators and functions make of them

A thread-instruction costs some nanoseconds, whatever the grid.  A launch takes at most 64 MiB beyond its arrays and the
shared and local memory of 65,536 threads (machine/machine.py has the account); `python -m tests.support.versus`
measures both.
"""

from pmpp.simt.front.accidental_float64 import KernelWarning
from pmpp.simt.host import cuda, random
from pmpp.simt.host.launch import Clusters, profile, record
from pmpp.simt.host.refusals import refusal
from pmpp.simt.host.report import Report
from pmpp.simt.machine.gpus import GPUS, Gpu, occupancy
from pmpp.simt.machine.machine import batch_lanes, loop_limit
from pmpp.simt.machine.scheduler import schedule
from pmpp.simt.observe.counting import COUNTERS
from pmpp.simt.observe.metrics import METRICS
from pmpp.simt.observe.tables import Table
from pmpp.simt.observe.trace import Access, Heat, Step, Trace, Tracing
from pmpp.simt.values.errors import (
    ArgumentError,
    Hazard,
    HazardError,
    LaunchError,
    OutOfBoundsError,
    SimtError,
    TraceError,
    UnsupportedError,
)
from pmpp.simt.values.sparse_tensor_cores import fragment, metadata

cuda.random = random  # its device functions are made with cuda.jit

__all__ = [
    "COUNTERS", "GPUS", "METRICS", "Access", "ArgumentError", "Clusters", "Gpu", "Hazard", "HazardError", "Heat",
    "KernelWarning", "LaunchError", "OutOfBoundsError", "Report", "SimtError", "Step", "Table", "Trace", "TraceError",
    "Tracing", "UnsupportedError", "batch_lanes", "cuda", "fragment", "loop_limit", "metadata", "occupancy", "profile",
    "record", "refusal", "schedule",
]  # fmt: skip
