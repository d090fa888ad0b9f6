"""Warps: what 32 threads that run together mean for branches, loops and the numbering of threads.

There is no room, only the exercises of notebooks/08_warps.ipynb.
"""
