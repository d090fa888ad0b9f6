"""A small fusing compiler: a function of NumPy's elementwise operations and row reductions becomes few kernels.

Chapter: notebooks/91_a_fusing_compiler.ipynb. It has four steps, a file for each: `tracing` runs the function on values
that note what is done with them; `group` decides which operations share a kernel; `source` writes the kernels as
Python; `compiled` keeps and launches them.
"""

from pmpp.nn.fuse.compiled import Fused, Program, fuse
from pmpp.nn.fuse.group import Part, alone, elementwise_only, fused
from pmpp.nn.fuse.tracing import Graph, TraceError, Value, trace

__all__ = [
    "Fused",
    "Graph",
    "Part",
    "Program",
    "TraceError",
    "Value",
    "alone",
    "elementwise_only",
    "fuse",
    "fused",
    "trace",
]
