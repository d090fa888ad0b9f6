"""Vector addition: the first kernels, and how many bytes they keep under way.

Room: ``ladder``, for chapter 4. ``add`` is the rung to use.
"""

from pmpp.kernels.vector_add.ladder import *
from pmpp.kernels.vector_add.ladder import vectorised

add = vectorised
