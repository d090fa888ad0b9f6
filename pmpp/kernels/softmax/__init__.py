"""Softmax: the elements of each row as shares of one, or the logarithms of these shares.

A row is read once and written once. The ladder is about where it waits until its maximum and its sum are known.
The rooms are `pmpp.kernels.softmax.ladder` (chapter notebooks/50_softmax.ipynb) and
`pmpp.kernels.softmax.cross_entropy_loss` (chapter notebooks/86_gradients_of_softmax.ipynb).
`softmax` and `log_softmax` take the rung to use, `backward` is the gradient of both, and `cross_entropy` is the loss
of a classifier with its gradient. `check_labels` finds a label that is no class.
"""

from pmpp.kernels.softmax import cross_entropy_loss, gradients
from pmpp.kernels.softmax.ladder import *
from pmpp.kernels.softmax.ladder import vectorised

check_labels = cross_entropy_loss.check_labels


def softmax(x, axis=-1, *, out=None, stream=0):
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> softmax(np.float32([7, 7, -np.inf])).copy_to_host()
    array([0.5, 0.5, 0. ], dtype=float32)
    """
    return vectorised(x, axis, out=out, stream=stream)


def log_softmax(x, axis=-1, *, out=None, stream=0):
    """``x - max - log(sum(exp(x - max)))`` along ``axis``; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> log_softmax(np.float32([7, -np.inf])).copy_to_host()
    array([  0., -inf], dtype=float32)
    """
    return vectorised(x, axis, log=True, out=out, stream=stream)


def backward(dy, y, axis=-1, log=False, *, out=None, stream=0):
    """The gradient of what softmax or log_softmax was given; arguments, result and errors as in `gradients.backward`.

    >>> import numpy as np
    >>> backward(np.float32([4, 0]), np.float32([0.25, 0.75])).copy_to_host()
    array([ 0.75, -0.75], dtype=float32)
    """
    return gradients.backward(dy, y, axis, log, out=out, stream=stream)


def cross_entropy(logits, labels, *, ignore_index=-100, label_smoothing=0.0, reduction="mean", gradient=True, stream=0):
    """(loss, its gradient for each logit): arguments and errors as in `cross_entropy_loss.split`.

    The gradient is None if ``gradient`` is False. The loss is (1,), or (N,) for the reduction "none".

    >>> import numpy as np
    >>> loss, dlogits = cross_entropy(np.float32([[0, 0, 0, 0]]), np.int64([3]))
    >>> dlogits.copy_to_host()
    array([[ 0.25,  0.25,  0.25, -0.75]], dtype=float32)
    """
    options = ignore_index, label_smoothing, reduction
    return cross_entropy_loss.split(logits, labels, *options, gradient=gradient, return_loss=True, stream=stream)
