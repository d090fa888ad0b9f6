"""Normalisation: values are shifted to mean 0 and scaled to variance 1, by channel or by row.

The rooms are `batchnorm`, over the channels of a batch, and `layernorm`, over the rows of a matrix. Both use
`pmpp.kernels.normalisation.moments`. They are taught in notebooks/54_normalisation.ipynb.
"""
