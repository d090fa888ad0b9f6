"""Choosing a convolution algorithm: by name, by measuring, by the shape, and what the choice is judged by."""

import math

import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.convolution_layer import definition, find
from pmpp.kernels.convolution_layer import dispatch as layers
from pmpp.kernels.convolution_layer.definition import arguments
from pmpp.runtime import device

INPUTS = definition.inputs()
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter launches")


def right(result, arguments, algorithm):
    """Within the tolerance of the room that computed it: Winograd's and the FFT's are larger than the definition's."""
    error = abs(device.to_host(result) - definition.reference(*arguments))
    return bool((error <= layers.ROOMS[algorithm].tolerance(*arguments)).all())


@pytest.mark.parametrize("name", ["3x3 p1, odd, bias, ReLU", "1x1 s2, bias", "depthwise, ReLU", "no images"])
def test_auto_gives_the_layers_output(name):
    x, w, _, *options = INPUTS[name]
    taken = layers.choose(definition.layer_of(x.shape, w.shape, *options[:4]))[0]
    assert right(layers.convolution(*INPUTS[name]), INPUTS[name], taken)


def taken_by(algorithm):
    """The name of an input that the algorithm takes."""
    return "depthwise, ReLU" if algorithm == "depthwise" else "3x3 p1, odd, bias, ReLU"


@pytest.mark.parametrize("algorithm", layers.ALGORITHMS)
def test_an_algorithm_by_name_gives_the_output_in_the_array_that_it_is_given(algorithm):
    arguments = INPUTS[taken_by(algorithm)]
    out = device.empty((2, 5, 6, 7) if algorithm == "depthwise" else (1, 6, 7, 9), np.float32)
    result = layers.convolution(*arguments, algorithm=algorithm, out=out)
    assert device.address(result) == device.address(out)
    assert right(out, arguments, algorithm)


@interpreter_only
@pytest.mark.parametrize("algorithm", layers.ALGORITHMS)
def test_the_algorithm_named_is_the_one_that_runs(algorithm):
    with simt.record() as reports:
        layers.convolution(*INPUTS[taken_by(algorithm)], algorithm=algorithm)
    own = {getattr(kernel, "py_func", kernel).__name__ for kernel in layers.ROOMS[algorithm].LADDER[-1].kernels}
    made = {"depthwise": {"packs_of_planes"}}  # by a factory of another name
    own |= made.get(algorithm, set())
    assert {report.kernel for report in reports} & own


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"algorithm": "gemm"}, ValueError, "algorithm must be 'auto' or one of direct, im2col, .*, was 'gemm'"),
        ({"algorithm": None}, ValueError, "algorithm must be 'auto' or one of"),
        ({"algorithm": "winograd", "stride": 2}, ValueError, "algorithm must be able to compute the layer, was 'wino"),
        (
            {"algorithm": "depthwise"},
            ValueError,
            "algorithm must be able to compute the layer, was 'depthwise': x must have groups",
        ),
        ({"workspace_limit": -1}, ValueError, "workspace_limit must be None or bytes, .*, was -1"),
        ({"workspace_limit": 1e6}, ValueError, "workspace_limit must be None or bytes"),
        ({"groups": 2}, ValueError, "groups must divide"),
    ],
)
def test_a_bad_argument_is_named(change, error, words):
    x, w = np.zeros((1, 3, 6, 6), np.float32), np.zeros((5, 3, 3, 3), np.float32)
    with pytest.raises(error, match=words):
        layers.convolution(x, w, **change)


def test_auto_keeps_to_the_workspace_that_it_is_allowed():
    x, w, *options = INPUTS["3x3 p1"]
    layer = definition.layer_of(x.shape, w.shape, *options[1:])
    greedy = max(layers.ALGORITHMS, key=lambda name: layers.workspace_bytes(name, layer))
    assert layers.workspace_bytes(greedy, layer) > 0
    ran = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "choose", lambda layer: [greedy, "im2col", "direct"])
        patch.setattr(layers, "run", lambda name, problem: ran.append(name))
        layers.convolution(x, w, *options)
        layers.convolution(x, w, *options, workspace_limit=0)
    assert ran == [greedy, "direct"]


def test_auto_goes_on_where_there_is_no_memory(monkeypatch):
    x, w, *options = INPUTS["3x3 p1"]
    ran = []

    def run(name, problem):
        ran.append(name)
        if name in ("fft", "winograd"):
            raise MemoryError("no room")

    monkeypatch.setattr(layers, "choose", lambda layer: ["fft", "winograd", "direct", "implicit"])
    monkeypatch.setattr(layers, "run", run)
    layers.convolution(x, w, *options)
    assert ran == ["fft", "winograd", "direct"]


def test_auto_takes_the_strips_for_groups_of_few_channels_and_no_others():
    few = [
        definition.Layer(8, 32, 28, 28, 32, 5, 5, (2, 2), (2, 2), groups=32),
        definition.Layer(8, 32, 28, 28, 32, 3, 3, padding=(1, 1), groups=8),
    ]
    assert all(layers.choose(layer)[0] == "depthwise" for layer in few)
    many = definition.Layer(8, 32, 28, 28, 32, 3, 3, padding=(1, 1), groups=2)
    assert "depthwise" not in layers.choose(many)


@pytest.fixture
def timed(monkeypatch):
    """The algorithms take these times."""
    times = {"direct": 4.0, "im2col": 3.0, "implicit": 1.0, "winograd": 2.0, "fft": 5.0}
    asked = iter(layers.ALGORITHMS)
    real = find._time

    def slow(call, layer, seconds):
        real(call, layer, 0)
        return times[next(asked)]

    monkeypatch.setattr(find, "_time", slow)


@pytest.mark.usefixtures("timed")
def test_find_ranks_the_algorithms():
    ranking = find.find(*INPUTS["3x3 p1"])
    ran = ["implicit", "winograd", "im2col", "direct", "fft"]
    assert [one.algorithm for one in ranking.candidates] == [*ran, "depthwise"]
    assert "groups of at most" in ranking.candidates[-1].note
    assert ranking.best.seconds == 1.0
    assert all(one.error < 1e-5 for one in ranking.candidates[:-1])
    assert "implicit" in str(ranking).splitlines()[2]


@pytest.mark.usefixtures("timed")
def test_find_changes_no_call_but_one_that_is_told_what_it_found(monkeypatch):
    x, w, *options = INPUTS["3x3 p1"]
    layer, ran = definition.layer_of(x.shape, w.shape, *options[1:]), []
    expected = layers.choose(layer)
    best = find.find(x, w, *options).best.algorithm
    assert layers.choose(layer) == expected
    monkeypatch.setattr(layers, "run", lambda name, problem: ran.append(name))
    layers.convolution(x, w, *options)
    layers.convolution(x, w, *options, algorithm=best)
    assert ran == [expected[0], "implicit"]


def test_find_says_why_a_candidate_did_not_run():
    x, w, *options = INPUTS["1x1 s2, bias"]
    ranking = find.find(x, w, *options, workspace_limit=0)
    notes = {one.algorithm: one.note for one in ranking.candidates}
    assert "3" in notes["winograd"]
    assert "bytes of workspace, 0 are allowed" in notes["fft"]
    assert not notes["direct"]
    assert math.isnan(ranking.candidates[-1].seconds)


def test_find_refuses_what_it_cannot_measure():
    x, w = INPUTS["no images"][:2]
    with pytest.raises(ValueError, match="x must have an image at least"):
        find.find(x, w)
    for algorithms in (["gemm"], "direct", [], 5, None):
        with pytest.raises(ValueError, match=r"algorithms must be some of direct, .*, in a list or a tuple, was "):
            find.find(*INPUTS["one"], algorithms=algorithms)
    with pytest.raises(TypeError, match="seconds must be a number, was 'long'"):
        find.find(*INPUTS["one"], seconds="long")


@pytest.mark.parametrize("name", ["3x3 p1, odd, bias, ReLU", "two groups", "3x2 s2x1 p1x0 d1x2", "depthwise, ReLU"])
def test_the_sampled_error_is_that_of_the_definition(name):
    x, w, bias, *options = INPUTS[name]
    relu = len(options) > 4 and options[4]
    problem = arguments(x, w, bias, *(options + [1, 0, 1, 1][len(options) :])[:4], relu)
    exact = definition.reference(x, w, bias, *options)
    sizes = definition.reference(abs(x), abs(w), None if bias is None else abs(bias), *options)
    off = np.float32(exact)
    off.reshape(-1)[-1] += np.float32(0.5)  # the last output is always looked at
    error = find.samples_of(problem).error(device.to_device(off))
    assert error == pytest.approx(0.5 / sizes.reshape(-1)[-1], rel=1e-3)
