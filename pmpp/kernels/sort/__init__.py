"""Sort: the keys of a vector in order.

The room is `pmpp.kernels.sort.ladder`, and its chapter notebooks/42_sorting.ipynb.
`sort` is the function to use.
"""

from pmpp.kernels.sort.ladder import *
from pmpp.kernels.sort.ladder import arguments, one_sweep


def sort(x, descending=False, *, out=None, stream=0):
    return one_sweep(x, out=out, stream=stream)
