"""What the convolution layers share: the shapes, the definition, ResNet-50's layers, and the refusals."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.convolution_layer import definition as layers
from pmpp.kernels.convolution_layer.by_fft_workloads import bound
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import sums
from pmpp.lab.measure import arrays
from pmpp.runtime import device

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def by_scipy(x, w, bias, stride, padding, dilation, groups):
    """Each output image as a sum of correlations of padded channels with dilated masks, then thinned out."""
    from scipy.signal import correlate  # here, as it takes seconds, which every process would spend when it collects

    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((p, p) for p in padding)))
    mask = np.zeros((*w.shape[:2], *(d * (n - 1) + 1 for d, n in zip(dilation, w.shape[2:], strict=True))))
    mask[:, :, :: dilation[0], :: dilation[1]] = w
    each = len(w) // groups
    out = [
        [
            sum(
                correlate(padded[n, k // each * w.shape[1] + c], mask[k, c], "valid", "direct")
                for c in range(w.shape[1])
            )[:: stride[0], :: stride[1]]
            + (0 if bias is None else bias[k])
            for k in range(len(w))
        ]
        for n in range(len(x))
    ]
    return np.array(out)


@hypothesis.given(
    n=st.integers(1, 2),
    group=st.integers(1, 2),
    filters=st.integers(1, 2),
    groups=st.integers(1, 3),
    extent=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=pairs,
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=40)
def test_the_reference_is_scipys_correlation(
    n, group, filters, groups, extent, kernel, stride, padding, dilation, biased, seed
):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((n, group * groups, *extent)), rng.standard_normal((filters * groups, group, *kernel))
    bias = rng.standard_normal(len(w)) if biased else None
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    options = stride, padding, dilation, groups
    expected = by_scipy(x, w, bias, *options)
    found = layers.reference(x, w, bias, *options)
    assert found.shape == layers.layer_of(x.shape, w.shape, *options).shape
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_array_equal(layers.reference(x, w, bias, *options, True), np.maximum(found, 0))
    quick = sums(x, w, layers.layer_of(x.shape, w.shape, *options))
    np.testing.assert_allclose(quick + (0 if bias is None else bias[:, None, None]), expected, atol=1e-12)


def test_the_sums_of_numpy_arrays_are_numpys_where_cupy_is_installed_too(monkeypatch):
    monkeypatch.setattr(arrays, "xp", lambda: pytest.fail("CuPy refuses NumPy's arrays"))
    x, w, _, *options = layers.inputs()["3x3 p1, odd, bias, ReLU"]
    layer = layers.layer_of(x.shape, w.shape, *options[:4])
    assert type(sums(x, w, layer)) is np.ndarray
    assert type(bound(x, w, layer)) is np.ndarray


@pytest.mark.parametrize("name", layers.inputs())
def test_the_reference_is_pytorchs_layer(name):
    torch = pytest.importorskip("torch")
    x, w, bias, *options = layers.inputs()[name]
    relu = len(options) > 4 and options[4]
    tensors = [None if a is None else torch.from_numpy(a).double() for a in (x, w, bias)]
    expected = torch.nn.functional.conv2d(*tensors, *options[:4]).numpy()
    np.testing.assert_allclose(layers.reference(x, w, bias, *options), np.maximum(expected, 0) if relu else expected)


def test_the_sum_of_a_float32_layer_lies_within_the_tolerance_and_a_wrong_one_does_not():
    x, w, bias, *options = layers.inputs()["3x3 p1, odd, bias, ReLU"]
    expected, allowed = (f(x, w, bias, *options) for f in (layers.reference, layers.tolerance))
    products = [x[0, c, r : r + 5, s : s + 7] * w[0, c, r, s] for c in range(5) for r in range(3) for s in range(3)]
    total = np.sum(np.float32(products), axis=0, dtype=np.float32) + bias[0]  # what lies inside the border
    off = abs(np.maximum(total, 0) - expected[0, 0, 1:-1, 1:-1])
    assert (off <= allowed[0, 0, 1:-1, 1:-1]).all()
    less = np.maximum(total - products[7], 0)
    assert (abs(less - expected[0, 0, 1:-1, 1:-1]) > allowed[0, 0, 1:-1, 1:-1]).any()


def test_resnet_50_has_its_layers_and_its_arithmetic():
    found = layers.resnet50(1)
    assert (len(found), sum(found.values())) == (23, 53)
    work = sum(layer.cost.flops * times for layer, times in found.items())
    assert work == 2 * 4_087_136_256  # with the 2 million multiply-adds of the last matrix: He et al.'s 4.1 x 10^9
    assert sum(math.prod((layer.k, layer.terms)) * times for layer, times in found.items()) == 23_454_912


def test_a_layer_counts_its_work_and_says_its_name():
    layer = Layer(32, 64, 56, 28, 96, 3, 5, (2, 1), (1, 2), (1, 1), 2)
    assert str(layer) == "n32 c64 h56x28 k96 3x5 s2x1 p1x2 g2"
    assert layer.shape == (32, 96, 28, 28)
    assert layer.terms == 32 * 15
    assert layer.cost.flops == 2 * 32 * 96 * 28 * 28 * 480
    assert layer.cost.bytes == 4 * (32 * 64 * 56 * 28 + 96 * 32 * 15 + 32 * 96 * 28 * 28)
    assert str(Layer(1, 3, 8, 8, 4, 3, 3)) == "n1 c3 h8 k4 3x3"


F32 = np.float32
X, W = np.zeros((1, 4, 5, 6), np.float32), np.zeros((6, 2, 3, 3), np.float32)
GOOD = {
    "x": X, "w": W, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 2, "relu": False, "out": None,
    "stream": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": X.astype(np.float64)}, TypeError, "x must be float32, was float64"),
        ({"x": X[0]}, ValueError, "x must have 4 dimensions, had 3"),
        ({"w": W[:, :, ::-1]}, ValueError, "w must be contiguous"),
        ({"w": W[:, :1]}, ValueError, "w must be contiguous"),
        ({"groups": 1}, ValueError, "x must have 2 channels, 2 for each of 1 groups, had 4"),
        ({"groups": 4}, ValueError, "groups must divide the 6 filters of w, was 4"),
        ({"groups": 0}, ValueError, "groups must be at least 1, was 0"),
        ({"stride": 0}, ValueError, "stride must be an integer of at least 1"),
        ({"stride": (1, 2, 3)}, ValueError, "stride must be an integer"),
        ({"padding": -1}, ValueError, "padding must be an integer of at least 0"),
        ({"dilation": 2**31}, ValueError, r"dilation must be an integer .* below 2\^31, .*, was 2147483648"),
        ({"dilation": 3}, ValueError, r"x must have room for a kernel that spans \(7, 7\) with padding \(0, 0\)"),
        ({"bias": np.zeros(5, np.float32)}, ValueError, r"bias must have shape \(6,\), a number for each filter"),
        ({"bias": np.zeros(0, np.float32)}, ValueError, r"bias must have shape \(6,\)"),
        ({"bias": np.zeros(6)}, TypeError, "bias must be float32"),
        ({"w": np.zeros((0, 2, 3, 3), np.float32)}, ValueError, "w must have no extent of 0"),
    ],
)
def test_a_bad_argument_is_named(change, error, words):
    with pytest.raises(error, match=words):
        layers.arguments(**(GOOD | change))


def test_an_output_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"out must have shape \(1, 6, 3, 4\), had \(1, 6, 3, 5\)"):
        layers.arguments(**(GOOD | {"out": device.empty((1, 6, 3, 5), np.float32)}))


def test_more_elements_than_32_bits_count_are_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(layers, "MOST", 71)
    with pytest.raises(ValueError, match=r"x must have at most 2\^31 - 1 elements, has shape \(1, 4, 5, 6\)"):
        layers.arguments(**GOOD)


def test_there_is_one_empty_array_for_each_gpu_and_dtype(monkeypatch):
    first = layers.no_elements(F32)
    assert first.size == 0
    assert layers.no_elements(F32) is first
    assert layers.no_elements(np.int32).dtype == np.int32
    monkeypatch.setattr(device, "current", lambda: 1)
    assert layers.no_elements(F32) is not first


def test_a_workspace_that_does_not_fit_says_how_many_bytes_were_wanted(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("some allocator's words")

    monkeypatch.setattr(device, "empty", refuse)
    with pytest.raises(MemoryError, match="no room for the columns: 4,800 bytes of workspace were wanted"):
        layers.workspace("the columns", (30, 40))
