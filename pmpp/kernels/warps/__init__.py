"""Warps: what 32 threads that run together mean for branches, loops and the numbering of threads.

Half of the elements of a vector want one recurrence, and half another: a branch by lane, none, a branch by warp, and
threads that do both.
The room is `pmpp.kernels.warps.ladder`, and its chapter notebooks/08_warps.ipynb.
`two_ways` is the rung to use.
"""

from pmpp.kernels.warps.ladder import *
from pmpp.kernels.warps.ladder import unrolled

two_ways = unrolled
