"""The checks of chapter 91's exercises find wrong answers for their reason, and take right ones that look different."""

import pytest

from pmpp.nn.fuse import Part, alone, elementwise_only, fused
from pmpp.nn.fuse.exercises import check_bytes, check_operation, check_rule
from pmpp.nn.fuse.group import operations, space_of
from pmpp.nn.fuse.tracing import REDUCTIONS
from pmpp.runtime import device


@pytest.mark.parametrize(
    "line",
    [
        "ONE if {0} > ZERO else -ONE if {0} < ZERO else {0}",
        "-ONE if {0} < ZERO else (ONE if ZERO < {0} else {0} + ZERO)",
        "{0} if {0} == ZERO or {0} != {0} else math.copysign(ONE, {0})",
    ],
)
def test_right_operations(line):
    assert check_operation(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ONE if {0} > ZERO else -ONE", r"sign\(0.0\) must be 0.0, was -1.0"),
        ("math.copysign(ONE, {0})", r"sign\(0.0\) must be 0.0, was 1.0"),
        ("{0} / abs({0})", r"sign\(0.0\) must be 0.0, was nan"),
        ("ONE if {0} > ZERO else -ONE if {0} < ZERO else ZERO", r"sign\(nan\) must be nan, was 0.0"),
        ("-ONE if {0} > ZERO else ONE if {0} < ZERO else {0}", r"sign\(2.0\) must be 1.0, was -1.0"),
        ("np.sgn({0})", "cannot run"),
        ("ONE if {0} >", "cannot run"),
        (
            "ONE if x > ZERO else -ONE if x < ZERO else x",
            "cannot run" if device.on_gpu() else "the name 'x' is not defined",
        ),
        (len, "must be a string"),
    ],
)
def test_wrong_operations(line, words):
    assert words.replace("\\", "") in repr(check_operation(line))


def ends(graph):
    """The answer: what is written is a reduction or a result."""
    kept = [v for v in operations(graph) if v.op in REDUCTIONS or v in set(graph.results)]
    return [Part(space_of(value), (value,)) for value in kept]


def ends_otherwise(graph):
    wanted = dict.fromkeys([*(v for v in graph.values if v.op in REDUCTIONS), *graph.results])
    return [
        Part(v.operands[0].shape if v.op in REDUCTIONS else v.shape, (v,))
        for v in sorted(wanted, key=lambda v: v.number)
    ]


def compares_values(graph):
    return [Part(space_of(v), (v,)) for v in operations(graph) if v.op in REDUCTIONS or v in graph.results]


def ends_in_lists(graph):
    return [Part(part.space, list(part.targets)) for part in ends(graph)]


@pytest.mark.parametrize("rule", [ends, ends_otherwise, ends_in_lists])
def test_right_rules(rule):
    assert check_rule(rule)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (alone, "softmax: 5 kernels; %2 = subtract(%0, %1), shape (4, 64) need not be in memory"),
        (elementwise_only, "softmax: 4 kernels; %3 = exp(%2), shape (4, 64) need not be in memory"),
        (fused, "softmax: a kernel goes on after %1 = max(%0), shape (4, 1)"),
        (lambda graph: ends(graph)[::-1], "the kernel that writes it comes later"),
        (lambda graph: ends(graph)[:-1], "softmax: no kernel writes the result %5"),
        (lambda graph: ends(graph) * 2, "softmax: %1 = max(%0), shape (4, 1) is written twice"),
        (
            lambda graph: [Part(v.shape, (v,)) for p in ends(graph) for v in p.targets],
            "%1 = max(%0), shape (4, 1) goes",
        ),
        (lambda graph: graph.results, "a rule returns a list of Part, had Value"),
        (lambda graph: None, "a rule returns a list of Part, returned NoneType"),
        (compares_values, "values are compared with `is`, or looked up in set(graph.results)"),
        (lambda graph: [Part(v.shape, v) for v in graph.results], "the targets of a Part are a tuple"),
        (lambda graph: 1 / 0, "the rule raises ZeroDivisionError"),
    ],
)
def test_wrong_rules(rule, words):
    assert words in repr(check_rule(rule))


@pytest.mark.parametrize(
    "answer",
    [
        lambda r, n: (8 * r * n + 4 * n, 28 * r * n + 32 * r + 4 * n),
        lambda r, n: [4 * (2 * r * n + n), 4 * (7 * r * n + 8 * r + n)],
    ],
)
def test_right_bytes(answer):
    assert check_bytes(answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda r, n: (8 * r * n, 28 * r * n + 32 * r + 4 * n), "as one kernel, 7 rows of 64: +256 bytes"),
        (lambda r, n: (8 * r * n + 4 * n, 28 * r * n + 4 * n), "look at the numbers of each row"),
        (lambda r, n: (2 * r * n + n, 7 * r * n + 8 * r + n), "these are elements, not bytes"),
        (lambda r, n: (8 * r * n + 4 * n * r, 0), "which are read once"),
        (lambda r, n: (4 * r * n + 4 * n, 0), "look at the reading of x"),
        (lambda r, n: (8 * r * n + 4 * n, 8 * r * n), "with a kernel an operation, 7 rows of 64"),
        (lambda r, n: (12 * r * n + 4 * n, 0), "1 too many: each kernel reads or writes an array once"),
        (lambda r, n: (8 * r * n + 4 * n, 20 * r * n + 32 * r + 4 * n), "the arrays like x, 2 too few"),
        (lambda r, n: (8 * r * n + 4 * n + 4 * r, 0), "look at the numbers of each row"),
        (lambda r, n: (16 * r * n + 8 * n, 0), "these are twice the bytes"),
        (lambda r, n: (28 * r * n + 32 * r + 4 * n, 8 * r * n + 4 * n), "in the other order"),
        (lambda r, n: (8 * r * n + 4 * n + 0.5, 28 * r * n + 32 * r + 4 * n), "-0.5 bytes"),
        (lambda r, n: 3, "must return two numbers"),
        (lambda r, n: (1, 2, 3), "must return two numbers, returned 3"),
    ],
)
def test_wrong_bytes(answer, words):
    assert words in repr(check_bytes(answer))
