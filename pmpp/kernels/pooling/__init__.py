"""Pooling: each small window of a feature map becomes one number, its largest or its mean.

Windows, padding and rounding of sizes are PyTorch's.
The room is `pmpp.kernels.pooling.ladder`, and its chapter notebooks/46_pooling_and_activations.ipynb.
"""

from pmpp.kernels.pooling.ladder import *
