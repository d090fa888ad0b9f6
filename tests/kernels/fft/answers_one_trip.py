"""Answers to the exercises of chapter 61: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.one_trip_exercises import BLOCK, EACH, PITCH, TILE
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
FOURS, PARTS, TURN = "one_trip/fours", "one_trip/parts", "one_trip/turn"
POINTS, ODD = BLOCK * EACH, EACH + 1


# -- fours


@right(FOURS)
@cuda.jit
def fours_in_two_stages(x, out):
    i = cuda.grid(1)
    if i >= out.shape[0]:
        return
    a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
    for k in range(2):
        even, odd = a + c, b + d
        if k:
            even, odd = a - c, b - d
            odd = complex(odd.imag, -odd.real)
        out[i, k] = even + odd
        out[i, k + 2] = even - odd


@right(FOURS)
@cuda.jit
def fours_part_by_part(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        out[i, 0] = complex(a.real + b.real + c.real + d.real, a.imag + b.imag + c.imag + d.imag)
        out[i, 1] = complex(a.real + b.imag - c.real - d.imag, a.imag - b.real - c.imag + d.real)
        out[i, 2] = complex(a.real - b.real + c.real - d.real, a.imag - b.imag + c.imag - d.imag)
        out[i, 3] = complex(a.real - b.imag - c.real + d.imag, a.imag + b.real - c.imag - d.real)


def fours(sign=1, order=(0, 1, 2, 3), guard=True, turn=True, last=4, name="fours"):
    """The answer to fours with one of its parts exchanged."""
    p, q = order[1], order[2]

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.shape[0] or not guard:
            a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
            s, t, u, v = a + c, a - c, b + d, b - d
            if turn:
                v = complex(sign * v.imag, -sign * v.real)
            out[i, 0], out[i, p], out[i, q] = s + u, t + v, s - u
            if last == 4:
                out[i, 3] = t - v

    kernel.py_func.__name__ = name
    return kernel


ONE = np.float32(1)
wrong(FOURS, "turned the other way")(fours(sign=-ONE, name="fours_the_other_way"))
wrong(FOURS, "out of order")(fours(sign=ONE, order=(0, 2, 1, 3), name="fours_out_of_order"))
wrong(FOURS, "not turned", "-i times")(fours(turn=False, name="fours_not_turned"))
wrong(FOURS, "missing guard")(fours(sign=ONE, guard=False, name="fours_without_a_guard"))
wrong(FOURS, "output not written")(fours(sign=ONE, last=3, name="fours_without_the_last"))


@wrong(FOURS, "points of other lines")
@cuda.jit
def fours_of_other_lines(x, out):
    i, flat, lines = cuda.grid(1), x.reshape(x.size), x.shape[0]
    if i < lines:
        a, b, c, d = flat[i], flat[i + lines], flat[i + 2 * lines], flat[i + 3 * lines]
        s, t, u, v = a + c, a - c, b + d, b - d
        v = complex(v.imag, -v.real)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = s + u, t + v, s - u, t - v


@wrong(FOURS, "divided")
@cuda.jit
def fours_divided(x, out):
    i, q = cuda.grid(1), np.float32(0.25)
    if i < x.shape[0]:
        a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        s, t, u, v = a + c, a - c, b + d, b - d
        v = complex(v.imag, -v.real)
        for k in range(4):
            z = (s + u, t + v, s - u, t - v)[k]
            out[i, k] = complex(q * z.real, q * z.imag)


@wrong(FOURS, "too much traffic", "warps load from global memory 512 times where 256 will do.*into variables, once")
@cuda.jit
def fours_loading_for_each_result(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for k in range(4):
            real, imaginary = np.float32(0), np.float32(0)
            for j in range(4):
                z, turns = x[i, j], j * k % 4
                if turns == 1:
                    z = complex(z.imag, -z.real)
                elif turns == 2:
                    z = complex(-z.real, -z.imag)
                elif turns == 3:
                    z = complex(-z.imag, z.real)
                real += z.real
                imaginary += z.imag
            out[i, k] = complex(real, imaginary)


@right(FOURS)
@cuda.jit
def fours_naming_each_point_twice(x, out):
    """A compiler loads each of them once."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        s, t = x[i, 0] + x[i, 2], x[i, 0] - x[i, 2]
        u, v = x[i, 1] + x[i, 3], x[i, 1] - x[i, 3]
        out[i, 0], out[i, 2] = s + u, s - u
        out[i, 1] = complex(t.real + v.imag, t.imag - v.real)
        out[i, 3] = complex(t.real - v.imag, t.imag + v.real)


# -- parts


def parts(pad=32, first=True, second=True, swap=False, real_twice=False, back=False, name="parts"):
    """The answer to parts with one of its parts exchanged."""
    words = POINTS + POINTS // pad

    @cuda.jit
    def kernel(x, out):
        points = cuda.shared.array(words, np.float32)
        v, w = cuda.local.array(EACH, np.complex64), cuda.local.array(EACH, np.float32)
        block, t = cuda.blockIdx.x, cuda.threadIdx.x
        for k in range(EACH):
            v[k] = x[block, EACH * t + k] if back else x[block, BLOCK * k + t]
            place = BLOCK * k + t if back else EACH * t + k
            points[place + place // pad] = v[k].imag if swap else v[k].real
        if first:
            cuda.syncthreads()
        for k in range(EACH):
            place = BLOCK * k + t
            w[k] = points[place + place // pad]
        if second:
            cuda.syncthreads()
        for k in range(EACH):
            place = BLOCK * k + t if back else EACH * t + k
            points[place + place // pad] = v[k].real if swap or real_twice else v[k].imag
        cuda.syncthreads()
        for k in range(EACH):
            place = BLOCK * k + t
            out[block, place] = complex(w[k], points[place + place // pad])

    kernel.py_func.__name__ = name
    return kernel


right(PARTS)(parts(pad=8, name="parts_with_more_padding"))


@right(PARTS)
@cuda.jit
def parts_imaginary_first(x, out):
    points = cuda.shared.array((BLOCK, ODD), np.float32)
    w = cuda.local.array(EACH, np.float32)
    t = cuda.threadIdx.x
    line, results = x[cuda.blockIdx.x], out[cuda.blockIdx.x]
    for k in range(EACH):
        points[t, k] = line[BLOCK * k + t].imag
    cuda.syncthreads()
    for k in range(EACH):
        w[k] = points[(BLOCK * k + t) // EACH, t % EACH]
    cuda.syncthreads()
    for k in range(EACH):
        points[t, k] = line[BLOCK * k + t].real
    cuda.syncthreads()
    for k in range(EACH):
        results[BLOCK * k + t] = complex(points[(BLOCK * k + t) // EACH, t % EACH], w[k])


wrong(PARTS, "missing barrier")(parts(second=False, name="parts_without_the_second_barrier"))
wrong(PARTS, "missing barrier")(parts(first=False, name="parts_without_the_first_barrier"))
wrong(PARTS, "parts swapped")(parts(swap=True, name="parts_swapped"))
wrong(PARTS, "real parts twice")(parts(real_twice=True, name="parts_real_twice"))
wrong(PARTS, "the other way round")(parts(back=True, name="parts_the_other_way_round"))
wrong(PARTS, "bank conflicts")(parts(pad=POINTS, name="parts_without_padding"))


@wrong(PARTS, "too much shared memory", "send the imaginary parts after them")
@cuda.jit
def parts_of_whole_numbers(x, out):
    points = cuda.shared.array((BLOCK, ODD), np.complex64)
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(EACH):
        points[t, k] = x[block, BLOCK * k + t]
    cuda.syncthreads()
    for k in range(EACH):
        out[block, BLOCK * k + t] = points[(BLOCK * k + t) // EACH, t % EACH]


@wrong(PARTS, "not moved")
@cuda.jit
def parts_not_moved(x, out):
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(EACH):
        out[block, BLOCK * k + t] = x[block, BLOCK * k + t]


@wrong(PARTS, "imaginary parts not moved")
@cuda.jit
def parts_of_which_one_stays(x, out):
    points = cuda.shared.array((BLOCK, ODD), np.float32)
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(EACH):
        points[t, k] = x[block, BLOCK * k + t].real
    cuda.syncthreads()
    for k in range(EACH):
        place = BLOCK * k + t
        out[block, place] = complex(points[place // EACH, t % EACH], x[block, place].imag)


@wrong(PARTS, "uncoalesced")
@cuda.jit
def parts_straight(x, out):
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(EACH):
        out[block, EACH * t + k] = x[block, BLOCK * k + t]


# -- turn


@right(TURN)
@cuda.jit
def turn_after_the_tile(x, roots, out):
    tile = cuda.shared.array((TILE, PITCH), np.complex64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[tx, ty] = x[top + ty, left + tx]
    cuda.syncthreads()
    j, k = left + ty, top + tx
    if j < out.shape[0] and k < out.shape[1]:
        out[j, k] = roots[k * j] * tile[ty, tx]


@right(TURN)
@cuda.jit
def turn_in_two_parts(x, roots, out):
    real, imaginary = cuda.shared.array((TILE, PITCH), np.float32), cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    k, j = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx
    if k < x.shape[0] and j < x.shape[1]:
        z, f = x[k, j], roots[k * j % x.size]
        real[tx, ty] = z.real * f.real - z.imag * f.imag
        imaginary[tx, ty] = z.real * f.imag + z.imag * f.real
    cuda.syncthreads()
    k, j = cuda.blockIdx.y * TILE + tx, cuda.blockIdx.x * TILE + ty
    if k < x.shape[0] and j < x.shape[1]:
        out[j, k] = complex(real[ty, tx], imaginary[ty, tx])


def turn(power, pitch=PITCH, guard=True, barrier=True, back=False, name="turn"):
    """The answer to turn with root number ``power(k, j, n)``, or with something missing."""

    @cuda.jit
    def kernel(x, roots, out):
        tile = cuda.shared.array((TILE, pitch), np.complex64)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
        k, j = top + ty, left + tx
        if k < x.shape[0] and j < x.shape[1]:
            f = roots[power(k, j)]
            tile[ty, tx] = x[k, j] * (complex(f.real, -f.imag) if back else f)
        if barrier:
            cuda.syncthreads()
        k, j = top + tx, left + ty
        if (k < x.shape[0] and j < x.shape[1]) or not guard:
            out[j, k] = tile[tx, ty]

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def product(k, j):
    return k * j


@cuda.jit(device=True)
def nothing(k, j):
    return 0


@cuda.jit(device=True)
def plus(k, j):
    return k + j


@cuda.jit(device=True)
def column(k, j):
    return j


wrong(TURN, "not turned")(turn(nothing, name="turn_by_nothing"))
wrong(TURN, "turned back")(turn(product, back=True, name="turn_back"))
wrong(TURN, "turned by the sum")(turn(plus, name="turn_by_the_sum"))
wrong(TURN, "turned by the column", "has k, too")(turn(column, name="turn_by_the_column"))
wrong(TURN, "missing barrier")(turn(product, barrier=False, name="turn_without_a_barrier"))
wrong(TURN, "bank conflicts")(turn(product, pitch=TILE, name="turn_without_padding"))


@wrong(TURN, "not on its side")
@cuda.jit
def turn_upright(x, roots, out):
    flat = out.reshape(out.size)
    k, j = cuda.blockIdx.y * TILE + cuda.threadIdx.y, cuda.blockIdx.x * TILE + cuda.threadIdx.x
    if k < x.shape[0] and j < x.shape[1]:
        flat[k * x.shape[1] + j] = x[k, j] * roots[j * k]


@wrong(TURN, "uncoalesced")
@cuda.jit
def turn_without_a_tile(x, roots, out):
    k, j = cuda.blockIdx.y * TILE + cuda.threadIdx.y, cuda.blockIdx.x * TILE + cuda.threadIdx.x
    if k < x.shape[0] and j < x.shape[1]:
        out[j, k] = x[k, j] * roots[j * k]
