"""Convolution layers: images of many channels, many filters, and five algorithms for the same result.

Five rooms share one definition, `pmpp.kernels.convolution_layer.definition`: `direct` adds up as the definition does,
`im2col` writes a matrix and multiplies it, `implicit` multiplies it without writing it, `winograd` saves
multiplications, and `by_fft` multiplies spectra. `pmpp.kernels.convolution_layer.dispatch` chooses among them, from the
layer's shape or from what `pmpp.kernels.convolution_layer.find` has measured. They are taught in
notebooks/62_convolution_layers.ipynb.
"""
