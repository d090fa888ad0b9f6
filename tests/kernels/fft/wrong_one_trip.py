"""Wrong transforms of lines whose real parts, and then imaginary parts, go through shared memory."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.any_length import factor
from pmpp.kernels.fft.butterflies import roots
from pmpp.runtime import device
from tests.kernels.fft.wrong_any_length import norm_forgotten, one_thread_too_many
from tests.support.wrong import WrongRung

MOST = 256  # points of a line here
EACH = 16  # points of a thread


def of_two_sides(kernel):
    """``kernel`` as a function of x and inverse, launched with a block for each line of a b points."""

    def transform(x, inverse=False, norm="backward"):
        x = device.to_device(x)
        out, n = device.empty(x.shape, np.complex64), x.shape[-1]
        a = 1 << n.bit_length() // 2
        b = n // a
        if x.size:
            scale = np.float32(factor(n, inverse, norm))
            kernel[x.size // n, max(a, b)](x.reshape(-1), out.reshape(-1), roots(n, inverse), a, b, scale)
        return out

    transform.__name__ = kernel.py_func.__name__
    return transform


def in_parts(name, reads=True, writes=True, turn=1, parts=(0, 1), in_order=True, short=0, every_line=True):
    """Columns of ``a`` points, factors, an exchange in two parts, rows of ``b`` points; with one of them changed."""
    first_part, second_part = parts

    @cuda.jit
    def kernel(x, out, roots, a, b, scale):
        points = cuda.shared.array(MOST, np.float32)
        v, w = cuda.local.array(EACH, np.complex64), cuda.local.array(EACH, np.float32)
        t, first = cuda.threadIdx.x, cuda.blockIdx.x * a * b if every_line else 0
        if t < b:
            for k in range(a):
                total = np.complex64(0)
                for j in range(a):
                    total += x[first + j * b + t] * roots[j * k % a * b]
                v[k] = total * roots[turn * t * k % (a * b)]
                points[k * b + t] = v[k].imag if first_part else v[k].real
        if writes:
            cuda.syncthreads()
        if t < a:
            for j in range(b):
                w[j] = points[t * b + j]
        if reads:
            cuda.syncthreads()
        if t < b:
            for k in range(a):
                points[k * b + t] = v[k].imag if second_part else v[k].real
        cuda.syncthreads()
        if t < a:
            for k in range(b - short):
                total = np.complex64(0)
                for j in range(b):
                    total += complex(w[j], points[t * b + j]) * roots[j * k % b * a]
                z = complex(total.real * scale, total.imag * scale)
                out[first + (t + a * k if in_order else t * b + k)] = z

    kernel.py_func.__name__ = name
    return of_two_sides(kernel)


RUNGS = [
    WrongRung(in_parts("imaginary_parts_before_all_real_ones_are_read", reads=False), "race"),
    WrongRung(in_parts("read_before_all_is_there", writes=False), "race"),
    WrongRung(in_parts("not_turned", turn=0), "wrong result"),
    WrongRung(in_parts("turned_back", turn=-1), "wrong result"),
    WrongRung(in_parts("parts_the_other_way_round", parts=(1, 0)), "wrong result"),
    WrongRung(in_parts("real_parts_twice", parts=(0, 0)), "wrong result"),
    WrongRung(in_parts("digits_left_reversed", in_order=False), "wrong result"),
    WrongRung(in_parts("last_results_missing", short=1), "wrong result"),
    WrongRung(one_thread_too_many, "out of bounds"),
    WrongRung(norm_forgotten, "wrong result"),
]
# What these are made of, with nothing changed: each wrong one is so for the part that is.
RIGHT = [in_parts("in_parts")]
