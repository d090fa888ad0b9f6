"""Autotuning: kernel factories whose numbers are found by trying.

There is no room. `transposes`, `products` and `fitted` are what is tuned in notebooks/37_autotuning.ipynb, and
`pmpp.lab.measure.tune` tunes it. What was tuned of `fitted` the plain product uses.
"""
