"""Kernels inside other libraries: operators with gradients, and arrays that are lent without a copy.

There is no room, only the exercises of notebooks/95_inside_other_libraries.ipynb. The code is `pmpp.nn.interop`.
"""
