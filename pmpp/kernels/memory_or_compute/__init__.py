"""Memory or compute: which of the two holds a kernel back.

There is no room, only the exercises of notebooks/20_memory_or_compute.ipynb.
"""
