"""Launches: what the host does for each kernel, and what that means for small ones.

There is no room, only the exercises of notebooks/22_launches.ipynb.
"""
