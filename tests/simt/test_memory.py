"""Arrays: shared, local, constant, global, views of them, 128-bit access, and what the host sees."""

import ctypes
import re

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

TABLE = np.arange(12, dtype=np.int16).reshape(3, 4) * 7
REFUSALS = (simt.SimtError, TypeError, ValueError)


def iota(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


@cuda.jit
def reverse_in_shared(x, out):
    s = cuda.shared.array(64, dtype=np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]


def test_each_block_has_its_own_shared_array():
    x, out = iota(256), np.zeros(256, np.float32)
    reverse_in_shared[4, 64](x, out)
    np.testing.assert_array_equal(out, x.reshape(4, 64)[:, ::-1].ravel())


@cuda.jit
def shared_3d(x, out):
    s = cuda.shared.array((2, 3, 4), "int32")
    i, j, k = cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x
    s[i, j, k] = x[i, j, k]
    cuda.syncthreads()
    out[k, j, i] = s[1 - i, 2 - j, 3 - k] + s.shape[0] * 1000 + s.shape[2] * 100


def test_shared_array_of_three_dimensions():
    x, out = iota(2, 3, 4, dtype=np.int32), np.zeros((4, 3, 2), np.int32)
    shared_3d[1, (4, 3, 2)](x, out)
    np.testing.assert_array_equal(out, x[::-1, ::-1, ::-1].T + 2400)


@cuda.jit
def dynamic_shared(x, out, n):
    whole = cuda.shared.array(0, np.float32)
    first = whole[:n]
    second = whole[n:]
    t = cuda.threadIdx.x
    first[t] = x[t]
    second[t] = -x[t]
    cuda.syncthreads()
    out[t] = whole[2 * n - 1 - t] + whole.size


def test_dynamic_shared_memory_has_the_size_of_the_launch_and_can_be_sliced():
    x, out = iota(8), np.zeros(8, np.float32)
    dynamic_shared[1, 8, 0, 2 * 8 * 4](x, out, 8)
    np.testing.assert_array_equal(out, -x[::-1] + 16)


@cuda.jit
def dynamic_alias(out):
    words = cuda.shared.array(0, np.int32)
    again = cuda.shared.array(0, np.int32)
    t = cuda.threadIdx.x
    words[t] = t * t
    cuda.syncthreads()
    out[t] = again[t]


def test_dynamic_shared_arrays_are_the_same_memory():
    out = np.zeros(16, np.int32)
    dynamic_alias[1, 16, 0, 64](out)
    np.testing.assert_array_equal(out, np.arange(16) ** 2)


@cuda.jit
def two_shared_arrays(out):
    a = cuda.shared.array(32, np.int32)
    b = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    a[t] = t
    b[t] = 100 + t
    cuda.syncthreads()
    out[t] = a[31 - t] + 1000 * b[t]


def test_static_shared_arrays_do_not_overlap():
    out = np.zeros(32, np.int32)
    two_shared_arrays[1, 32](out)
    np.testing.assert_array_equal(out, np.arange(31, -1, -1) + 1000 * (100 + np.arange(32)))


@cuda.jit
def local_stack(x, out):
    i = cuda.grid(1)
    stack = cuda.local.array((2, 4), np.int32)
    for row in range(2):
        for k in range(4):
            stack[row, k] = x[i] * (row + 1) + k
    total = 0
    for k in range(4):
        total = total * 10 + stack[i % 2, 3 - k]
    out[i] = total


def test_local_arrays_are_private_to_a_thread():
    x, out = np.arange(100, dtype=np.int32) % 2, np.zeros(100, np.int32)
    local_stack[2, 50](x, out)
    expected = [int("".join(str(v * (i % 2 + 1) + k) for k in (3, 2, 1, 0))) for i, v in enumerate(x)]
    assert out.tolist() == expected


@cuda.jit
def constants(out):
    table = cuda.const.array_like(TABLE)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    out[i, j] = table[i, j] + TABLE[2 - i, j]


def test_constant_and_global_arrays():
    out = np.zeros((3, 4), np.int32)
    constants[1, (4, 3)](out)
    np.testing.assert_array_equal(out, TABLE + TABLE[::-1])


@cuda.jit
def views(x, out):
    t = cuda.threadIdx.x
    row = x[t]
    tail = x[1:, 2:]
    out[0, t] = row[1] + x[t][0]
    out[1, t] = tail[0, t]
    out[2, t] = x.T[t, 0]
    out[3, t] = x[:, 1][t]
    out[4, t] = x[::2, ::-1][1, t]
    out[5, t] = tail.shape[0] * 10 + tail.shape[1]


def test_views_inside_a_kernel():
    x, out = iota(4, 6), np.zeros((6, 4), np.float32)
    views[1, 4](x, out)
    np.testing.assert_array_equal(
        out,
        [
            x[:, 1] + x[:, 0],
            x[1, 2:],
            x[0, :4],
            x[:, 1],
            x[2, ::-1][:4],
            [34] * 4,
        ],
    )


@cuda.jit
def write_through_view(x):
    t = cuda.threadIdx.x
    x[t][0] = 100 + t
    column = x[:, 1]
    column[t] = 200 + t
    x[t, 2:4] = 7


def test_views_write_to_the_array():
    x = np.zeros((3, 5), np.int32)
    write_through_view[1, 3](x)
    np.testing.assert_array_equal(x, [[100 + t, 200 + t, 7, 7, 0] for t in range(3)])


@cuda.jit
def last_elements(x, out):
    out[0] = x[-1, -2]
    out[1] = x[cuda.threadIdx.x - 2, 0]


def test_negative_indices_count_from_the_end():
    x, out = iota(3, 4), np.zeros(2, np.float32)
    simt.profile(last_elements, 1, 1, (x, out), level="run")
    assert out.tolist() == [x[-1, -2], x[-2, 0]]


@cuda.jit
def scale_2d(x, out, factor):
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j] * factor


@pytest.mark.parametrize("order_in, order_out", [("C", "C"), ("F", "C"), ("C", "F"), ("F", "F")])
@pytest.mark.parametrize("on_device", [False, True])
def test_c_and_fortran_order(order_in, order_out, on_device):
    x = np.array(iota(5, 9), order=order_in)
    out = np.zeros((5, 9), np.float32, order=order_out)
    if on_device:
        device_out = cuda.to_device(out)
        scale_2d[(3, 2), (4, 4)](cuda.to_device(x), device_out, np.float32(2))
        out = device_out.copy_to_host()
    else:
        scale_2d[(3, 2), (4, 4)](x, out, np.float32(2))
    np.testing.assert_array_equal(out, x * 2)


def test_fortran_order_costs_what_its_layout_costs():
    x, out = np.asfortranarray(iota(32, 32)), iota(32, 32)
    counters = simt.profile(scale_2d, 1, (32, 32), (x, out, np.float32(2))).counters
    assert (counters["global_load_sectors"], counters["global_store_sectors"]) == (32 * 32, 32 * 4)


@pytest.mark.parametrize("make", [lambda x: x[::2, ::2], lambda x: x[:, 1:3], lambda x: x[::-1]])
def test_a_strided_host_array_is_refused_as_numba_does(make):
    x = make(iota(8, 8))
    with pytest.raises(ValueError, match="contiguous"):
        scale_2d[(3, 3), (4, 4)](x, np.zeros(x.shape, np.float32), np.float32(2))
    with pytest.raises(ValueError, match="contiguous"):
        cuda.to_device(x)


def test_a_slice_of_a_device_array_keeps_its_alignment():
    x, out = cuda.to_device(iota(64)), cuda.device_array(32, np.float32)
    report = simt.profile(copy_1d, 1, 32, (x[1:33], out))
    assert report.counters["global_load_sectors"] == 5  # it starts 4 bytes behind a sector's start
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(1, 33))


@cuda.jit
def copy_1d(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


@pytest.mark.parametrize(
    "dtype",
    [
        np.bool_,
        np.int8,
        np.uint8,
        np.int16,
        np.uint16,
        np.int32,
        np.uint32,
        np.int64,
        np.uint64,
        np.float16,
        np.float32,
        np.float64,
    ],
)
def test_every_dtype_can_be_loaded_and_stored(dtype):
    x = (np.arange(40) % 2 if dtype is np.bool_ else np.arange(40)).astype(dtype)
    out = np.zeros(40, dtype)
    copy_1d[2, 32](x, out)
    np.testing.assert_array_equal(out, x)


def test_empty_arrays_may_be_passed():
    out = np.zeros(0, np.float32)
    copy_1d[1, 32](np.zeros(0, np.float32), out)


def test_a_read_only_host_array_can_be_read_and_not_written():
    x, out = iota(8), np.zeros(8, np.float32)
    x.flags.writeable = False
    copy_1d[1, 8](x, out)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(REFUSALS):
        copy_1d[1, 8](out, x)


@cuda.jit
def vector_copy(x, out):
    lanes = 16 // x.itemsize
    i = lanes * cuda.grid(1)
    if i < x.size:
        cuda.store128(out, i, cuda.load128(x, i))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(64,), (8, 8)], ids=str)
def test_128_bit_copy(dtype, shape):
    x, out = iota(*shape, dtype=dtype), np.zeros(shape, dtype)
    vector_copy[1, 32](x, out)
    np.testing.assert_array_equal(out, x)


@cuda.jit
def vector_through_shared(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    cuda.store128(s, 4 * t, cuda.load128(x, 4 * t))
    cuda.syncthreads()
    a, b, c, d = cuda.load128(s, 4 * (31 - t))
    cuda.store128(out, 4 * t, (d, c, b, a * np.float32(2)))


def test_128_bit_access_of_shared_memory_and_of_the_tuple_between():
    x, out = iota(128), np.zeros(128, np.float32)
    report = simt.profile(vector_through_shared, 1, 32, (x, out))
    expected = x[::-1].copy()
    expected[3::4] *= 2
    np.testing.assert_array_equal(out, expected)
    # 512 bytes are four passes over the banks
    assert (report.counters["shared_load_requests"], report.counters["shared_load_wavefronts"]) == (1, 4)
    assert (report.counters["shared_store_requests"], report.counters["shared_store_wavefronts"]) == (1, 4)


@cuda.jit
def misaligned_vector(x, out):
    cuda.store128(out, 0, cuda.load128(x, 2))


def test_a_misaligned_128_bit_access_is_an_error():
    with pytest.raises(simt.SimtError, match="16"):
        misaligned_vector[1, 1](iota(8), iota(8))


@cuda.jit
def vectors_from(x, out, first):
    i = first + 4 * cuda.threadIdx.x
    cuda.store128(out, 4 * cuda.threadIdx.x, cuda.load128(x, i))


@cuda.jit
def vectors_to(x, out, first):
    i = first + 4 * cuda.threadIdx.x
    cuda.store128(out, i, cuda.load128(x, 4 * cuda.threadIdx.x))


@pytest.mark.parametrize("level", ["run", "count", "check"])
@pytest.mark.parametrize(("kernel", "name"), [(vectors_from, "x"), (vectors_to, "out")])
def test_a_128_bit_access_before_an_array_does_not_wrap_around(kernel, name, level):
    sentence = rf"thread 0 of block 0 accesses {name}\[-4\], but valid indices are 0 to 127"
    with pytest.raises(simt.OutOfBoundsError, match=sentence):
        simt.profile(kernel, 1, 32, (iota(128), iota(128), -4), level=level)


@cuda.jit
def vectors_of_slices(x, out):
    t = cuda.threadIdx.x
    own = x[4 * t :]
    cuda.store128(out[4 * t : 4 * t + 4], 0, cuda.load128(own, 0))


def test_128_bit_access_of_slices_that_differ_between_threads():
    x, out = iota(128), np.zeros(128, np.float32)
    assert simt.profile(vectors_of_slices, 1, 32, (x, out), level="check").hazards == []
    np.testing.assert_array_equal(out, x)
    with pytest.raises(simt.OutOfBoundsError, match=r"thread 31 of block 0 accesses own\[3\], but valid .* 0 to 1"):
        simt.profile(vectors_of_slices, 1, 32, (x[:126], out), level="check")


@cuda.jit
def vectors_by_name(x, out):
    i = 4 * cuda.threadIdx.x
    cuda.store128(values=cuda.load128(i=i, x=x), i=i, x=out)


def test_arguments_of_128_bit_access_may_be_given_by_name():
    x, out = iota(128), np.zeros(128, np.float32)
    vectors_by_name[1, 32](x, out)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(simt.OutOfBoundsError, match=r"accesses x\[100\]"):
        vectors_by_name[1, 32](x[:100], out)


def test_128_bit_access_is_refused_where_numba_refuses_it():
    def of_uint64(x):
        cuda.load128(x, 0)

    def a_bool(x):
        cuda.store128(x, 0, (1, 2.5, True, 3))

    def of_local_memory(x):
        cuda.load128(cuda.local.array(4, np.float32), 0)

    for kernel, x, sentence in (
        (of_uint64, iota(8, dtype=np.uint64), "128-bit access takes float32, .*; x holds uint64"),
        (a_bool, iota(8), "store128: each value must be a number, one was bool"),
        (of_local_memory, iota(8), "128-bit access is for global and shared memory; .* is in local memory"),
    ):
        with pytest.raises(simt.SimtError, match=sentence):
            cuda.jit(kernel)[1, 1](x)


ODD, EVEN = 258, 260


def vectors_behind(before, alignment):
    @cuda.jit
    def kernel(x, out):
        a = cuda.shared.array(before, np.float32)
        b = cuda.shared.array(ODD, np.float32, alignment)
        c = cuda.shared.array(3, np.int32)
        t = cuda.threadIdx.x
        a[t], b[t], c[t % 3] = x[t], x[t], t % 3
        cuda.syncthreads()
        out[t] = cuda.load128(b, 4 * (t // 4))[t % 4] + a[t]

    return kernel


def test_a_shared_array_begins_where_those_before_it_end():
    """ptxas 13.0 has `b` at byte 1032, at 1040, and at 1040."""
    x, out = iota(32), np.zeros(32, np.float32)
    sentence = "misaligned 128-bit access: b is in an array that begins at byte 1032 of .*; write alignment=16"
    for level in ("run", "check"):
        with pytest.raises(simt.SimtError, match=sentence):
            simt.profile(vectors_behind(ODD, 8), 1, 32, (x, out), level=level, collect=True)
        for before, alignment in ((ODD, 16), (EVEN, 8)):
            simt.profile(vectors_behind(before, alignment), 1, 32, (x, out), level=level)
            np.testing.assert_array_equal(out, 2 * x)


@cuda.jit
def vectors_of_a_view(x, out):
    a = cuda.shared.array(ODD, np.float32)
    b = cuda.shared.array(260, np.float32, 8).view(np.int32)
    t = cuda.threadIdx.x
    a[t], b[t] = x[t], t
    cuda.syncthreads()
    out[t] = cuda.load128(b, 4 * (t // 4))[t % 4] + a[t]


def test_a_view_begins_where_its_array_does():
    with pytest.raises(simt.SimtError, match="misaligned 128-bit access: b is in an array that begins at byte 1032 of"):
        vectors_of_a_view[1, 32](iota(32), np.zeros(32, np.float32))


@cuda.jit
def vectors_without_alignment(x, out):
    a = cuda.shared.array(3, np.int8)
    b = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    a[t % 3] = 0
    cuda.store128(b, 4 * t, cuda.load128(x, 4 * t))
    out[t] = b[4 * t]


def test_an_array_without_an_alignment_has_that_of_its_numbers():
    with pytest.raises(simt.SimtError, match="b is in an array that begins at byte 4 of shared memory"):
        vectors_without_alignment[1, 32](iota(128), iota(128))


@cuda.jit
def widths_of(x, out):
    out[0] = cuda.width128(x)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_an_empty_array_is_contiguous(shape):
    out = np.zeros(1, np.int64)
    widths_of[1, 1](np.zeros(shape, np.float32), out)
    assert out[0] == 4


@cuda.jit
def swap_pair(pair, scalars):
    a, b = pair
    i = cuda.grid(1)
    if i < a.size:
        kept = a[i]
        a[i] = b[i] * scalars[0]
        b[i] = kept + scalars[1]


def test_tuples_of_arrays_and_scalars_are_arguments():
    a, b = iota(10), iota(10) + 100
    swap_pair[1, 32]((a, b), (2, 0.5))
    np.testing.assert_array_equal(a, (iota(10) + 100) * 2)
    np.testing.assert_array_equal(b, iota(10) + np.float32(0.5))


# --- the host API ---


def test_device_arrays_keep_their_own_copy():
    x = iota(6)
    device = cuda.to_device(x)
    x[:] = -1
    np.testing.assert_array_equal(device.copy_to_host(), iota(6))
    out = np.zeros(6, np.float32)
    assert device.copy_to_host(out) is out
    device.copy_to_device(x)
    assert (device.copy_to_host() == -1).all()
    assert (out == iota(6)).all()


def test_kernels_write_device_arrays_in_place_and_host_copies_do_not_change():
    device = cuda.to_device(np.zeros(8, np.float32))
    before = device.copy_to_host()
    copy_1d[1, 8](iota(8), device)
    assert not before.any()
    np.testing.assert_array_equal(device.copy_to_host(), iota(8))


def test_device_array_properties_views_and_indexing():
    device = cuda.to_device(iota(4, 6))
    assert (device.shape, device.dtype, device.ndim, device.size, device.nbytes) == ((4, 6), np.float32, 2, 24, 96)
    assert device.strides == (24, 4)
    assert len(device) == 4
    assert device.is_c_contiguous()
    np.testing.assert_array_equal(device[1:3].copy_to_host(), iota(4, 6)[1:3])
    np.testing.assert_array_equal(device.reshape(6, 4).copy_to_host(), iota(6, 4))
    np.testing.assert_array_equal(device.ravel().copy_to_host(), iota(24))
    np.testing.assert_array_equal(device.T.copy_to_host(), iota(4, 6).T)
    np.testing.assert_array_equal(device.view(np.int32).copy_to_host(), iota(4, 6).view(np.int32))
    assert device[2, 3] == 15
    device[0, 0] = 99
    assert device.copy_to_host()[0, 0] == 99
    interface = device.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["version"] >= 2) == ((4, 6), "<f4", True)


def test_device_array_allocations():
    assert (cuda.device_array((2, 3), np.int16).shape, cuda.device_array(5).dtype) == ((2, 3), np.float64)
    like = cuda.device_array_like(np.zeros((3, 2), np.int8, order="F"))
    assert (like.shape, like.dtype, like.strides) == ((3, 2), np.int8, (1, 3))
    pinned = cuda.pinned_array((2, 2), np.float32)
    assert isinstance(pinned, np.ndarray)
    pinned[:] = 3
    assert (cuda.to_device(pinned).copy_to_host() == 3).all()
    mapped = cuda.mapped_array(4, np.int32)
    mapped[:] = 0
    copy_1d[1, 4](iota(4, dtype=np.int32), mapped)
    assert list(mapped) == [0, 1, 2, 3]


def address(array):
    """The simulated address of the first element."""
    return array.device_ctypes_pointer.value


@pytest.mark.parametrize("axis", [0, 1])
def test_an_array_that_numpy_repeats_takes_the_memory_of_one(axis):
    line = iota(3) if axis == 0 else iota(3)[:, None]
    repeated = np.broadcast_to(line, (4, 3) if axis == 0 else (3, 4))
    device = cuda.to_device(repeated)
    assert device.strides == device.copy_to_host().strides == repeated.strides
    np.testing.assert_array_equal(device.copy_to_host(), repeated)
    out = np.zeros(repeated.shape, np.float32)

    @cuda.jit
    def kernel(x, out):
        i, j = cuda.grid(2)
        out[i, j] = x[i, j]

    kernel[1, out.shape](device, out)
    np.testing.assert_array_equal(out, repeated)
    device.copy_to_device(np.broadcast_to(line + 1, repeated.shape))
    np.testing.assert_array_equal(device.copy_to_host(), repeated + 1)
    with pytest.raises(simt.ArgumentError, match=r"the device array has 3 in memory .*, and ary has 12"):
        device.copy_to_device(repeated.copy())
    with pytest.raises(simt.LaunchError, match="is not contiguous"):
        kernel[1, out.shape](repeated, out)


def test_an_address_has_64_bits_also_where_a_pointer_of_the_host_has_32():
    device = cuda.to_device(iota(4))
    assert type(device.device_ctypes_pointer) is ctypes.c_uint64  # c_void_p has 32 in a browser
    assert device.device_ctypes_pointer.value == device.__cuda_array_interface__["data"][0] >= 1 << 40


class Exporter:
    """An array of another library that offers nothing but the interface."""

    def __init__(self, array, first=0, **differs):
        interface = array.__cuda_array_interface__
        data = interface["data"][0] + first, False
        self.__cuda_array_interface__ = {**interface, "data": data, **differs}


def test_as_cuda_array_shares_memory():
    device = cuda.to_device(np.zeros(8, np.float32))
    alias = cuda.as_cuda_array(Exporter(device))
    copy_1d[1, 8](iota(8), alias)
    np.testing.assert_array_equal(device.copy_to_host(), iota(8))
    assert cuda.is_cuda_array(device)
    assert not cuda.is_cuda_array(iota(3))
    copy_1d[1, 8](iota(8) * 2, Exporter(device))
    np.testing.assert_array_equal(device.copy_to_host(), iota(8) * 2)


@cuda.jit
def copy_all(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i]


@pytest.mark.parametrize(
    ("first", "differs"),
    [
        (0, {"typestr": "<i4"}),
        (0, {"typestr": "<f8", "shape": (8,)}),
        (3, {"typestr": "|u1", "shape": (61,)}),
        (2, {"typestr": "<u2", "shape": (9,), "strides": (6,)}),
        (4, {"typestr": "<c8", "shape": (7,)}),
        (60, {"shape": (16,), "strides": (-4,)}),
        (20, {"shape": (5,), "strides": (0,)}),
        (0, {"shape": 3}),
    ],
)
def test_as_cuda_array_reads_the_elements_that_the_interface_describes(first, differs):
    x = iota(16) * 1.7
    alias = cuda.as_cuda_array(Exporter(device := cuda.to_device(x), first, **differs))
    out = np.zeros(alias.shape, alias.dtype)
    copy_all[1, 64](alias, out)
    described = np.ndarray(alias.shape, alias.dtype, x.data, first, alias.strides)
    assert out.tobytes() == described.tobytes()
    assert address(alias) - address(device) == first


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"shape": (17,)}, "from byte 0 to byte 68 of its allocation, which has 64"),
        ({"strides": (-4,)}, "from byte -60 to byte 4"),
        ({"typestr": ">f4"}, "it holds >f4; device memory holds numbers"),
        ({"typestr": "|S4"}, "it holds |S4"),
        ({"mask": object()}, "Masked arrays are not supported"),
        ({"data": (12, False)}, "use cuda.to_device"),
    ],
)
def test_an_interface_of_what_is_not_there_is_refused(differs, message):
    device = cuda.to_device(iota(16))
    with pytest.raises((simt.ArgumentError, NotImplementedError), match=re.escape(message)):
        cuda.as_cuda_array(Exporter(device, **differs))


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("first", [0, 1, 2, 4, 8])
def test_a_view_has_its_address_and_a_gpu_loads_it_from_multiples_of_its_size(dtype, first):
    memory, dtype = np.arange(65, dtype=np.uint8), np.dtype(dtype)
    device = cuda.to_device(memory)
    view = device[first : first + 48].view(dtype)
    out = np.zeros(view.shape, dtype)
    assert address(view) - address(device) == first
    np.testing.assert_array_equal(view.copy_to_host(), memory[first : first + 48].view(dtype))
    needs = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize  # a complex number is loaded as two
    if first % needs == 0:
        copy_all[1, 64](view, out)
        np.testing.assert_array_equal(out, memory[first : first + 48].view(dtype))
        return
    message = rf"test_memory.py:\d+: .* misaligned address: .* element of x, a {dtype}, at byte {first} .* of {needs} "
    with pytest.raises(simt.SimtError, match=message):
        copy_all[1, 64](view, out)
    with pytest.raises(simt.SimtError, match=r"misaligned address: .* element of out"):
        copy_all[1, 64](out, view)
    copy_all[1, 64](view[:0], out)  # nothing is loaded


def test_records_of_another_library_are_bytes_until_a_view_says_what_they_are():
    """As in numba-cuda: `np.dtype("|V8")` has no fields, and Numba has no type for it."""
    record = np.dtype([("n", np.int32), ("x", np.float32)])
    device = cuda.to_device(np.array([(1, 0.5), (2, 1.5), (3, 2.5)], record))
    raw = cuda.as_cuda_array(Exporter(device))
    assert (raw.dtype, raw.shape) == (np.dtype("V8"), (3,))
    assert raw.copy_to_host().tobytes() == device.copy_to_host().tobytes()

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i].n + x[i].x
        x[i].n = 7

    for unknown in (raw, Exporter(device)):
        with pytest.raises(simt.ArgumentError, match=r"holds \|V8: .* does not name the fields .* view\(dtype\)"):
            kernel[1, 3](unknown, np.zeros(3))
    kernel[1, 3](raw.view(record), out := np.zeros(3))
    assert out.tolist() == [1.5, 3.5, 5.5]
    assert device.copy_to_host()["n"].tolist() == [7, 7, 7]
    assert cuda.as_cuda_array(Exporter(device, shape=(0,))).copy_to_host().shape == (0,)


def views_made_in_a_kernel(kind):
    @cuda.jit
    def kernel(x, first, out):
        tile = cuda.shared.array(21, np.float32)
        t, block = cuda.threadIdx.x, cuda.blockIdx.x
        if t < 21:
            tile[t] = x[block, t]
        cuda.syncthreads()
        if t < 8:
            there, here = x[:, first : first + 16].view(kind), tile[first : first + 16].view(kind)
            out[block, 0, t] = there[block, t]
            out[block, 1, t] = here[t]
            there[block, t] = here[t] * 2
            here[t] = out[block, 0, t] * 3
            out[block, 2, t] = here[t]

    return kernel


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("level", ["run", "count", "check"])
def test_a_kernel_sees_complex_numbers_at_any_float_because_a_gpu_loads_them_as_two(first, level):
    """As Numba compiles it: `ld.shared.f32` and `ld.global.f32`, two each, and no instruction of 8 bytes."""
    x, out = cuda.to_device(iota(3, 21)), np.zeros((3, 3, 8), np.complex64)
    report = simt.profile(views_made_in_a_kernel(np.complex64), 3, 32, (x, first, out), level=level)
    seen = np.stack([row[first : first + 16].view(np.complex64) for row in iota(3, 21)])
    np.testing.assert_array_equal(out, np.stack([seen, seen, 3 * seen], axis=1))
    left = iota(3, 21)
    left[:, first : first + 16] *= 2
    np.testing.assert_array_equal(x.copy_to_host(), left)
    assert not report.hazards


@pytest.mark.parametrize(("first", "kind"), [(1, np.float64), (1, np.complex128), (3, np.int64)])
def test_a_kernel_sees_no_other_numbers_where_a_gpu_would_find_a_misaligned_address(first, kind):
    with pytest.raises(simt.SimtError, match=f"misaligned: this view of {np.dtype(kind)} starts at byte {4 * first}"):
        views_made_in_a_kernel(kind)[1, 32](iota(1, 21), first, np.zeros((1, 3, 8), np.complex128))


def test_complex_views_at_every_float_race():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i == 0:
            x[1:3].view(np.complex64)[0] = 7
        else:
            x[2:4].view(np.complex64)[0] = 3

    assert [h.kind for h in simt.profile(kernel, 1, 2, (iota(4),), level="check").hazards] == ["race"]


def test_only_the_elements_of_a_view_that_lie_wrong_stop_a_kernel():
    device = cuda.to_device(iota(16))
    alias = cuda.as_cuda_array(Exporter(device, shape=(8,), strides=(6,)))
    out = np.zeros(8, np.float32)
    copy_all[1, 1](alias, out)
    with pytest.raises(simt.SimtError, match=r"thread \(1, 0, 0\) .* at byte 6"):
        copy_all[1, 2](alias, out)


def test_views_of_one_memory_race():
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i == 0:
            x[1] = 7
        if i == 1:
            y[0] = 3

    x = cuda.to_device(iota(5))
    report = simt.profile(kernel, 1, 2, (x[1:].view(np.complex64), x[3:].view(np.int32)), level="check")
    assert [hazard.kind for hazard in report.hazards] == ["race"]


def test_streams_and_events():
    stream = cuda.stream()
    start, stop = cuda.event(), cuda.event(timing=True)
    start.record(stream)
    x = cuda.to_device(iota(64), stream=stream)
    out = cuda.device_array(64, np.float32, stream=stream)
    copy_1d[2, 32, stream](x, out)
    stop.record(stream)
    stop.synchronize()
    assert cuda.event_elapsed_time(start, stop) >= 0
    assert stop.query()
    start.wait(stream)
    stream.synchronize()
    with stream.auto_synchronize():
        copy_1d[2, 32, stream](x, out)
    np.testing.assert_array_equal(out.copy_to_host(stream=stream), iota(64))
    copy_1d[2, 32, cuda.default_stream()](x, out)
    cuda.synchronize()
    assert cuda.is_available() in (True, False)


def test_current_device_names_its_limits():
    device = cuda.get_current_device()
    assert device.WARP_SIZE == 32
    assert device.MAX_THREADS_PER_BLOCK == 1024
    assert device.MAX_SHARED_MEMORY_PER_BLOCK == 48 * 1024
    assert device.MULTIPROCESSOR_COUNT > 0
    assert len(device.compute_capability) == 2
    assert device.name


def test_forall_covers_exactly_what_is_asked():
    x, out = iota(1000), np.zeros(1000, np.float32)
    copy_1d.forall(1000)(x, out)
    np.testing.assert_array_equal(out, x)
    out[:] = 0
    copy_1d.forall(len(x), tpb=64)(x, out)
    np.testing.assert_array_equal(out, x)


def test_py_func_is_the_function():
    assert copy_1d.py_func.__name__ == "copy_1d"
    assert copy_1d.__name__ == "copy_1d"


@cuda.jit
def reshaped(x, out):
    rows, columns = x.reshape((4, -1)), x.reshape(2, 8)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 100 * rows[i // 4, i % 4] + columns[i // 8, i % 8]


def test_an_array_may_be_reshaped_in_a_kernel():
    x, out = np.arange(16.0), np.zeros(16)
    reshaped[1, 32](x, out)
    np.testing.assert_array_equal(out, 101 * x)


@cuda.jit
def reshaped_to_another_size(x, out):
    out[0] = x.reshape((5, 3))[0, 0]  # HERE


def test_a_reshape_that_does_not_fit_is_refused():
    with pytest.raises(simt.SimtError, match=r"\(16,\) cannot be reshaped to \(5, 3\)"):
        reshaped_to_another_size[1, 1](np.arange(16.0), np.zeros(1))
