"""Kernels with bugs that people write, and how each is found.

They belong to notebooks/18_when_a_kernel_is_wrong.ipynb. `pmpp.kernels.debugging.bugs` has the kernels, each with the
launch that shows its bug and the result that it should have. ``python -m pmpp.lab.measure.debugging`` runs the same
kernels on a GPU, alone and under compute-sanitizer, and the chapter reads what it has recorded.
"""
