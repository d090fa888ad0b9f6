"""Activations: a function of one number, applied to each element, and a bias before it.

ReLU, GELU and others with their derivatives, alone and at the end of another kernel.
The room is `pmpp.kernels.activation.ladder`, and its chapter notebooks/46_pooling_and_activations.ipynb.
"""

from pmpp.kernels.activation.ladder import *
