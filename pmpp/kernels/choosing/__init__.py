"""Choosing: CPU or GPU, and which GPU, decided with times, energy, memory and prices.

There is no room, only the exercises of notebooks/96_cpu_against_gpu.ipynb and notebooks/97_choosing_a_gpu.ipynb.
"""
