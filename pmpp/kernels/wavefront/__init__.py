"""Wavefronts: tables in which each cell waits for its neighbours, and paths that grow by one vertex after another.

The rooms are `pmpp.kernels.wavefront.alignment` and `pmpp.kernels.wavefront.shortest_paths`, and their chapter is
notebooks/47_wavefronts.ipynb.
"""

from pmpp.kernels.wavefront.alignment import *
