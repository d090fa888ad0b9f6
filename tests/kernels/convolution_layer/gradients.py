"""What the tests of the convolution gradients share: finite differences, PyTorch's CPU, and drawn layers."""

import itertools

import hypothesis
import numpy as np
from hypothesis import strategies as st

from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer

# name: x, w, stride, padding, dilation, groups
LAYERS = {
    "plain": ((2, 2, 4, 5), (3, 2, 2, 3)),
    "s2 p1": ((1, 2, 5, 4), (2, 2, 3, 3), 2, 1),
    "all at once": ((1, 2, 6, 7), (4, 1, 2, 3), (3, 2), (2, 1), (2, 1), 2),
    "stride 4, dilation 2": ((1, 1, 9, 8), (1, 1, 3, 2), 4, 1, 2),
    "places that no filter reaches": ((1, 1, 6, 5), (2, 1, 2, 2), 3),
}


def differences(f, at):
    """The central differences of the scalar ``f`` by each element of the float64 array ``at``. f is linear in it."""
    found = np.empty(at.shape)
    for place in itertools.product(*map(range, at.shape)):
        above, below = at.copy(), at.copy()
        above[place] += 0.5
        below[place] -= 0.5
        found[place] = f(above) - f(below)
    return found


def drawn(a, seed=0):
    """(dy, x, w) for a layer, float32, from a normal distribution."""
    rng = np.random.default_rng(seed)
    shapes = a.shape, (a.n, a.c, a.h, a.w), (a.k, a.c // a.groups, a.r, a.s)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def losses(name):
    """(a, dy, x, w, loss): of a layer, and the loss whose gradient with respect to the output is dy."""
    shape, w_shape, *options = LAYERS[name]
    a = definition.layer_of(shape, w_shape, *options)
    dy, x, w = (array.astype(np.float64) for array in drawn(a))
    return a, dy, x, w, lambda x, w: (definition.reference(x, w, None, *options) * dy).sum()


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def layers(draw, channels=(1, 3, 17), filters=(1, 8, 9)):
    groups = draw(st.integers(1, 2))
    kernel, stride, dilation = draw(st.sampled_from([(1, 1), (2, 3), (3, 3)])), draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    extent = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    c, k = groups * draw(st.sampled_from(channels)), groups * draw(st.sampled_from(filters))
    return Layer(draw(st.integers(1, 2)), c, *extent, k, *kernel, stride, padding, dilation, groups)
