"""Random numbers that are functions of a seed and an index: bits, uniform, normal, and the initial weights of networks.

The room is `pmpp.kernels.random.ladder`, and its chapter notebooks/80_random_numbers.ipynb. `bits`, `uniform` and
`normal` are called with a shape. `philox` and what makes numbers of its bits are device functions in
`pmpp.kernels.random.generator`. `xavier_uniform` and its kin are in `pmpp.kernels.random.initialise`.
"""

from pmpp.kernels.random.initialise import kaiming_normal, kaiming_uniform, xavier_normal, xavier_uniform
from pmpp.kernels.random.ladder import *
from pmpp.kernels.random.plain import bits, normal, uniform

__all__ = [
    "bits",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]
