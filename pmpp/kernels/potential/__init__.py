"""Potential: what all charges together do at the points of a grid.

The room is `pmpp.kernels.potential.ladder`, and its chapter notebooks/48_electrostatic_potential.ipynb.
`of_charges` is the function to use: the exact sum over all atoms, at every point.
"""

from pmpp.kernels.potential.ladder import *
from pmpp.kernels.potential.ladder import on_both_units

of_charges = on_both_units
