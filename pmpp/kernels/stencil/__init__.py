"""Stencil: each cell of a grid becomes a weighted sum of itself and its nearest neighbours along the axes.

The room is `pmpp.kernels.stencil.ladder`, and its chapter notebooks/26_stencil.ipynb.
`sweep` makes any number of steps, several of them in one trip through memory where that is possible.
"""

from pmpp.kernels.stencil.ladder import *
from pmpp.kernels.stencil.ladder import temporal

sweep = temporal
