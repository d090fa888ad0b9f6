"""Merge: two sorted vectors become one that is sorted.

The room is `pmpp.kernels.merge.ladder`, and its chapter notebooks/41_merge.ipynb.
`join` is the rung to use.
"""

from pmpp.kernels.merge.ladder import *
from pmpp.kernels.merge.ladder import vectorised

join = vectorised
