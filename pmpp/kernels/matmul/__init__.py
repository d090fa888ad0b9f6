"""Matrix multiplication: C = A @ B in float32.

The ladder goes from one thread an element of C to tiles in shared memory and in registers.
The room is `pmpp.kernels.matmul.ladder`, and its chapter notebooks/12_matmul.ipynb. A matrix times a vector is the room
`pmpp.kernels.matmul.matvec`, of notebooks/32_matrix_vector.ipynb. `pmpp.kernels.matmul.fitted` is the room of
notebooks/36_products_of_any_shape.ipynb: a tile for each shape, and long sums that several blocks share.
`pmpp.kernels.matmul.fused` is the room of notebooks/39_fused_and_batched_products.ipynb: many products at once, of any
strides, with a bias, a residual and an activation. `pmpp.kernels.matmul.tensor_cores` is the room of
notebooks/40_tensor_cores.ipynb: products of float16. `pmpp.kernels.matmul.warpgroups` is the room of
notebooks/43_warpgroups.ipynb: the same by instructions that only a Hopper GPU has. `pmpp.kernels.matmul.products` has
such products of every type and shape. `pmpp.kernels.matmul.batched`
multiplies many matrices at once, for convolutions that become such products. `pmpp.kernels.matmul.mixed` multiplies
float16 and bfloat16 in any order and of any batch, for training in mixed precision.
`matmul` takes operands of any shape and strides, with or without an epilogue, and the room that is made for them. Which
tile of `fitted` it takes says `pmpp.kernels.matmul.plans`, by what was tuned for the GPU.
"""

from pmpp.kernels.matmul.ladder import *
from pmpp.kernels.matmul.plain import matmul as matmul
