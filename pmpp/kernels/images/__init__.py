"""Images: a photograph in grey, a blurred and a turned one. A thread computes a pixel, in grids of two dimensions.

The rooms are `pmpp.kernels.images.grey`, `pmpp.kernels.images.blur` and `pmpp.kernels.images.rotation`, and their
chapter is notebooks/10_images.ipynb. `to_grey`, `box_blur` and `rotate` are the rungs to use.
"""

from pmpp.kernels.images import blur, grey, rotation

to_grey = grey.sixteen_each
box_blur = blur.circular_buffer
rotate = rotation.ahead
