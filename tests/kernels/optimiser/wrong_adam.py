"""Wrong versions of Adam: the mistakes that one finds in home-made optimisers."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.optimiser.adam import hyper
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


@cuda.jit(device=True)
def plain(p, g, h):
    return p * h.keep, g + h.decay * p if h.decay > f0 else g


@cuda.jit(device=True)
def coupled_although_decoupled(p, g, h):
    return p, g + (np.float32(1) - h.keep) * p


@cuda.jit(device=True)
def inner_eps(m, v, h):
    return h.size * m / math.sqrt(v * h.root * h.root + h.eps)


@cuda.jit(device=True)
def quotient(m, v, h):
    return h.size * m / (math.sqrt(v) * h.root + h.eps)


@cuda.jit(device=True)
def uncorrected_square(m, v, h):
    return h.size * m / (math.sqrt(v) + h.eps)


@cuda.jit(device=True)
def corrected_twice(m, v, h):
    return h.size * m / (math.sqrt(v) * h.root * h.root + h.eps)


@cuda.jit(device=True)
def in_float64(m, v, h):
    return h.size * m / (v**0.5 * h.root + 1e-8)


def adam(name, decay=plain, move=quotient, guard=True, old_moments=False, in_place=False, square_of_mean=False):
    """A step of Adam with some of its parts exchanged: a thread an element."""

    @cuda.jit
    def kernel(parameter, gradient, first, second, out, h):
        i = cuda.grid(1)
        if not guard or i < parameter.size:
            p, g = decay(parameter[i], gradient[i], h)
            m = first[i] + h.new * (g - first[i])
            v = h.beta * second[i] + h.new_square * g * g
            if square_of_mean:
                v = h.beta * second[i] + h.new_square * m * m
            if old_moments:
                p -= move(first[i], second[i], h)
            else:
                p -= move(m, v, h)
            out[0, i], out[1, i], out[2, i] = p, m, v
            if in_place:
                first[i] = m

    def step(p, g, m, v, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False, number=1):
        p, g, m, v = (device.to_device(x) if isinstance(x, np.ndarray) else x for x in (p, g, m, v))
        out = device.empty((3, *p.shape), np.float32)
        if p.size:
            numbers = hyper(lr, betas, eps, weight_decay, decoupled, number)
            flat = [x.reshape(-1) for x in (p, g, m, v)]
            kernel[blocks(p.size, BLOCK), BLOCK](*flat, out.reshape(3, -1), numbers)
        return out

    step.__name__ = name
    return step


RUNGS = (
    WrongRung(adam("no_guard", guard=False), "out of bounds"),
    WrongRung(adam("decay_in_the_gradient", coupled_although_decoupled), "wrong result"),
    WrongRung(adam("eps_under_the_root", move=inner_eps), "wrong result"),
    WrongRung(adam("no_correction_of_the_squares", move=uncorrected_square), "wrong result"),
    WrongRung(adam("corrected_twice", move=corrected_twice), "wrong result"),
    WrongRung(adam("moments_of_the_step_before", old_moments=True), "wrong result"),
    WrongRung(adam("square_of_the_mean", square_of_mean=True), "wrong result"),
    WrongRung(adam("changes_its_arguments", in_place=True), "input changed"),
    WrongRung(adam("in_float64", move=in_float64), "float64"),
)
