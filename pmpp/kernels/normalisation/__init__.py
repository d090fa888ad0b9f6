"""Normalisation: values are shifted to mean 0 and scaled to variance 1, by channel or by row.

The rooms are `batchnorm`, over the channels of a batch, and `layernorm`, over the rows of a matrix. Both use
`pmpp.kernels.normalisation.moments`. They are taught in notebooks/54_normalisation.ipynb.
`batch_norm` and `layer_norm` are the rungs to use.
"""

from pmpp.kernels.normalisation import batchnorm, layernorm

batch_norm = batchnorm.vectorised
layer_norm = layernorm.vectorised

__all__ = ["batch_norm", "batchnorm", "layer_norm", "layernorm"]
