"""Matrix multiplication: C = A @ B in float32.

The ladder goes from one thread an element of C to tiles in shared memory and in registers.
`pmpp.kernels.matmul.batched` multiplies many matrices at once, for convolutions that become such products.
The room is `pmpp.kernels.matmul.ladder`, and its chapter notebooks/12_matmul.ipynb.
"""

from pmpp.kernels.matmul.ladder import *
