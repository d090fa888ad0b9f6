"""Monte Carlo: prices of options as means over random futures, with numbers that never leave the registers.

The room is `pmpp.kernels.monte_carlo.ladder`, and its chapter notebooks/81_monte_carlo.ipynb.
`prices` is the function to use, and `formula` gives the exact prices.
"""

from pmpp.kernels.monte_carlo.ladder import *
from pmpp.kernels.monte_carlo.ladder import fast_functions

prices = fast_functions
