"""Habits of Numba code that a drop-in must share, most of them found by running numba-cuda's own tests."""

import collections
import operator

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

Pair = collections.namedtuple("Pair", ["left", "right"])
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]


def kernel_of(op):
    @cuda.jit
    def kernel(a, b):
        i = cuda.grid(1)
        a[i] = op(a[i], b[i])

    return kernel


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_functions_of_the_operator_module_are_values(op):
    a, b = np.array([7.0, -9.5, 2.25]), np.array([2.0, 4.0, -0.5])
    expected = op(a, b)
    kernel_of(op)[1, 3](a, b)
    np.testing.assert_array_equal(a, expected)


@cuda.jit(device=True)
def through_shared(x, n, update, value):
    s = cuda.shared.array(n, np.int32)
    t = cuda.threadIdx.x
    if t < n:
        s[t] = x[t]
    cuda.syncthreads()
    update(s, t % n, value)
    cuda.syncthreads()
    if t < n:
        x[t] = s[t]


@cuda.jit
def shared_add(x):
    through_shared(x, 4, cuda.atomic.add, 1)


@cuda.jit
def shared_max(x):
    through_shared(x, 8, cuda.atomic.max, 5)


def test_constants_and_intrinsics_pass_through_device_functions():
    a, b = np.arange(4, dtype=np.int32), np.arange(8, dtype=np.int32)
    shared_add[1, 32](a)
    shared_max[1, 32](b)
    assert a.tolist() == [8, 9, 10, 11]
    assert b.tolist() == [5, 5, 5, 5, 5, 5, 6, 7]


@cuda.jit
def named(pair, out):
    i = cuda.grid(1)
    out[i] = pair.left[i] * pair.right + pair[1]


def test_named_tuples_keep_their_names():
    out = np.zeros(3)
    named[1, 3](Pair(np.arange(3.0), 10), out)
    assert out.tolist() == [10, 20, 30]


@cuda.jit
def refuses_negative(x):
    i = cuda.grid(1)
    if x[i] < 0:
        raise ValueError("negative")
    x[i] = 1


def test_raise_is_accepted_and_reported_with_its_words():
    fine = np.zeros(4)
    refuses_negative[1, 4](fine)
    assert fine.tolist() == [1] * 4
    with pytest.raises(simt.SimtError, match="negative") as caught:
        refuses_negative[1, 4](np.array([0.0, 0, -1, 0]))
    assert "2, 0, 0" in str(caught.value)  # the thread that raised


@cuda.jit
def round_to(x, digits, out):
    i = cuda.grid(1)
    out[i] = round(x[i], digits)


@pytest.mark.parametrize(
    "dtype, x, digits, expected",
    [
        # Numba scales in float64 whatever the type: 342.500001 rounds up
        ("f4", 0.3425, 3, 0.343),
        ("f4", 3.4028235e38, 300, 3.4028235e38),  # x * 10**n overflows: x is left alone
        ("f8", 1.7976931348623157e308, 5, 1.7976931348623157e308),
        ("f8", 0.5, 0, 0.0),
        ("f8", 1234.5678, -2, 1200.0),
        ("f8", -0.125, 2, -0.12),
        ("f4", float("inf"), 2, float("inf")),
    ],
)
def test_round_to_digits(dtype, x, digits, expected):
    out = np.zeros(1, dtype)
    round_to[1, 1](np.array([x], dtype), digits, out)
    assert out[0] == np.dtype(dtype).type(expected)


def test_forall_of_nothing_does_nothing():
    x = np.zeros(0)
    refuses_negative.forall(0)(x)


def scale(x, out, factor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


@pytest.mark.parametrize(
    "signature", ["void(f4[:], f4[:], f4)", "(float32[:], float32[:], float32)", "f4[:], f4[::1], f4"]
)
def test_signature_strings_with_short_names(signature):
    if signature.startswith("f4"):
        signature = f"void({signature})"
    x, out = np.array([0.1, 0.2], np.float32), np.zeros(2, np.float32)
    cuda.jit(signature)(scale)[1, 32](x, out, 0.1)
    np.testing.assert_array_equal(out, x * np.float32(0.1))


def test_signatures_made_of_numba_s_own_types():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    f4 = numba.float32
    x = np.array([0.1, 0.2], np.float32)
    for signature in ((f4[:], f4[:], f4), numba.void(f4[:], f4[:], f4), [numba.void(f4[:], f4[:], f4)]):
        out = np.zeros(2, np.float32)
        cuda.jit(signature)(scale)[1, 32](x, out, 0.1)
        np.testing.assert_array_equal(out, x * np.float32(0.1))


def test_numba_s_types_are_casts_and_dtypes_inside_a_kernel():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    f4, i8 = numba.float32, numba.int64

    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(4, f4)
        s[0] = f4(0.1)
        out[0] = s[0]
        out[1] = i8(2.9)

    out = np.zeros(2)
    kernel[1, 1](out)
    assert out.tolist() == [float(np.float32(0.1)), 2.0]


@cuda.jit(device=True)
def fill_local(buffer, start):
    for k in range(buffer.size):
        buffer[k] = start + k


@cuda.jit
def arrays_in_and_out_of_functions(x, out):
    i = cuda.grid(1)
    buffer = cuda.local.array(3, np.int64)
    fill_local(buffer, i)
    chosen = x[:, i % 2]  # a device function cannot return it: Numba compiles none that returns a view
    total = 0
    for k in range(3):
        total += buffer[k] * chosen[k]
    out[i] = total


def test_functions_fill_local_arrays_of_their_caller():
    x, out = np.arange(6).reshape(3, 2), np.zeros(40, np.int64)
    arrays_in_and_out_of_functions[2, 20](x, out)
    assert out.tolist() == [sum((i + k) * int(x[k, i % 2]) for k in range(3)) for i in range(40)]


@cuda.jit
def shift_within_a_warp(x):
    i = cuda.grid(1)
    if i + 1 < x.size:
        x[i] = x[i + 1]


def test_a_statement_loads_in_all_lanes_of_a_warp_before_it_stores():
    x = np.arange(32)
    simt.profile(shift_within_a_warp, 1, 32, (x,), level="run")
    assert x.tolist() == [*range(1, 32), 31]


@cuda.jit
def where_am_i(out):
    i = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    x, y, z = cuda.grid(3)
    sx, sy, sz = cuda.gridsize(3)
    out[b, i] = x + sx * (y + sy * z) + 1000000 * cuda.laneid + 0 * sz


@pytest.mark.parametrize("lanes", [1, 50, 1 << 20])
@pytest.mark.parametrize("grid, block", [((2, 3, 2), (4, 3, 2)), ((3, 1, 2), (1, 2, 20)), ((1, 5), (40, 1))])
def test_indices_in_three_dimensions_do_not_depend_on_the_batch(grid, block, lanes):
    full_grid, full_block = grid + (1,) * (3 - len(grid)), block + (1,) * (3 - len(block))
    out = np.zeros((np.prod(full_grid), np.prod(full_block)), np.int64)
    with simt.batch_lanes(lanes):
        where_am_i[grid, block](out)
    size = [g * b for g, b in zip(full_grid, full_block, strict=True)]
    for b in range(out.shape[0]):
        bx, by, bz = b % full_grid[0], b // full_grid[0] % full_grid[1], b // full_grid[0] // full_grid[1]
        for i in range(out.shape[1]):
            tx, ty, tz = i % full_block[0], i // full_block[0] % full_block[1], i // full_block[0] // full_block[1]
            x, y, z = bx * full_block[0] + tx, by * full_block[1] + ty, bz * full_block[2] + tz
            assert out[b, i] == x + size[0] * (y + size[1] * z) + 1000000 * (i % 32)


@cuda.jit
def printing(x):
    i = cuda.grid(1)
    if i == 2:
        print("lane", i, x[i])


def test_print_writes_what_active_lanes_say(capsys):
    printing[1, 32](np.arange(32))
    assert capsys.readouterr().out == "lane 2 2\n"


@cuda.jit
def slow_loop(out):
    k = 0
    while k < 5000:
        k += 1
    out[0] = k


def test_loop_limit_can_be_lowered_and_is_restored():
    out = np.zeros(1)
    with simt.loop_limit(100), pytest.raises(simt.SimtError, match="endless"):
        slow_loop[1, 1](out)
    slow_loop[1, 1](out)
    assert out[0] == 5000


@cuda.jit
def poisoned_by_the_launch(x):
    x[cuda.grid(1)] += 1


def test_a_failed_launch_leaves_the_interpreter_usable():
    with pytest.raises(simt.SimtError):
        refuses_negative[1, 4](np.full(4, -1.0))
    x = np.zeros(8)
    poisoned_by_the_launch[1, 8](x)
    assert x.tolist() == [1] * 8


# ------------------------------------------------------------------------------- found by numba-cuda's own tests (peer)


def test_the_transposed_of_a_device_matrix_is_a_copy_in_c_order():
    x = cuda.to_device(np.arange(12.0).reshape(3, 4))
    turned = x.T
    assert (turned.shape, turned.strides) == ((4, 3), (24, 8))
    turned[0, 0] = 99
    assert x[0, 0] == 0
    with pytest.raises(NotImplementedError):
        cuda.to_device(np.zeros((2, 3, 4))).T  # noqa: B018


def test_a_lambda_is_a_device_function():
    twice, thrice = cuda.jit(device=True)(lambda v: 2 * v), cuda.jit(device=True)(lambda v: 3 * v)

    @cuda.jit
    def kernel(out):
        out[0], out[1] = twice(7), thrice(7)

    out = np.zeros(2)
    kernel[1, 1](out)
    assert out.tolist() == [14, 21]


def test_global_host_arrays_are_frozen_and_global_device_arrays_are_not():
    frozen, live = np.array([1.0, 2.0]), cuda.to_device(np.array([1.0, 2.0]))

    @cuda.jit
    def kernel(out):
        out[0], out[1] = frozen[0], live[0]
        live[1] = 5

    out = np.zeros(2)
    kernel[1, 1](out)
    frozen[0] = live[0] = 10
    kernel[1, 1](out)
    assert out.tolist() == [1, 10]
    assert live[1] == 5


def test_launch_bounds_are_kept():
    @cuda.jit(launch_bounds=(64, 2))
    def kernel(out):
        out[cuda.grid(1)] = 1

    kernel[1, 64](np.zeros(64))
    with pytest.raises(simt.LaunchError, match=r"at most 64 \(launch_bounds\)"):
        kernel[1, 65](np.zeros(65))


def test_a_kernel_with_a_signature_is_compiled_at_once():
    with pytest.raises(simt.UnsupportedError, match="must be constant"):

        @cuda.jit("void(int32[:])")
        def kernel(x):
            tile = cuda.shared.array(x[0], np.float32)
            tile[0] = 0


def test_bytes_are_seen_as_other_numbers():
    @cuda.jit
    def kernel(raw, out):
        out[0] = raw[4:8].view(np.int32)[0]

    out = np.zeros(1, np.int32)
    kernel[1, 1](np.array([0, 7], np.int32).view(np.uint8), out)
    assert out[0] == 7


def test_universal_functions_have_numpys_types():
    @cuda.jit
    def kernel(x, out, whole):
        i = cuda.grid(1)
        out[i] = np.left_shift(x[i], x[i])
        if i == 0:
            np.maximum(x, 3, whole)

    x, out, whole = np.array([1, 31, 4], np.int32), np.zeros(3, np.int64), np.zeros(3, np.int32)
    kernel[1, 3](x, out, whole)
    assert out.tolist() == np.left_shift(x, x).tolist()
    assert whole.tolist() == [3, 31, 4]


def test_strides_of_new_memory():
    x = cuda.device_array((2, 3), np.int32, strides=(16, 4))
    assert x.strides == (16, 4)
    with pytest.raises(simt.ArgumentError, match="strides"):
        cuda.device_array((2, 3), np.int32, strides=(3, 4))


def test_floats_that_have_no_literal_are_made_of_words(ptx):
    @cuda.jit
    def kernel(out):
        out[0], out[1], out[2] = float("inf"), -float("inf"), float("nan")

    out = np.zeros(3, np.float32)
    kernel[1, 1](out)
    np.testing.assert_array_equal(out, [np.inf, -np.inf, np.nan])
    assert ".entry" in ptx(kernel, out)

    @cuda.jit
    def wrong(out):
        out[0] = float("x")

    with pytest.raises(simt.UnsupportedError, match="could not convert string to float: 'x'"):
        wrong[1, 1](out)
