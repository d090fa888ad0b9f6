"""The instruments: what the interpreter counts and catches, and how its counts agree with the hardware's.

There is no room. `pmpp.kernels.instruments.agreement` has the kernels whose counts are compared with Nsight Compute's,
and the exercises belong to notebooks/98_instruments.ipynb.
"""
