"""Wavefronts: tables in which each cell waits for its neighbours, and paths that grow by one vertex after another.

The rooms are `pmpp.kernels.wavefront.alignment` and `pmpp.kernels.wavefront.shortest_paths`, and their chapter is
notebooks/47_wavefronts.ipynb. `score` and `distances` are the rungs to use. `align` also says which letters stand side
by side.
"""

from pmpp.kernels.wavefront import alignment, shortest_paths, traceback

score = alignment.many_pairs
distances = shortest_paths.by_fours
align = traceback.align
