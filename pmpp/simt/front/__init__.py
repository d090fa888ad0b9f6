"""The front end: from a kernel's Python source to closures over a frame, with Numba's typing and control flow.

compiler.py turns statements into closures, expressions.py expressions; at run time they call the other files.
"""
