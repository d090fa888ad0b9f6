"""MRI: the image of what a scanner has measured, by waves through all voxels.

The room is `pmpp.kernels.mri.ladder`, and its chapter notebooks/49_mri.ipynb.
`adjoint` is the function to use. It is also the forward transform if samples and voxels change places: see the chapter.
"""

from pmpp.kernels.mri.ladder import *
from pmpp.kernels.mri.ladder import unreduced

adjoint = unreduced
