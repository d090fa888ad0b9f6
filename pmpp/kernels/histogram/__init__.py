"""Histogram: how many elements fall into each of many bins, by atomics that meet as seldom as possible.

The room is `pmpp.kernels.histogram.ladder`, and its chapter notebooks/28_histogram.ipynb.
`histogram` is the function to use.
"""

from pmpp.kernels.histogram.ladder import *
from pmpp.kernels.histogram.ladder import wide_bytes

histogram = wide_bytes
