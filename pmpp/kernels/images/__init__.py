"""Images: a photograph in grey, and a blurred one. A thread computes a pixel, in grids of two dimensions.

The rooms are `pmpp.kernels.images.grey` and `pmpp.kernels.images.blur`, and their chapter is notebooks/10_images.ipynb.
`to_grey` and `box_blur` are the rungs to use.
"""

from pmpp.kernels.images import blur, grey

to_grey = grey.sixteen_each
box_blur = blur.fused
