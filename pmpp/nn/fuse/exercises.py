"""Checks of the exercises of chapter 91. Each says what is wrong, and with what."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from unittest import mock

import numpy as np

from pmpp.nn.fuse import errors
from pmpp.nn.fuse.compiled import fuse
from pmpp.nn.fuse.examples import gelu_with_mask, layer_norm, softmax
from pmpp.nn.fuse.group import Part, alone, fused, space_of
from pmpp.nn.fuse.tracing import OPERATIONS, REDUCTIONS, Graph, TraceError, ancestors, trace


class Said(typing.NamedTuple):
    """What a check says of an answer."""

    right: bool
    words: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return f"{'Right' if self.right else 'Not yet'}: {self.words}"


# ------------------------------------------------------------------------------------------------------ an operation


def sign(values):
    return np.sign(values)


def check_operation(line: str) -> Said:
    """Check the line of source that computes ``np.sign`` of ``{0}``: 1, -1, or the element itself if it is 0 or NaN."""
    if not isinstance(line, str):
        return Said(False, f"the line must be a string, was {type(line).__name__}")
    for dtype in (np.float32, np.float64):
        x = np.array([2, -2, 0.25, -1e-30, 0, -0.0, np.inf, -np.inf, np.nan, 1], dtype)
        with mock.patch.dict(OPERATIONS, sign=line):
            try:
                results = [fuse(sign)(part).copy_to_host() for part in (x, x[:7])]
            except Exception as error:  # whatever the reader's line makes Python or a kernel say
                return Said(False, f"with {dtype.__name__} the kernel cannot run: {error}")
        for one, got in zip(x, results[0], strict=True):
            right = np.sign(one)
            if not np.array_equal(got, right, equal_nan=True):
                return Said(False, f"sign({one}) must be {right}, was {got}")
        if not np.array_equal(results[1], np.sign(x[:7])):
            return Said(False, "with 7 elements the result is wrong, with 10 it is right")
    return Said(True, "all numbers, both infinities and NaN, in both dtypes")


# ------------------------------------------------------------------------------------------------------------ a rule


def _two(x, w):
    squares = np.sum(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(squares) * w, squares


TRIED = {softmax: [(4, 64)], layer_norm: [(4, 40), (40,), (40,)], gelu_with_mask: [(4, 64), (64,), (4, 1)],
         _two: [(6, 36), (36,)]}  # fmt: skip


def check_rule(rule: Callable[[Graph], list[Part]]) -> Said:
    """Check a rule with which every reduction ends a kernel: what comes before is fused into it, nothing after it."""
    for function, shapes in TRIED.items():
        name = function.__name__.strip("_")
        made = fuse(function, rule=rule)
        graph = trace(function, made.names, shapes)
        try:
            parts = rule(graph)
            if not isinstance(parts, Iterable):
                return Said(False, f"{name}: a rule returns a list of Part, returned {type(parts).__name__}")
            parts = list(parts)
        except TraceError:
            how = "values are compared with `is`, or looked up in set(graph.results)"
            return Said(False, f"{name}: {how}: == of two values is itself an operation, which is traced")
        except Exception as error:
            return Said(False, f"{name}: the rule raises {type(error).__name__}: {error}")
        if fault := _fault(graph, parts):
            return Said(False, f"{name}: {fault}")
        rng = np.random.default_rng(0)
        given = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
        try:
            results = made(*given)
        except Exception as error:
            return Said(False, f"{name}: {error}")
        results = [one.copy_to_host() for one in (results if isinstance(results, tuple) else [results])]
        error, tolerance = errors.worst(results, errors.bounded(graph, dict(zip(made.names, given, strict=True))))
        if not error <= tolerance:
            return Said(False, f"{name}: a result is off by {error:.2g}, and {tolerance:.2g} is allowed")
    return Said(True, f"{', '.join(one.__name__.strip('_') for one in TRIED)}: as few kernels as the rule allows")


def _fault(graph: Graph, parts: list) -> str:
    """What is wrong with the parts, before anything runs."""
    for part in parts:
        if not isinstance(part, Part):
            return f"a rule returns a list of Part, had {type(part).__name__}"
        if not isinstance(part.targets, tuple | list):
            return f"the targets of a Part are a tuple, was {part.targets!r}: write (value,)"
    written = [value for part in parts for value in part.targets]
    for value in graph.results:
        if value not in set(written):
            return f"no kernel writes the result {value!r}"
    stored: set = set()
    for part in parts:
        targets = set(part.targets)
        if again := targets & stored:
            return f"{min(again, key=lambda value: value.number)!r} is written twice"
        body = ancestors(part.targets, lambda value, stored=stored - targets: value in stored)
        for value in body:
            if value.op in REDUCTIONS and value not in targets and value not in stored:
                late = value in set(written)
                return f"a kernel goes on after {value!r}{': the kernel that writes it comes later' if late else ''}"
            if value.op in REDUCTIONS and value in targets and space_of(value) != part.space:
                return f"{value!r} goes over {space_of(value)}, and its kernel over {part.space}"
        ends = {value for value in targets if value.op in REDUCTIONS}
        after = [value for value in body if value.op in OPERATIONS and ends & set(value.operands)]
        if after:
            return f"a kernel goes on after its reduction, with {after[0]!r}"
        stored |= targets
    needed = {value for value in ancestors(graph.results) if value.op in REDUCTIONS} | set(graph.results)
    if more := set(written) - needed:
        first = min(more, key=lambda value: value.number)
        return f"{len(parts)} kernels; {first!r} need not be in memory: who needs it can compute it"
    return ""


# ------------------------------------------------------------------------------------------------------------- bytes


def rms_norm(x, w):
    """Each row divided by the root of the mean of its squares, and scaled column by column.

    Source: B. Zhang and R. Sennrich, Root Mean Square Layer Normalization (2019).
    """
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w


def check_bytes(answer: Callable[[int, int], tuple[int, int]]) -> Said:
    """Check a function of rows and columns: the bytes of `rms_norm` as one kernel, and with a kernel an operation."""
    for rows, n in ((7, 64), (1000, 768), (3, 20)):
        arrays = np.ones((rows, n), np.float32), np.ones(n, np.float32)
        truth = [fuse(rms_norm, rule=rule).program(*arrays).nbytes for rule in (fused, alone)]
        try:
            given = [int(one) if int(one) == one else float(one) for one in answer(rows, n)]
        except Exception as error:
            return Said(False, f"answer({rows}, {n}) must return two numbers: {error}")
        if len(given) != 2:
            return Said(False, f"answer({rows}, {n}) must return two numbers, returned {len(given)}")
        small = {"the weights": 4 * n, "the numbers of each row": 32 * rows, "the reading of x": 4 * rows * n}
        small["the repetitions of the weights, which are read once"] = -4 * n * (rows - 1)
        if given == truth[::-1]:
            return Said(False, "the two numbers are in the other order: as one kernel comes first")
        for kind, got, right in zip(("as one kernel", "with a kernel an operation"), given, truth, strict=True):
            if got == right:
                continue
            if 4 * got == right:
                return Said(False, f"{kind}: these are elements, not bytes, for {rows} rows of {n}")
            if got == 2 * right:
                return Said(False, f"{kind}: these are twice the bytes: a float32 has 4, for {rows} rows of {n}")
            missing = next((words for words, size in small.items() if size == right - got), None)
            large, rest = divmod(right - got, 4 * rows * n)
            if missing is None and rest == 0:
                count = f"{abs(large)} too {'few' if large > 0 else 'many'}"
                missing = f"the arrays like x, {count}: each kernel reads or writes an array once"
            elif missing is None and (right - got) % (4 * rows) == 0 and abs(right - got) <= 32 * rows:
                missing = "the numbers of each row"
            about = f": look at {missing}" if missing else ""
            return Said(False, f"{kind}, {rows} rows of {n}: {right - got:+,} bytes from {got:,} to the truth{about}")
    return Said(True, f"1,000 rows of 768 move {truth_of(1000, 768)}")


def truth_of(rows: int, n: int) -> str:
    """The bytes of `rms_norm`, in words."""
    arrays = np.ones((rows, n), np.float32), np.ones(n, np.float32)
    found = [fuse(rms_norm, rule=rule).program(*arrays).nbytes for rule in (fused, alone)]
    return f"{found[0]:,} bytes fused and {found[1]:,} bytes otherwise"
