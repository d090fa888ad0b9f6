"""Tensor maps among a kernel's parameters: copies by them, what Numba emits, and what is refused."""

import inspect
import re

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_init,
    mbarrier_wait,
    tensor_map,
    wait_stores,
)
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch, soon
from pmpp.simt.values.errors import SimtError
from tests.runtime.test_hopper import HOPPER, MAP, hopper_only, numba_error

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")


@cuda.jit
def copied(words, row):
    """A box of the first map's matrix goes into that of the second."""
    box, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    maps, t = maps_of_launch(words), cuda.threadIdx.x
    if t == 0:
        soon(maps, 16)
        mbarrier_init(full, 0, 1)
        expect_bytes(full, 0, 8192)
        bulk_tile(box, 0, maps, 0, row, 0, full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, np.uint32(0))
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        bulk_store(maps, 16, 0, 0, box, 0)
        commit_stores()
        wait_stores(0)


@hopper_only
@pytest.mark.parametrize("row", [0, 64])
def test_the_engine_finds_each_map(row):
    x = np.arange(128 * 64, dtype=np.uint16).reshape(128, 64)
    source, target = device.to_device(x), device.to_device(np.zeros((64, 64), np.uint16))
    copied[1, 32](launch_words(tensor_map(source, 64, 64), tensor_map(target, 64, 64)), np.int64(row))
    np.testing.assert_array_equal(device.to_host(target), x[row : row + 64])


def test_the_maps_are_the_first_parameters(ptx):
    text = ptx(copied, launch_words(MAP, MAP), np.int64(0), cc=HOPPER)
    name = re.search(r"\.entry (\w+)\(", text)[1]
    (first,) = re.findall(r"mov\.b64 p, (\w+); cvta\.param\.u64", text)
    assert first == f"{name}_param_0"
    assert re.search(rf"\.param \.u64 {first},\s*\.param \.u64 {name}_param_1,", text)
    assert re.findall(r"\S*tensormap\S*", text) == ["prefetch.tensormap"]  # nothing is copied: no fence is needed


@cuda.jit
def first_word(words, out):
    out[0] = maps_of_launch(words)[0]


@cuda.jit
def of_floats(x):
    soon(x, 0)


def test_other_words_are_refused(ptx):
    words, out = MAP, np.zeros(1, np.uint64)
    said = numba_error(ptx, first_word, words, out)
    assert "maps_of_launch: words must be what launch_words gives" in said
    assert "soon: maps and j must be an array of uint64" in numba_error(ptx, of_floats, np.zeros(1, np.float32))
    said = numba_error(ptx, first_word, launch_words(MAP), out, cc=(8, 0))
    assert "maps_of_launch needs a GPU of compute capability 9.0" in said


@interpreter_only
def test_other_words_are_refused_by_the_interpreter():
    with pytest.raises(SimtError, match="maps_of_launch: words must be what launch_words gives"):
        first_word[1, 1](MAP, np.zeros(1, np.uint64))


@cuda.jit
def first_word_of_the_second(out, words):
    out[0] = maps_of_launch(words)[0]


@cuda.jit
def first_word_of_another(words, other, out, mended):
    given = words
    if not mended:
        given = other
    out[0] = maps_of_launch(given)[0]


@cuda.jit(device=True)
def word_of_device_function(words):
    return maps_of_launch(words)[0]


@cuda.jit
def first_word_by_a_device_function(words, out):
    out[0] = word_of_device_function(words)


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(getattr(kernel, "py_func", kernel))
    return next(first + k for k, line in enumerate(lines) if text in line)


@interpreter_only
def test_words_that_are_not_the_first_argument_are_refused():
    """Numba's twin takes the first parameter of the function that it stands in, whatever is given."""
    words, other, out = launch_words(MAP), launch_words(MAP[::-1]), np.zeros(1, np.uint64)
    line = line_of(first_word_of_the_second, "maps_of_launch")
    why = "maps_of_launch: words must be the first argument of first_word_of_the_second, out, was words: a GPU takes"
    with pytest.raises(SimtError, match=rf":{line}: .*{why}"):
        first_word_of_the_second[1, 1](out, words)
    line = line_of(first_word_of_another, "maps_of_launch")
    with pytest.raises(SimtError, match=rf":{line}: .*first argument of first_word_of_another, words, was given"):
        first_word_of_another[1, 1](words, other, out, False)
    first_word_of_another[1, 1](words, other, out, True)
    first_word[1, 1](words, out)
    with pytest.raises(SimtError, match="maps_of_launch: call it in the kernel itself"):
        first_word_by_a_device_function[1, 1](words, out)
