"""Numerics: the sum of a vector of float32, and how near to the true sum it comes.

The same additions in another order, in pairs of numbers, in a wider format and in integers.
The room is `pmpp.kernels.numerics.ladder`, and its chapter notebooks/38_numerics.ipynb.
`accurate_sum` is the rung to use where rounding must not show: its result has the same bits in every order, on every
grid and on every GPU.
"""

from pmpp.kernels.numerics.ladder import *
from pmpp.kernels.numerics.ladder import exact

accurate_sum = exact
