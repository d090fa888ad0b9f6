"""Convolution: each element of an image becomes a weighted sum of its neighbours.

One image and one mask. `pmpp.kernels.convolution.dimensions` has the same for one and for three dimensions. Layers of
many channels and filters are another subject, `pmpp.kernels.convolution_layer`.
The room is `pmpp.kernels.convolution.ladder`, and its chapter notebooks/24_convolution.ipynb.
"""

from pmpp.kernels.convolution.ladder import *
