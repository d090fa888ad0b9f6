"""Scan: the running sum, or the running maximum, of a vector.

Each result needs all elements before it. `pmpp.kernels.scan.segmented` scans many vectors of unequal length at once.
The room is `pmpp.kernels.scan.ladder`, and its chapter notebooks/34_scan.ipynb.
"""

from pmpp.kernels.scan.ladder import *
