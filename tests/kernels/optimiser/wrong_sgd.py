"""Wrong versions of gradient descent."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.optimiser.sgd import hyper
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def torchs(p, g, b, h):
    """PyTorch's order: the rate is applied to what the sum becomes."""
    b = h.keep * b + h.new * g if h.keep > f0 else h.new * g
    return g + h.momentum * b if h.nesterov else b, b


@cuda.jit(device=True)
def keras(p, g, b, h):
    """The rate goes into the sum, so a changed rate acts late."""
    b = h.keep * b + h.lr * g
    return b, b


@cuda.jit(device=True)
def no_first_step(p, g, b, h):
    b = h.momentum * b + h.new * g
    return g + h.momentum * b if h.nesterov else b, b


@cuda.jit(device=True)
def always_ahead(p, g, b, h):
    b = h.keep * b + h.new * g if h.keep > f0 else h.new * g
    return g + h.momentum * b, b


@cuda.jit(device=True)
def undamped(p, g, b, h):
    b = h.keep * b + g
    return g + h.momentum * b if h.nesterov else b, b


def sgd(name, descend=torchs, guard=True, decay_last=False, uphill=False):
    """A step with some of its parts exchanged: a thread an element."""

    @cuda.jit
    def kernel(parameter, gradient, total, out, h):
        i = cuda.grid(1)
        if not guard or i < parameter.size:
            p, g = parameter[i], gradient[i]
            if not decay_last:
                g += h.decay * p if h.decay > f0 else f0
            move = g
            if h.momentum > f0:
                move, out[1, i] = descend(p, g, total[i], h)
            if decay_last:
                p -= h.lr * h.decay * p
            out[0, i] = p + h.lr * move if uphill else p - h.lr * move

    def step(p, g, b=None, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, number=None):
        arrays = [device.to_device(x) if isinstance(x, np.ndarray) else x for x in (p, g, p if b is None else b)]
        shape = arrays[0].shape
        rows = 1 if b is None else 2
        out = device.empty((rows, *shape), np.float32)
        if out.size:
            numbers = hyper(lr, momentum, dampening, weight_decay, nesterov, number, b)
            flat = [x.reshape(-1) for x in arrays]
            kernel[blocks(flat[0].size, BLOCK), BLOCK](*flat, out.reshape(rows, -1), numbers)
        return out

    step.__name__ = name
    return step


RUNGS = (
    WrongRung(sgd("no_guard", guard=False), "out of bounds"),
    WrongRung(sgd("the_rate_in_the_sum", keras), "wrong result"),
    WrongRung(sgd("the_first_step_reads_the_sum", no_first_step), "wrong result"),
    WrongRung(sgd("always_looks_ahead", always_ahead), "wrong result"),
    WrongRung(sgd("no_dampening", undamped), "wrong result"),
    WrongRung(sgd("the_decay_is_not_summed", decay_last=True), "wrong result"),
    WrongRung(sgd("uphill", uphill=True), "wrong result"),
)
