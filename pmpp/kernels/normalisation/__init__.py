"""Normalisation: values are shifted to mean 0 and scaled to variance 1, by channel or by row.

Rooms: ``batchnorm`` and ``layernorm``, for chapter 54. ``batch_norm`` and ``layer_norm`` are their rungs to use.
"""

from pmpp.kernels.normalisation import batchnorm, layernorm

batch_norm = batchnorm.vectorised
layer_norm = layernorm.vectorised

__all__ = ["batch_norm", "batchnorm", "layer_norm", "layernorm"]
