"""Wrong products of many matrices, and wrong epilogues: the mistakes of chapter 39."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul.fused import gelu, relu
from pmpp.runtime import device
from tests.support.wrong import WrongRung

PARTS, TEAM, TEAMS = 3, 32, 4  # of K; threads for a product, and products of a block
ROOM = TEAMS * TEAM
f0, f1 = np.float32(0), np.float32(1)
ACTIVATIONS = {"gelu": gelu, "relu": relu}


def finish_with(activation, *, bias_by_row=False, order="sum, residual, bias, activation", scales="product"):
    """A device function (sum, row, column, residual, bias, alpha, beta) with one thing exchanged."""
    activated_first, all_scaled = order.startswith("sum, activation"), scales == "everything"

    @cuda.jit(device=True)
    def finish(value, row, column, old, bias, alpha, beta):
        add = bias[row if bias_by_row else column]
        if activated_first:
            return activation(alpha * value + add) + beta * old
        if all_scaled:
            return activation(alpha * (value + add) + beta * old)
        return activation(alpha * value + beta * old + add)

    return finish


def product_with(finish, *, shared=True, guard=True):
    """A kernel with a thread for each element of each product."""

    @cuda.jit
    def kernel(a, b, bias, residual, out, alpha, beta):
        at = cuda.grid(1)
        size = out.shape[1] * out.shape[2]
        product, row, column = at // size, at % size // out.shape[2], at % out.shape[2]
        if not guard or product < out.shape[0]:
            of_b = product if not shared or b.shape[0] > 1 else 0
            value = f0
            for k in range(a.shape[2]):
                value += a[product, row, k] * b[of_b, k, column]
            out[product, row, column] = finish(value, row, column, residual[product, row, column], bias, alpha, beta)

    return kernel


def parts_with(finish):
    """A kernel with a thread for each element and part of K, that finishes what it has."""

    @cuda.jit
    def kernel(a, b, bias, residual, partials, alpha, beta):
        at, part = cuda.grid(1), cuda.blockIdx.y
        size = partials.shape[2] * partials.shape[3]
        product, row, column = at // size, at % size // partials.shape[3], at % partials.shape[3]
        length = (a.shape[2] + PARTS - 1) // PARTS
        if product < partials.shape[1]:
            value = f0
            for k in range(part * length, min(part * length + length, a.shape[2])):
                value += a[product, row, k] * b[product if b.shape[0] > 1 else 0, k, column]
            old = residual[product, row, column]
            partials[part, product, row, column] = finish(value, row, column, old, bias, alpha, beta)

    return kernel


@cuda.jit
def sum_parts(partials, out):
    at = cuda.grid(1)
    if at < out.size:
        size = out.shape[1] * out.shape[2]
        product, row, column, value = at // size, at % size // out.shape[2], at % out.shape[2], f0
        for part in range(PARTS):
            value += partials[part, product, row, column]
        out[product, row, column] = value


def teams_with(finish, *, barrier=True, own=True, inside=True):
    """A kernel with several products a block. Each team has a row of A in shared memory, one row after another."""

    @cuda.jit
    def kernel(a, b, bias, residual, out, alpha, beta):
        rows = cuda.shared.array(ROOM, np.float32)
        lane, team = cuda.threadIdx.x, cuda.threadIdx.y
        wanted = cuda.blockIdx.x * TEAMS + team
        product = min(wanted, out.shape[0] - 1)
        begin = team * TEAM if own else 0
        for row in range(out.shape[1]):
            value, k0 = f0, 0
            while k0 < a.shape[2]:
                cuda.syncthreads()
                if k0 + lane < a.shape[2]:
                    rows[begin + lane] = a[product, row, k0 + lane]
                if barrier:
                    cuda.syncthreads()
                if lane < out.shape[2]:
                    for k in range(min(TEAM, a.shape[2] - k0)):
                        value += rows[begin + k] * b[product if b.shape[0] > 1 else 0, k0 + k, lane]
                k0 += TEAM
            if lane < out.shape[2] and (wanted < out.shape[0] or not inside):
                old = residual[product, row, lane]
                out[wanted, row, lane] = finish(value, row, lane, old, bias, alpha, beta)

    return kernel


@cuda.jit
def finish_in_place(out, bias, residual, alpha, beta):
    """A pass that reads C, without a product that has written it."""
    at = cuda.grid(1)
    if at < out.size:
        size = out.shape[1] * out.shape[2]
        product, row, column = at // size, at % size // out.shape[2], at % out.shape[2]
        out[product, row, column] = alpha * out[product, row, column] + beta * residual[product, row, column]


def call(name, make, how="elements"):
    """A function with the room's arguments, whose kernel ``make(activation)`` makes."""

    def multiply(a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0):
        a, b, bias, residual = (device.to_host(x) for x in (a, b, bias, residual))
        b = b.reshape(-1, *b.shape[-2:])
        shape = a.shape[0], a.shape[1], b.shape[2]
        residual = np.broadcast_to(residual, shape).copy()
        given = [device.to_device(x) for x in (a, b, bias, residual)]
        factors, kernel = (np.float32(alpha), np.float32(beta)), make(ACTIVATIONS[activation])
        out, size = device.empty(shape, np.float32), int(np.prod(shape))
        if how == "teams":
            kernel[blocks(shape[0], TEAMS), (TEAM, TEAMS)](*given, out, *factors)
        elif how == "parts":
            partials = device.empty((PARTS, *shape), np.float32)
            kernel[(blocks(size, 64), PARTS), 64](*given, partials, *factors)
            sum_parts[blocks(size, 64), 64](partials, out)
        elif how == "in place":
            kernel[blocks(size, 64), 64](out, *given[2:], *factors)
        else:
            kernel[blocks(size, 64), 64](*given, out, *factors)
        return out

    multiply.__name__ = name
    return multiply


def elements(name, **exchanged):
    return call(name, lambda activation: product_with(finish_with(activation, **exchanged)))


def teams(name, **exchanged):
    return call(name, lambda activation: teams_with(finish_with(activation), **exchanged), "teams")


RUNGS = (
    WrongRung(elements("adds_the_bias_by_rows", bias_by_row=True), "wrong result"),
    WrongRung(elements("adds_the_residual_behind_the_activation", order="sum, activation, residual"), "wrong result"),
    WrongRung(elements("scales_the_bias_too", scales="everything"), "wrong result"),
    WrongRung(call("finishes_every_part", lambda one: parts_with(finish_with(one)), "parts"), "wrong result"),
    WrongRung(
        call("steps_through_a_shared_matrix", lambda one: product_with(finish_with(one), shared=False)), "out of bounds"
    ),
    WrongRung(call("has_no_last_product", lambda one: product_with(finish_with(one), guard=False)), "out of bounds"),
    WrongRung(teams("stores_for_a_team_without_a_product", inside=False), "out of bounds"),
    WrongRung(teams("gives_all_teams_one_place", own=False), "race"),
    WrongRung(teams("forgets_that_a_team_shares", barrier=False), "race"),
    WrongRung(call("finishes_what_nobody_wrote", lambda one: finish_in_place, "in place"), "uninitialised read"),
)
RIGHT = elements("right"), teams("right_in_teams")
