"""Optimisers: what becomes of the parameters, once their gradients are known.

Adam and AdamW, gradient descent with momentum, and the norm of all gradients with other statistics of them.
The rooms are `adam`, `sgd` and `gradient_norm`, and their chapter is notebooks/82_optimisers.ipynb. The rungs return
new arrays. `adam_`, `sgd_` and `clip_norm_` change theirs in place, as training wants it.
"""

from pmpp.kernels.optimiser import adam, gradient_norm, in_place, sgd, tensors
from pmpp.kernels.optimiser.in_place import adam_, clip_norm_, sgd_

__all__ = ["adam", "adam_", "clip_norm_", "gradient_norm", "in_place", "sgd", "sgd_", "tensors"]
