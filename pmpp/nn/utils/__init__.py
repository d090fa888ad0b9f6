"""What training needs besides layers.

`data` feeds the GPU, `checkpoint` and `compressed` save memory, `files` saves networks.
"""
