"""Softmax: the elements of each row as shares of one, or the logarithms of these shares.

A row is read once and written once. The ladder is about where it waits until its maximum and its sum are known.
The room is `pmpp.kernels.softmax.ladder`, and its chapter notebooks/50_softmax.ipynb.
"""

from pmpp.kernels.softmax.ladder import *
