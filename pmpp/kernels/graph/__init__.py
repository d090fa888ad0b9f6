"""Graphs: which vertices can be reached from another one, and in how many steps.

The room is `pmpp.kernels.graph.ladder`, and its chapter notebooks/45_graphs.ipynb. `levels` is the function to use.
"""

from pmpp.kernels.graph.graphs import *
from pmpp.kernels.graph.ladder import *
from pmpp.kernels.graph.ladder import direction_optimising
from pmpp.kernels.graph.lists import *
from pmpp.kernels.graph.sets import *

levels = direction_optimising
