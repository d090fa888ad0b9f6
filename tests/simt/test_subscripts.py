"""Device arrays in brackets on the host: what numba-cuda takes, with the elements that numba-cuda finds."""

import itertools
import re
import types

import numpy as np
import pytest

from pmpp.simt import SimtError, cuda

NUMBERS = np.arange(60, dtype=np.float32)


#: Shapes and strides in bytes.  The last ones are views that NumPy knows and numba-cuda takes for others.
LAYOUTS = {
    "no axis": ((), ()),
    "vector": ((7,), (4,)),
    "matrix": ((4, 5), (20, 4)),
    "three axes": ((3, 4, 5), (80, 20, 4)),
    "Fortran order": ((4, 5), (4, 16)),
    "Fortran order of three axes": ((3, 4, 5), (4, 12, 48)),
    "every other": ((7,), (8,)),
    "part of a matrix": ((4, 3), (20, 4)),
    "axes exchanged": ((4, 3, 5), (20, 80, 4)),
    "axes of one element": ((1, 5, 1), (20, 4, 4)),
    "backwards": ((7,), (-4,)),
    "repeated": ((4, 5), (0, 4)),
}

ONE = [
    0, 1, -1, -2, 99, -99, True, np.int32(1), np.uint8(2), np.array(1), np.bool_(True), 1.0, np.float32(1), None, ...,
    "x", [0, 1], [0], np.array([0, 1]), np.array([True, False]), slice(None), slice(1, 3), slice(None, None, 2),
    slice(None, None, -1), slice(3, None, -2), slice(-2, None), slice(5, 2), slice(1, 99), slice(None, None, 0),
    slice(1.0, 2), slice(np.int64(1), np.int64(3)), (),
]  # fmt: skip
FEW = [0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(None, None, 2), ..., None]
SUBSCRIPTS = [*ONE, *itertools.product(ONE[:-1], repeat=2), *itertools.product(FEW, repeat=3)]


def interpreter(shape, strides, item):
    """Shape and places, in bytes, of what the interpreter finds, or that it refuses."""
    first = 4 * (shape[0] - 1) if strides and strides[0] < 0 else 0
    memory = cuda.to_device(np.arange(80, dtype=np.float32))
    interface = memory.__cuda_array_interface__
    described = {**interface, "shape": shape, "strides": strides, "data": (interface["data"][0] + first, False)}
    x = cuda.from_cuda_array_interface(described)
    try:
        part = x[item]
    except (TypeError, IndexError, ValueError, NotImplementedError):
        return "refused"
    if not isinstance(part, cuda.DeviceArray):
        return (), [int(part) * 4 - first]
    start = part._offset() - first
    return part.shape, places(part.shape, part.strides, start)


def numba(shape, strides, item):
    """The same of numba-cuda."""
    dummyarray = pytest.importorskip("numba.cuda.cudadrv.dummyarray")
    try:
        part = dummyarray.Array.from_desc(0, shape, strides, 4)[item]
        list(part.iter_contiguous_extent())
    except (TypeError, IndexError, ValueError, NotImplementedError, AttributeError):
        return "refused"
    return (
        (part.shape, places(part.shape, part.strides, part.extent.begin)) if part.is_array else ((), [part.extent[0]])
    )


def numpys(shape, strides, item):
    """What NumPy finds."""
    first = 4 * (shape[0] - 1) if strides and strides[0] < 0 else 0
    x = np.ndarray(shape, np.float32, np.arange(80, dtype=np.float32).data, first, strides)
    part = x[item]
    return np.shape(part), (4 * np.asarray(part).astype(int).reshape(-1) - first).tolist()


def places(shape, strides, start):
    return [
        start + sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_subscript_selects_what_numba_cuda_selects_or_both_refuse_it(layout):
    shape, strides = LAYOUTS[layout]
    taken = 0
    for item in SUBSCRIPTS:
        here, there = interpreter(shape, strides, item), numba(shape, strides, item)
        if here == "refused" != there:  # then numba-cuda finds other elements than NumPy, or it may
            assert layout in ("backwards", "repeated", "Fortran order of three axes"), (item, there)
            continue
        assert here == there, item
        if here != "refused" and not any(each is True for each in (item if isinstance(item, tuple) else (item,))):
            assert here == numpys(shape, strides, item), item
        taken += here != "refused"
    assert (taken == 0) == (layout in ("backwards", "repeated"))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (..., "an Ellipsis (...): write a colon for each axis"),
        ((..., slice(32)), "an Ellipsis"),
        ((None, 0), "None: reshape() gives an array another axis"),
        ([0, 1], "an array or list of indices: select in a kernel, or on the host"),
        (NUMBERS[:20].reshape(4, 5) > 2, "a mask"),
        ([True, False, True, True], "a mask"),
        ("x", "a name ('x')"),
        (1.5, "float (1.5)"),
        ((0, 0, 0), "3 subscripts, and the device array has 2 axes"),
    ],
)
def test_the_error_says_what_is_taken(item, message):
    x = cuda.to_device(NUMBERS[:20].reshape(4, 5))
    with pytest.raises((TypeError, IndexError), match=re.escape(message)):
        x[item]
    with pytest.raises((TypeError, IndexError), match=re.escape(message)):
        x[item] = 0


@pytest.mark.parametrize(
    ("item", "value"),
    [
        (0, 7), ((1, 2), 7), (slice(None), 7.9), (slice(1, 3), np.arange(5)), (slice(1, 3), np.ones((2, 1))),
        ((slice(None), 1), np.arange(4)), ((slice(None), 1), [1, 2, 3, 4]), (slice(None, None, -1), np.arange(5)),
        (slice(None, None, 2), np.ones((2, 5), np.int16)), ((slice(2, 2), 0), np.arange(0)), (2, True),
        (slice(None), np.asfortranarray(NUMBERS[:20].reshape(4, 5))), (0, np.broadcast_to(np.float32(3), 5)),
        ((1, 1), np.array(4)), (slice(0), 3), (slice(None), np.array([2**40 + 5])),
    ],
)  # fmt: skip
def test_values_are_assigned_as_by_a_kernel(item, value):
    expected = np.zeros((4, 5), np.int32)
    x = cuda.to_device(expected)
    x[item] = value
    expected[item] = np.asarray(value).astype(np.int32)
    np.testing.assert_array_equal(x.copy_to_host(), expected)
    if not np.isscalar(value):
        y = cuda.to_device(np.zeros((4, 5), np.int32))
        y[item] = cuda.to_device(np.ascontiguousarray(value) if np.ndim(value) else value)
        np.testing.assert_array_equal(y.copy_to_host(), expected)


def test_numbers_that_do_not_fit_are_converted_as_a_kernel_converts_them():
    x = cuda.to_device(np.zeros(3, np.int32))
    x[:] = np.float32([np.nan, 1e20, -2.7])
    assert x.copy_to_host().tolist() == [0, 2**31 - 1, -2]


@pytest.mark.parametrize(
    ("item", "value", "message"),
    [
        (0, np.ones((1, 5)), "has 2 axes, and what it is assigned to has 1"),
        ((0, 0), [3], "has 1 axes, and what it is assigned to has 0"),
        (0, np.ones(4), "could not broadcast input array from shape (4,) into shape (5,)"),
        (0, np.arange(10)[::2], "not contiguous"),
        (0, 1j, "a complex number is no float32"),
        (0, "a", "holds <U1"),
        (0, np.zeros(5, [("a", "f4")]), "the array holds float32"),
        (0, np.zeros(1, [("a", "f4")])[0], "the value is one record"),
        (slice(None), np.broadcast_to(np.float32(3), 5), "in C order only"),
    ],
)
def test_values_that_numba_cuda_does_not_take_are_refused(item, value, message):
    x = cuda.to_device(NUMBERS[:20].reshape(4, 5))
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=re.escape(message)):
        x[item] = value
    np.testing.assert_array_equal(x.copy_to_host(), NUMBERS[:20].reshape(4, 5))


def test_a_value_that_overlaps_is_refused_because_a_gpu_moves_the_elements_in_any_order():
    x = cuda.to_device(NUMBERS)
    with pytest.raises(TypeError, match="overlaps"):
        x[1:] = x[:-1]
    x[:] = x
    x[:30] = x[30:]
    np.testing.assert_array_equal(x.copy_to_host()[:30], NUMBERS[30:])


def test_what_else_numba_cuda_does_not_do_with_an_array_is_refused():
    x = cuda.to_device(NUMBERS)
    part, matrix = x[::2], x.reshape(6, 10)
    turned = cuda.to_device(np.asfortranarray(NUMBERS.reshape(6, 10)))
    refused = (TypeError, ValueError, NotImplementedError)
    for call in (
        lambda: part.reshape(5, 6), lambda: part.ravel(), lambda: turned.ravel(), lambda: matrix[:, :3].reshape(3, 6),
        lambda: x.T, lambda: x.transpose(), lambda: x.reshape(3, 4, 5).T, lambda: part.view(np.int16),
        lambda: x[:3].view(np.float64), lambda: list(part.split(4)), lambda: x[::-1].copy_to_host(),
        lambda: part.copy_to_device(NUMBERS[:30]), lambda: part.copy_to_host(np.zeros(30, np.float32)),
        lambda: turned.copy_to_host(np.zeros((6, 10), np.float32)), lambda: x.reshape(1, 60).squeeze(-2),
        lambda: cuda.to_device(NUMBERS.astype(">f4")),
    ):  # fmt: skip
        with pytest.raises(refused):
            call()
    assert turned.ravel("F").copy_to_host().tolist() == turned.copy_to_host().T.reshape(-1).tolist()
    assert matrix.T.copy_to_host().tolist() == NUMBERS.reshape(6, 10).T.tolist()
    assert part.view(np.int32).copy_to_host().tolist() == NUMBERS[::2].view(np.int32).tolist()
    assert x.reshape(1, 60).squeeze(0).shape == (60,)
    assert x.reshape(1, 60).copy_to_host(into := np.zeros(60, np.float32)) is into
    assert x.flags == {"C_CONTIGUOUS": True, "F_CONTIGUOUS": True}
    assert turned.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": True}


# -- other shapes ----------------------------------------------------------------------------------------------------

#: More layouts: axes of one element, whose stride NumPy does not look at.
THIN = {
    "a new first axis": ((1, 6), (0, 4)),
    "a new last axis": ((6, 1), (4, 0)),
    "new axes around": ((1, 6, 1), (0, 4, 0)),
    "a new axis of a matrix": ((2, 1, 3), (12, 0, 4)),
    "a row of many": ((1, 6), (240, 4)),
    "one element": ((1, 1), (0, 4)),
    "one element of one axis": ((1,), (0,)),
}


def shapes(size):
    """What may be given to reshape an array of so many elements: tuples, lists, a free axis, and what does not fit."""
    axes = [n for n in range(1, size + 1) if size % n == 0]
    fit = [at for rank in (1, 2, 3) for at in itertools.product(axes, repeat=rank) if np.prod(at, dtype=int) == size]
    return [*fit, *map(list, fit), (-1,), [-1], (1, -1), (-1, 2), (-1, -1), (size + 1,), (0,)]


def outcome(array, given, order):
    """Shape and strides of the reshaped array (of axes of several elements), or the type of the error."""
    try:
        view = array.reshape(given, order=order)
    except (NotImplementedError, ValueError, TypeError) as error:
        return next(kind for kind in (NotImplementedError, ValueError, TypeError) if isinstance(error, kind))
    return view.shape, [s for n, s in zip(view.shape, view.strides, strict=True) if n > 1]


@pytest.mark.parametrize("layout", [*LAYOUTS, *THIN])
def test_an_array_is_reshaped_where_numba_cuda_reshapes_it(layout):
    devicearray = pytest.importorskip("numba.cuda.cudadrv.devicearray")
    shape, strides = (LAYOUTS | THIN)[layout]
    there = devicearray.DeviceNDArray(shape, strides, np.float32, gpu_data=types.SimpleNamespace())
    memory = cuda.to_device(np.arange(80, dtype=np.float32))
    interface = memory.__cuda_array_interface__
    first = interface["data"][0] + (24 if layout == "backwards" else 0)
    here = cuda.from_cuda_array_interface({**interface, "shape": shape, "strides": strides, "data": (first, False)})
    size = int(np.prod(shape))
    for given, order in itertools.product(shapes(size), "CFA"):
        found, expected = outcome(here, given, order), outcome(there, given, order)
        if (
            found is TypeError
        ):  # numba-cuda goes through the elements in the order of memory, which is not the one asked
            assert here.is_f_contiguous() if order == "C" else here.is_c_contiguous()
            assert len(expected) == 2
            continue
        assert found == expected, (given, order)


def test_an_axis_that_numpy_made_anew():
    """A copy has no stride of 0. Memory of others that has one is not reshaped, as in numba-cuda."""
    x = NUMBERS[:6]
    assert cuda.to_device(x[None]).reshape(6).copy_to_host().tolist() == x.tolist()
    strides = {"shape": (1, 6), "strides": (0, 4)}
    row = cuda.from_cuda_array_interface({**(there := cuda.to_device(x)).__cuda_array_interface__, **strides})
    assert there.size == row.size
    assert row.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": False}
    for call in (lambda: row.reshape(6), lambda: row.ravel(), lambda: row.view(np.int16), lambda: row.reshape([1, 6])):
        with pytest.raises((NotImplementedError, ValueError), match=r"stride|C-contiguous|tuple only"):
            call()
    assert row.reshape(1, 6).strides == (0, 4)
    assert row.view(np.int32).shape == (1, 6)
    assert row[0].reshape(2, 3).copy_to_host().tolist() == x.reshape(2, 3).tolist()

    @cuda.jit
    def in_a_kernel(x, out):
        out[0] = x.reshape(6)[5]

    in_a_kernel[1, 1](x[None], out := np.zeros(1))  # a host array comes without gaps
    assert out[0] == x[5]
    with pytest.raises(SimtError, match=r"Numba reshapes arrays in C order only; this one has the strides \(0, 4\)"):
        in_a_kernel[1, 1](row, out)
