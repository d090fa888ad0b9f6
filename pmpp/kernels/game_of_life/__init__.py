"""Game of life: cells that live, die and are born by how many neighbours they have.

The room is `pmpp.kernels.game_of_life.ladder`, and its chapter notebooks/51_game_of_life.ipynb.
`play` is the function to use: a board some steps later.
"""

from pmpp.kernels.game_of_life.ladder import *
from pmpp.kernels.game_of_life.ladder import in_strips

play = in_strips
