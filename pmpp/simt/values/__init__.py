"""Numbers: Numba's types, what its operators and functions make of them, and the errors that name a mistake.

The lowest floor.  A value is a NumPy scalar or an array of one number a lane; nothing here knows of lanes or memory.
"""
