"""Autotuning: kernel factories whose numbers are found by trying.

There is no room. `transposes` and `products` are what is tuned in notebooks/37_autotuning.ipynb, and
`pmpp.lab.measure.tune` tunes it.
"""
