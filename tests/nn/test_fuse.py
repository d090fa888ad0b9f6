"""The fusing compiler: results, kernels, sources and errors; and compilers that are wrong."""

import linecache
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpp import simt
from pmpp.nn.fuse import Part, TraceError, alone, compiled, elementwise_only, errors, fuse, fused, source, trace
from pmpp.nn.fuse.examples import adamw, chain, gelu_with_mask, layer_norm, softmax
from pmpp.runtime import device
from tests.support.wrong import observe, total

RULES = [fused, elementwise_only, alone]


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def fault(function, *given, rule=fused, **options):
    """What is wrong with the results of a fused function, in words; None if nothing is."""
    dtype = next(x.dtype for x in given if np.ndim(x))
    made = fuse(function, rule=rule)
    results = made(*given, **options)
    results = [one.copy_to_host() for one in (results if isinstance(results, tuple) else [results])]
    graph = trace(function, made.names, [np.shape(x) for x in given])
    bounds = errors.bounded(graph, dict(zip(made.names, given, strict=True)), dtype)
    error, tolerance = errors.worst(results, bounds)
    return None if error <= tolerance else f"off by {error}, {tolerance} is allowed"


# ------------------------------------------------------------------------------------------------------- right results


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 3, 4, 127, 128, 1024, 1025, 4096, 4100, 20_000])
def test_rows_of_every_length(rule, n):
    assert fault(softmax, normal(3, n), rule=rule) is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_examples(rule, dtype):
    for shape in ((2, 3, 40), (9, 7), (1, 5)):
        x, b, mask = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype), normal(*shape[:-1], 1, dtype=dtype)
        assert fault(gelu_with_mask, x, b, mask, rule=rule) is None
        assert fault(layer_norm, x, b, b + 1, rule=rule) is None
        numbers = 1e-3, 0.9, 0.999, 1e-8, 0.01, 0.1, 0.001
        assert fault(adamw, x, x + 1, x - 1, x * x, *numbers, rule=rule) is None


def test_a_number_is_rounded_when_it_is_passed():
    """Here all that is left of it is that rounding."""
    assert fault(lambda x, a: x + a, np.float32([[-(2.0**24)]]), 2.0**24 + 1) is None


EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "y", "row", "column", "number", 0.5, -2.0]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["exp", "tanh", "negative", "absolute", "sqrt", "log"]), inner),
        st.tuples(st.sampled_from(["sum", "max", "mean"]), inner),
        st.tuples(
            st.sampled_from(["add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "power"]),
            inner,
            inner,
        ),
        st.tuples(st.just("where"), inner, inner, inner),
    ),
    max_leaves=12,
)


def evaluate(expression, values):
    """An expression that hypothesis drew, with NumPy's functions. What has no row is reduced with ``x``."""
    if not isinstance(expression, tuple):
        return values.get(expression, expression)
    op, *operands = expression
    operands = [evaluate(one, values) for one in operands]
    if op in ("sum", "max", "mean"):
        whole = operands[0] + 0 * values["x"]
        return getattr(np, "amax" if op == "max" else op)(whole, axis=-1, keepdims=True)
    if all(isinstance(one, float) for one in operands):
        operands[0] = operands[0] + 0 * values["x"]
    if op in ("sqrt", "log", "power"):
        operands[0] = np.absolute(operands[0]) + 0.5
    return getattr(np, op)(*operands)


@settings(max_examples=40)
@given(
    expressions=st.lists(EXPRESSIONS, min_size=1, max_size=2),
    rows=st.integers(0, 5),
    n=st.sampled_from([1, 2, 4, 33, 64, 132]),
    rule=st.sampled_from(RULES),
)
def test_expressions(expressions, rows, n, rule):
    def function(x, y, row, column, number):
        values = {"x": x, "y": y, "row": row, "column": column, "number": number}
        results = tuple(evaluate(one, values) + 0 * column for one in expressions)
        return results if len(results) > 1 else results[0]

    assert fault(function, normal(rows, n), normal(rows, n), normal(n), normal(rows, 1), 0.75, rule=rule) is None


def test_what_is_not_finite():
    x = np.float32([[np.inf, 1, -np.inf, 0], [np.nan, 1, 2, 3], [-np.inf] * 4])
    results = fuse(lambda x: (np.amax(x, axis=-1, keepdims=True), np.maximum(x, 1.0), np.minimum(x, 1.0), -x))(x)
    for got, right in zip(results, (x.max(-1, keepdims=True), np.maximum(x, 1), np.minimum(x, 1), -x), strict=True):
        np.testing.assert_array_equal(got.copy_to_host(), right)
    assert np.isnan(fuse(softmax)(x).copy_to_host()[1]).all()


def test_a_number_may_change_from_call_to_call():
    scaled = fuse(lambda x, a: x * a)
    first, second = (scaled(np.float32([1, 2]), a).copy_to_host().tolist() for a in (2, 3.5))
    assert (first, second) == ([2, 4], [3.5, 7])
    assert scaled.program(np.float32([1, 2]), 2) is scaled.program(np.float32([1, 2]), 3)


def test_in_place_where_it_is_one_kernel():
    x = device.to_device(normal(4, 40))
    assert fuse(softmax)(x, out=x) is x
    np.testing.assert_allclose(x.copy_to_host().sum(1), 1, rtol=1e-6)
    with pytest.raises(ValueError, match="out must share no memory with x"):
        fuse(softmax, rule=alone)(x, out=x)


def test_arrays_that_are_not_aligned_are_read_one_by_one():
    x, out = device.to_device(normal(41)), device.to_device(normal(41))
    result = fuse(lambda x: x * 2.0)(x[1:], out=out[1:])
    np.testing.assert_array_equal(result.copy_to_host(), x.copy_to_host()[1:] * 2)


@pytest.mark.parametrize("name", ["i", "lane", "v2", "x_0", "math", "out", "ONE", "t3", "size"])
def test_any_name_of_an_argument_works(name):
    scope = {"np": np}
    exec(f"def f({name}, y):\n    return np.exp({name}) / np.sum({name} + y, axis=-1, keepdims=True)", scope)
    assert fault(scope["f"], abs(normal(3, 8)) + 1, abs(normal(3, 8))) is None


# -------------------------------------------------------------------------------------------------- kernels and bytes


@pytest.mark.parametrize(
    ("function", "shapes", "kernels"),
    [
        (softmax, [(8, 64)], (1, 4, 5)),
        (gelu_with_mask, [(8, 64), (64,), (8, 64)], (1, 1, 11)),
        (layer_norm, [(8, 64), (64,), (64,)], (1, 4, 11)),
        (chain(3), [(8, 64)], (1, 1, 6)),
        (lambda x, w: x * (w / np.sum(w * w, axis=-1, keepdims=True)), [(8, 64), (64,)], (2, 3, 4)),
    ],
)
def test_how_many_kernels(function, shapes, kernels):
    arguments = [normal(*shape) for shape in shapes]
    arguments += [0.5] * (len(fuse(function).names) - len(arguments))
    assert tuple(len(fuse(function, rule=rule).program(*arguments).parts) for rule in RULES) == kernels


@pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [4, 1024])
def test_bytes_are_what_the_interpreter_counts(rule, n):
    x, w = normal(64, n), normal(n)
    made = fuse(layer_norm, rule=rule)
    program = made.program(x, w, w)
    _, reports = observe(made, x, w, w)
    # A row's weights, and a number of each row, are read by everybody who needs them: the cache has them.
    large = sum(4 * x.size * [v.shape for v in (*one.loads, *one.targets)].count(x.shape) for one in program.written)
    moved = sum(total(reports, f"global_{way}_bytes") for way in ("load", "store"))
    assert large <= moved
    assert large <= program.nbytes
    if rule is fused:
        assert large == 2 * x.nbytes
        assert moved - large == 2 * x.nbytes  # weight and bias, for each row


def test_one_reads_in_one_pass_what_does_not_depend_on_each_other():
    made = fuse(lambda x: np.sum(x, axis=-1, keepdims=True) / np.amax(x, axis=-1, keepdims=True))
    assert made.program(normal(4, 64)).source.count("load128(x") == 1


def test_common_subexpressions_are_computed_once():
    made = fuse(lambda x: np.exp(x) + np.exp(x) * np.exp(x))
    assert made.program(normal(64)).source.count("math.exp") == 1


def test_the_same_structure_is_compiled_once():
    def scaled(x):
        return x * 2.0

    kernels = [fuse(scaled).program(x).kernels[0] for x in (normal(64), normal(8, 64), normal(64, dtype=np.float64))]
    assert kernels[0] is kernels[1]
    assert kernels[0] is not kernels[2]
    assert len({id(fuse(softmax).program(normal(4, n)).kernels[0]) for n in (64, 64, 128)}) == 2


@pytest.mark.parametrize("n", [7, 64, 1024, 5000, 12_000, 20_000])
def test_every_kernel_compiles(ptx, n):
    for function, arrays in (
        (layer_norm, (normal(2, n), normal(n), normal(n))),
        (softmax, (normal(2, n),)),
        (gelu_with_mask, (normal(2, n), normal(n), normal(2, 1))),
    ):
        # Alone, each operation has a kernel of its own, which does not hold a row: a few lengths tell all.
        for rule in (fused, alone) if n in (7, 64, 20_000) else (fused,):
            program = fuse(function, rule=rule).program(*arrays)
            for kernel, one in zip(program.kernels, program.written, strict=True):
                text = ptx(kernel, *types_of(one))
                assert ".entry" in text
                assert ".f64" not in text
                assert ".local" not in text  # what is held is in registers
                assert ("v4.f32" in text) == ("128(" in one.source)
                assert rule is alone or ("128(" in one.source) == (n % 4 == 0)


def types_of(written, dtype=np.float32):
    arrays = [np.empty(4, dtype) for _ in (*written.loads, *written.targets)]
    return [*arrays[: len(written.loads)], *map(dtype, written.numbers and [1] * len(written.numbers)),
            *arrays[len(written.loads) :], written.extent]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- errors


def refused(function, *given, error=TraceError, match):
    with pytest.raises(error, match=match):
        fuse(function)(*given)


def test_what_cannot_be_traced_is_named():
    x = normal(3, 4)
    refused(lambda x: x if x > 0 else -x, x, match="the truth of .* greater.*np.where")
    refused(lambda x: max(x, 0), x, match="the truth")
    refused(lambda x: x[0], x, match="a part of .*pass the part as an argument")
    refused(lambda x: float(x) * x, x, match="the number of")
    refused(lambda x: sum(x), x, match="an element of")
    refused(lambda x: np.asarray(x) + 1, x, match="the array of")
    refused(lambda x: np.sin(x), x, match="np.sin cannot be traced; what can be: add, ")
    refused(lambda x: np.add.reduce(x), x, match=r"np.add.reduce cannot be traced")
    refused(lambda x: np.sort(x), x, match="np.sort cannot be traced")
    refused(lambda x: x + np.ones(4), x, match=r"add: numpy.ndarray cannot be traced; an array must be an argument")
    refused(lambda x: x + 1j, x, match="complex cannot be traced")
    refused(lambda x: x.sum(), x, match="sum must go along the last axis and keep it: .* had axis=None, keepdims=False")
    refused(lambda x: x.sum(0, keepdims=True), x, match="had axis=0")
    refused(lambda x: 3.0, x, match="must return arrays that it computes from its arguments, returned 3.0")
    refused(lambda x, a: a * 2, x, 1.0, match="must return arrays")

    def in_place(x):
        x += 1
        return x

    refused(in_place, x, match=r"in_place: np.add into an array, as in x \+= y, cannot be traced: write x = x \+ y")


def test_arguments_are_named():
    x = normal(3, 4)
    refused(lambda x, y: x + y, x, normal(5), error=ValueError, match=r"add: the shapes \(3, 4\) and \(5,\) do not")
    refused(lambda x, y: x + y, x, x.astype(np.float64), error=TypeError, match="y must be float32, was float64, the d")
    refused(lambda x: x + 1, x.astype(np.int32), error=TypeError, match="x must be float32 or float64, was int32")
    refused(lambda x: x + 1, x.T, error=ValueError, match="x must be contiguous in C order")
    refused(lambda x, a: x * a, x, "2", error=TypeError, match="a must be")
    refused(lambda a: a * 2, 3.0, error=TypeError, match="needs at least one array")
    refused(lambda x, y: x + y, x, error=TypeError, match="takes x, y, had 1 argument")
    refused(lambda x: x.max(-1, keepdims=True), normal(3, 0), error=ValueError, match="max of no elements")
    repeated = normal(2, 1, 4)
    refused(lambda x, y: x + y, normal(2, 3, 4), repeated, error=ValueError, match=r"y.* is repeated along some")
    with pytest.raises(TypeError, match="out must be a device array"):
        fuse(softmax)(x, out=x)
    with pytest.raises(ValueError, match="out must have 1 arrays, had 2"):
        fuse(softmax)(x, out=(device.to_device(x), device.to_device(x)))


@pytest.mark.skipif(device.on_gpu(), reason="the interpreter's message")
def test_the_interpreter_names_the_line_of_the_source():
    program = fuse(lambda x: np.exp(x) * 2.0).program(normal(64))
    kernel, one = program.kernels[0], program.written[0]
    with pytest.raises(simt.OutOfBoundsError) as caught:
        kernel[one.grid, one.block](device.to_device(normal(64)), device.to_device(normal(8)), one.extent)
    file = kernel.py_func.__code__.co_filename
    line = next(n for n, text in enumerate(linecache.getlines(file), 1) if "store128(out" in text)
    assert f"{file}:{line}" in str(caught.value)


# -------------------------------------------------------------------------------------------- compilers that are wrong


def one_kernel(graph):
    """All in one kernel over the largest space: also reductions over another space."""
    return [Part(max((value.shape for value in graph.results), key=math.prod), tuple(graph.results))]


def test_a_reduction_over_another_space_is_not_fused():
    """A row of this kernel is not what the sum goes over."""

    def function(x, w):
        return x + np.sum(w, axis=-1, keepdims=True)

    given = normal(8, 64), normal(8, 1)
    assert fault(function, *given) is None

    with pytest.raises(
        ValueError, match=r"sum\(%1\), shape \(8, 1\) goes over \(8, 1\): not in a kernel over \(8, 64\)"
    ):
        fault(function, *given, rule=one_kernel)
    with pytest.raises(ValueError, match=r"shape \(1,\) goes over \(64,\): not in a kernel over \(8, 64\)"):
        fault(function, normal(8, 64), normal(64), rule=one_kernel)
    with pytest.raises(ValueError, match=r"shape \(64,\) cannot be written by a kernel over \(8, 64\)"):
        fault(lambda x, w: (x + w, w * 2.0), normal(8, 64), normal(64), rule=one_kernel)


class OnePass(source.Writer):
    """Takes all reductions for independent: it fuses across a reduction."""

    def _phases(self):
        phase, shared = super()._phases()
        return {value: min(at, 1) for value, at in phase.items()}, shared


class NoBarrier(source.Writer):
    """Threads do not tell each other what they found."""

    def _agree(self, ending):
        pass


class NoMaximum(source.Writer):
    """A maximum begins at 0."""

    def _pass(self, ending, *rest):
        self.lines = [line.replace("LEAST", "ZERO") for line in self.lines]
        super()._pass(ending, *rest)


class NoEnd(source.Writer):
    """A row's last vectors are not guarded."""

    def _team(self):
        super()._team()
        self.n, self.whole = round(self.n / 128 + 0.5) * 128, self.n


def centred_maximum(x):
    return x - np.amax(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("writer", "function", "n"),
    [(OnePass, layer_norm, 64), (NoBarrier, layer_norm, 64), (NoMaximum, centred_maximum, 64), (NoEnd, softmax, 36)],
)
def test_a_wrong_compiler_is_found(writer, function, n, monkeypatch):
    monkeypatch.setattr(compiled, "Writer", writer)
    given = [-1 - abs(normal(4, n)), *[normal(n)] * (len(fuse(function).names) - 1)]
    try:
        found = fault(function, *given)
    except Exception as error:  # what a compiler refuses, each in words of its own
        found = str(error)
    assert found
