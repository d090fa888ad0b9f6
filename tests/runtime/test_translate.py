"""Numba's errors gain a note in plain words; every kernel that the interpreter refuses is refused by Numba, too."""

from typing import NamedTuple

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime import translate
from pmpp.simt import cuda
from tests.simt.test_refusals import REFUSED, line_of


@cuda.jit
def adds_arrays(x, out):
    out[0] = x + 1


@cuda.jit
def on_a_branch(x, out):
    if x[0] > 0:
        out[0] = x.copy()


@cuda.jit
def too_much_shared(x, out):
    s = cuda.shared.array((128, 128), np.float32)
    s[0, 0] = x[0]
    out[0] = s[0, 0]


@cuda.jit
def fine(x, out):
    s = cuda.shared.array(4, np.float32)
    s[0] = x[0]
    out[0] = s[0] if x[0] > 0 else x[1]


class Pair(NamedTuple):
    x: np.ndarray
    scale: float


class PairType:
    """What Numba's type of a `Pair` is like."""

    instance_class = Pair
    types = (np.zeros(4, np.float32), np.float32(1))


@cuda.jit
def takes_a_named_tuple(pair, out):
    out[0] = pair.x[0] * pair.scale


FLOATS = np.zeros(4, np.float32)


@pytest.mark.parametrize("kernel, fragment", [(adds_arrays, "x + 1"), (on_a_branch, "copy"), (too_much_shared, "(128")])
def test_a_refusal_is_found_without_running(kernel, fragment):
    refused = simt.refusal(kernel, (FLOATS, FLOATS))
    assert f":{line_of(kernel, fragment)}:" in str(refused)


@pytest.mark.parametrize("kernel, fragment", REFUSED, ids=[k.py_func.__name__ for k, _ in REFUSED])
def test_the_refusal_is_what_a_launch_would_say(kernel, fragment):
    x = np.zeros(4, np.int64)
    with pytest.raises(simt.SimtError) as caught:
        kernel[1, 1](x)
    assert str(simt.refusal(kernel, (x,))) == str(caught.value)


@pytest.mark.parametrize("grid, block, sharedmem, fragment", [
    (1, 2048, 0, "2048"), (1, (32, 64), 0, "2048 threads"), (0, 32, 0, "grid is 0"), (1, 32, 250_000, "250,000"),
])  # fmt: skip
def test_impossible_launches_are_refusals(grid, block, sharedmem, fragment):
    assert fragment in str(simt.refusal(fine, (FLOATS, FLOATS), grid, block, sharedmem=sharedmem))


def test_a_wrong_number_of_arguments_is_one():
    assert str(simt.refusal(fine, (FLOATS,))) == "fine() takes 2 arguments (x, out), but 1 were given"


def test_a_good_kernel_is_not_refused_and_not_run():
    out = np.full(4, 7, np.float32)
    assert simt.refusal(fine, (FLOATS, out), 10, 128) is None
    assert (out == 7).all()


@pytest.mark.parametrize("pair", [Pair(FLOATS, np.float32(1)), PairType()])
def test_a_named_tuple_keeps_its_names(pair):
    assert simt.refusal(takes_a_named_tuple, (pair, FLOATS)) is None


class Dispatcher:
    """What numba-cuda's dispatcher does when it fails."""

    def __init__(self, kernel, error):
        self.py_func, self.error = kernel.py_func, error

    def compile(self, sig):
        raise self.error

    def call(self, args, launch_config):
        return self.compile(args) if isinstance(self.error, TypeError) else self._fail()

    def _fail(self):
        raise self.error


class Launch:
    griddim, blockdim, sharedmem = (4, 1, 1), (64, 1, 1), 0


@pytest.fixture
def dispatcher():
    kind = type("Patched", (Dispatcher,), {"compile": Dispatcher.compile, "call": Dispatcher.call})
    translate.install(kind)
    translate.install(kind)  # twice is once
    return kind


def notes(made, launch=Launch):
    with pytest.raises(type(made.error)) as caught:
        made.call((FLOATS, FLOATS), launch)
    assert caught.value is made.error
    return getattr(caught.value, "__notes__", [])


def test_a_compile_error_keeps_its_type_and_gains_one_note(dispatcher):
    (note,) = notes(dispatcher(adds_arrays, TypeError("No implementation of function Function(<built-in add>)")))
    assert note == f"In plain words: {simt.refusal(adds_arrays, (FLOATS, FLOATS))}"
    assert f":{line_of(adds_arrays, 'x + 1')}:" in note


def test_a_launch_error_is_explained_by_its_configuration(dispatcher):
    launch = type("Big", (Launch,), {"blockdim": (64, 32, 1)})
    (note,) = notes(
        dispatcher(fine, RuntimeError("Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE")), launch
    )
    assert "2048 threads" in note


@pytest.mark.parametrize("code, fragment", [
    ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "registers a thread"),
    ("CUDA_ERROR_ILLEGAL_ADDRESS", "PMPP_BACKEND=simt"),
    ("CUDA_ERROR_MISALIGNED_ADDRESS", "multiple of 16 bytes"),
])  # fmt: skip
def test_what_the_driver_says_is_explained(dispatcher, code, fragment):
    (note,) = notes(dispatcher(fine, RuntimeError(f"Call to cuLaunchKernel results in {code}")))
    assert fragment in note


def test_what_cannot_be_explained_is_left_alone(dispatcher):
    assert notes(dispatcher(fine, RuntimeError("the moon is in the wrong phase"))) == []


@pytest.mark.parametrize("kernel, fragment", REFUSED, ids=[k.py_func.__name__ for k, _ in REFUSED])
def test_numba_refuses_what_the_interpreter_refuses(kernel, fragment, ptx):
    x = np.zeros(4, np.int64)
    with pytest.raises(Exception) as caught:  # noqa: PT011 its kinds are many: that is why it is translated
        ptx(kernel, x)
    assert "driver" not in str(caught.value)
    assert f":{line_of(kernel, fragment)}:" in translate.explain(caught.value, kernel.py_func, (x,))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel, fragment", REFUSED, ids=[k.py_func.__name__ for k, _ in REFUSED])
def test_on_a_gpu_the_error_carries_the_note(kernel, fragment):
    from pmpp import cuda as gpu

    py_func = kernel.py_func
    scope = {**py_func.__globals__, "cuda": gpu}
    copy = type(py_func)(py_func.__code__, scope, py_func.__name__, py_func.__defaults__, py_func.__closure__)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        gpu.jit(copy)[1, 1](np.zeros(4, np.int64))
    assert any(f":{line_of(kernel, fragment)}:" in note for note in caught.value.__notes__)
