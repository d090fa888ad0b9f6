"""Potential: what all charges together do at the points of a grid.

The rooms are `pmpp.kernels.potential.ladder`, for all pairs, and `pmpp.kernels.potential.cutoff`, for those within a
cutoff. Their chapter is notebooks/48_electrostatic_potential.ipynb.
`of_charges` is the function to use for all pairs, and `cutoff.by_box` the one with a cutoff.
"""

from pmpp.kernels.potential import cutoff
from pmpp.kernels.potential.ladder import *
from pmpp.kernels.potential.ladder import on_both_units

of_charges = on_both_units
