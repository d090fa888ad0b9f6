"""Vector addition: the sum of two vectors, element by element.

The first kernels of the workbook: one thread for each element, a loop over the grid, 128-bit loads. `copy` only copies
a vector. It measures the bandwidth that a kernel can reach.
The room is `pmpp.kernels.vector_add.ladder`, and its chapter notebooks/04_vector_add.ipynb.
`add` is the rung to use.
"""

from pmpp.kernels.vector_add.ladder import *
from pmpp.kernels.vector_add.ladder import vectorised

add = vectorised
