"""Feeding the GPU: copies and kernels on streams, in which order they may run, and when.

There is no room, only a model of streams and the exercises of notebooks/90_feeding_the_gpu.ipynb.
"""
