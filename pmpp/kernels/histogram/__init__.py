"""Histogram: how many elements fall into each of many bins, by atomics that meet as seldom as possible.

The rooms are `pmpp.kernels.histogram.ladder`, and for tens of thousands of bins `pmpp.kernels.histogram.many_bins`.
Their chapter is notebooks/28_histogram.ipynb. `histogram` is the function to use.
"""

from pmpp.kernels.histogram.ladder import *
from pmpp.kernels.histogram.many_bins import in_parts

histogram = in_parts
