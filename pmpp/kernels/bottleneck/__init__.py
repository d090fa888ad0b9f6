"""Bottlenecks: what keeps a GPU waiting, and what it is busy with.

There is no room, only the exercises of notebooks/92_finding_the_bottleneck.ipynb.
"""
