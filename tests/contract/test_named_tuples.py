"""Names are free: a kernel that takes a NamedTuple compiles to the PTX of its twin with numbers in plain tuples."""

import re
import sys
import typing

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.rooms import rooms, subject_of
from pmpp.runtime import device
from pmpp.runtime.rung import room_name
from tests.contract.test_kernels import launches
from tests.support.compiled import OLDEST, reached_by
from tests.support.numbered import has_names, shape_of, twin_of

SUBJECTS = {}
for room in rooms():
    SUBJECTS.setdefault(subject_of(room), []).append(room)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="sees what the interpreter is asked to launch")


LONG = 4000  # bytes of code


def with_named_tuples(rooms_of):
    """Of the kernels that the rooms launch with a NamedTuple the shortest, and the types of that launch; or None."""
    found = [
        (kernel, kinds)
        for room in rooms_of
        for kernel, signatures in launches(room_name(room)).items()
        for kinds in signatures
        if any(has_names(shape_of(kind)) for kind in kinds)
    ]
    return min(found, key=lambda launch: length_of(launch[0]), default=None)


def length_of(kernel):
    """The bytes of code that are compiled: those of the kernel and of what it calls. Time to compile grows with it."""
    return sum(len(function.__code__.co_code) for function in reached_by(kernel))


def without_symbols(text):
    """PTX with its symbols numbered as they come, because their names tell the types of arguments.

    Numba declares a global for each function that it has compiled, used or not. Those are left out: to make a
    NamedTuple is to call a function, and to make a plain tuple is not.
    """
    numbers = {}
    lines = [line for line in text.splitlines() if not re.match(r"\.common .*NumbaEnv", line)]
    symbol = re.compile(r"\b_(?:Z|cudapy)[\w$]+")
    return symbol.sub(lambda one: numbers.setdefault(one.group(), f"symbol{len(numbers)}"), "\n".join(lines))


def both(ptx, kernel, *arguments):
    """The PTX of the kernel and that of its twin, for the oldest GPU that has the kernel's instructions."""
    twin, kinds, replaced = twin_of(kernel, *arguments)
    assert replaced
    oldest = getattr(sys.modules[kernel.__module__], "CAPABILITY", OLDEST)
    return without_symbols(ptx(kernel, *arguments, cc=oldest)), without_symbols(ptx(twin, *kinds, cc=oldest))


@pytest.mark.parametrize("subject", SUBJECTS)
@interpreter_only
def test_names_are_free(subject, ptx):
    """One kernel a subject: it is a claim about Numba, not about each kernel. So the one that compiles fastest."""
    found = with_named_tuples(SUBJECTS[subject])
    if found is None:
        pytest.skip("no kernel of this subject takes a NamedTuple")
    kernel, kinds = found
    if length_of(kernel) > LONG:
        pytest.skip("each kernel of this subject that takes one compiles for seconds")
    named, numbered = both(ptx, kernel, *kinds)
    assert named == numbered


class Part(typing.NamedTuple):
    first: int
    last: int


class Whole(typing.NamedTuple):
    part: Part
    out: typing.Any


@cuda.jit(device=True)
def length(part):
    return part.last - part.first


@cuda.jit
def lengths_kernel(whole, n):
    part = whole.part
    for i in range(n):
        whole.out[i] = length(part) + length(Part(part.first, n))


@cuda.jit
def other_way_round_kernel(whole, n):
    part = Part(whole.part.last, whole.part.first)
    for i in range(n):
        whole.out[i] = length(part) + length(Part(part.first, n))


def test_a_twin_has_no_names_and_a_difference_is_seen(ptx):
    whole = Whole(Part(1, 5), np.zeros(4))
    named, numbered = both(ptx, lengths_kernel, whole, 4)
    assert named == numbered
    assert without_symbols(ptx(other_way_round_kernel, whole, 4)) != named
    twin, _, replaced = twin_of(lengths_kernel, whole, 4)
    assert replaced == 5  # part, out, first; and in `length`, of which one twin serves both calls, last and first
    assert not {"part", "out", "first", "last", "Part"} & set(twin.py_func.__code__.co_names)
