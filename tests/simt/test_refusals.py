"""What a kernel may not contain is refused with a sentence and its line, and nothing hangs.

The list is Numba's: each of these kernels was compiled with numba-cuda 0.30.4 and refused there too.
"""

import contextlib
import inspect
import math
import re
import time
import types

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

HOST_LIST = [1, 2, 3]
HOST_DICT = {"a": 1}


def line_of(kernel, fragment):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return first + next(k for k, text in enumerate(lines) if fragment in text)


def names_line(error, line):
    text = str(error)
    return getattr(error, "line", None) == line or f"line {line}" in text or f":{line}" in text


@cuda.jit
def uses_dict(x):
    x[0] = 1
    d = {1: 2}
    x[1] = d[1]


@cuda.jit
def uses_set(x):
    s = {1, 2}
    x[0] = len(s)


@cuda.jit
def uses_list(x):
    values = [1, 2]
    x[0] = values[0]


@cuda.jit
def uses_list_comprehension(x):
    x[0] = [k for k in range(3)][0]  # noqa: C416, RUF015


@cuda.jit
def uses_generator(x):
    x[0] = sum(k for k in range(3))


@cuda.jit
def uses_dict_comprehension(x):
    x[0] = {k: k for k in range(3)}[0]


@cuda.jit
def uses_try(x):
    try:
        x[0] = 1
    except ValueError:
        x[0] = 2


@cuda.jit
def uses_with(x):
    with x:
        x[0] = 1


@cuda.jit
def uses_f_string(x):
    name = f"{x[0]}"
    x[0] = len(name)


@cuda.jit
def uses_str(x):
    x[0] = len(str(x[0]))


@cuda.jit
def uses_yield(x):
    yield x[0]


@cuda.jit
def uses_import(x):
    import math as m

    x[0] = m.sqrt(2.0)


@cuda.jit
def uses_global_statement(x):
    global HOST_LIST  # noqa: PLW0603
    HOST_LIST = x


@cuda.jit
def uses_star(x):
    first, *rest = (1, 2, 3)  # noqa: F841
    x[0] = first


@cuda.jit
def uses_class(x):
    class Point:
        pass

    x[0] = 1


@cuda.jit
def uses_unknown_name(x):
    x[0] = nosuch + 1  # noqa: F821


@cuda.jit
def uses_unknown_attribute(x):
    x[0] = cuda.nosuch


@cuda.jit
def uses_unknown_math(x):
    x[0] = math.comb(4, 2)


@cuda.jit
def uses_array_arithmetic(x):
    y = x + 1
    x[0] = y[0]


@cuda.jit
def uses_array_method(x):
    y = x.copy()
    x[0] = y[0]


@cuda.jit
def uses_array_truth(x):
    if x:
        x[0] = 1


@cuda.jit
def uses_numpy_allocation(x):
    y = np.zeros(4)
    x[0] = y[0]


@cuda.jit
def uses_python_function(x):
    x[0] = open("/dev/null")  # noqa: SIM115


@cuda.jit
def uses_host_dict(x):
    x[0] = HOST_DICT["a"]


@cuda.jit
def uses_sorted(x):
    x[0] = sorted((2, 1))[0]


@cuda.jit
def uses_pow_with_three_arguments(x):
    x[0] = pow(2, 3, 5)


@cuda.jit
def uses_too_many_indices(x):
    x[0, 0] = 1


@cuda.jit
def uses_call_of_a_number(x):
    x[0] = x[0](1)


@cuda.jit
def uses_grid_of_four(x):
    x[0] = cuda.grid(4)


@cuda.jit
def uses_grid_of_a_variable(x):
    n = x.size - x.size + 1
    x[0] = cuda.grid(n)


@cuda.jit
def uses_wrong_unpacking(x):
    a, b = (1, 2, 3)
    x[0] = a + b


@cuda.jit
def uses_matmul(x):
    x[0] = x[0] @ x[0]


@cuda.jit
def loops_over_two_types(x):
    for value in (x[0], np.float32(1)):
        x[1] += value


REFUSED = [
    (uses_dict, "{1: 2}"),
    (loops_over_two_types, "for value"),
    (uses_set, "{1, 2}"),
    (uses_list, "[1, 2]"),
    (uses_list_comprehension, "for k"),
    (uses_generator, "for k"),
    (uses_dict_comprehension, "for k"),
    (uses_try, "try:"),
    (uses_with, "with x"),
    (uses_f_string, "name = "),
    (uses_str, "(str("),
    (uses_yield, "yield x"),
    (uses_import, "import math"),
    (uses_global_statement, "global HOST"),
    (uses_star, "*rest"),
    (uses_class, "class Point"),
    (uses_unknown_name, "nosuch"),
    (uses_unknown_attribute, "cuda.nosuch"),
    (uses_unknown_math, "math.comb"),
    (uses_array_arithmetic, "x + 1"),
    (uses_array_method, "x.copy"),
    (uses_array_truth, "if x"),
    (uses_numpy_allocation, "np.zeros"),
    (uses_python_function, "open("),
    (uses_host_dict, "HOST_DICT"),
    (uses_sorted, "= sorted("),
    (uses_pow_with_three_arguments, "pow("),
    (uses_too_many_indices, "x[0, 0]"),
    (uses_call_of_a_number, "x[0](1)"),
    (uses_grid_of_four, "cuda.grid"),
    (uses_grid_of_a_variable, "cuda.grid"),
    (uses_wrong_unpacking, "a, b ="),
    (uses_matmul, "@ x"),
]


@pytest.mark.parametrize("kernel, fragment", REFUSED, ids=[k.py_func.__name__ for k, _ in REFUSED])
def test_unsupported_python_is_refused_with_its_line(kernel, fragment):
    with pytest.raises(simt.SimtError) as caught:
        kernel[1, 1](np.zeros(4, np.int64))
    assert names_line(caught.value, line_of(kernel, fragment)), str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert caught.value.__class__ is not simt.HazardError


@pytest.mark.parametrize("memory", [cuda.shared, cuda.local], ids=["shared", "local"])
@pytest.mark.parametrize("alignment, refused", [(8, False), (1024, False), (None, False), (0, True), (-8, True),
                                                (4, True), (24, True), (16.0, True), ("16", True)])  # fmt: skip
def test_an_alignment_that_numba_does_not_take_is_refused(memory, alignment, refused):
    array = memory.array

    @cuda.jit
    def kernel(x):
        aligned = array(4, np.float32, alignment=alignment)
        aligned[0] = 1

    with pytest.raises(simt.UnsupportedError, match="the alignment is") if refused else contextlib.nullcontext():
        kernel[1, 1](np.zeros(4))


@cuda.jit
def dictionary_on_a_path_not_taken(x):
    if x[0] > 100:
        d = {1: 2}
        x[1] = d[1]


def test_unsupported_python_is_refused_even_where_it_is_not_reached():
    with pytest.raises(simt.SimtError):
        dictionary_on_a_path_not_taken[1, 1](np.zeros(4))


@cuda.jit(device=True)
def endless(n):
    return endless(n + 1)


@cuda.jit
def calls_endless(x):
    x[0] = endless(0)


def test_endless_recursion_ends_in_a_sentence():
    with pytest.raises(simt.SimtError, match=r"(?i)recurs"):
        calls_endless[1, 1](np.zeros(1))


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit
def calls_fibonacci(out):
    i = cuda.grid(1)
    out[i] = fibonacci(i)


def test_self_recursion_works_lane_by_lane():
    # numba-cuda compiles self-recursion with a base case; the trip count differs in every lane
    out = np.zeros(10, np.int64)
    calls_fibonacci[1, 10](out)
    assert out.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def from_text():
    namespace = {"cuda": cuda}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = 1\n", namespace)
    return namespace["kernel"]


def test_a_kernel_without_source_is_refused_with_a_sentence():
    with pytest.raises(simt.SimtError, match="source"):
        from_text()[1, 1](np.zeros(1))


@cuda.jit
def waits_for_nobody(flag):
    while flag[0] == 0:
        pass


@cuda.jit
def loops_for_ever(out):
    k = 0
    while True:
        k += 1
    out[0] = k


@cuda.jit
def waits_within_a_warp(flag, out):
    t = cuda.threadIdx.x
    if t == 1:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = 5
    if t == 0:
        cuda.atomic.exch(flag, 0, 1)


@cuda.jit
def waits_for_a_later_block(flag, out):
    b = cuda.blockIdx.x
    if b == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = 5
    elif b == 1:
        cuda.atomic.exch(flag, 0, 1)


def stopped(kernel, grid, block, *args):
    """The error that stopped the kernel, or None if it ended; fails if it took long."""
    start = time.monotonic()
    error = None
    try:
        kernel[grid, block](*args)
    except simt.SimtError as caught:
        error = caught
    assert time.monotonic() - start < 60  # not a speed test: a hang is what it looks for
    return error


@pytest.mark.parametrize("kernel, fragment", [(waits_for_nobody, "while"), (loops_for_ever, "while")])
def test_a_kernel_that_spins_for_ever_is_stopped_with_its_line(kernel, fragment):
    with simt.loop_limit(10_000):
        error = stopped(kernel, 1, 32, np.zeros(1, np.int32))
    assert error is not None
    # the header or the body: both tell the reader which loop it is
    line = line_of(kernel, fragment)
    assert names_line(error, line) or names_line(error, line + 1), str(error)


@pytest.mark.parametrize("kernel, grid, block", [(waits_within_a_warp, 1, 32), (waits_for_a_later_block, 2, 32)])
@pytest.mark.parametrize("lanes", [32, 1 << 20])
def test_waiting_for_another_lane_or_block_makes_progress_or_is_refused(kernel, grid, block, lanes):
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with simt.batch_lanes(lanes):
        error = stopped(kernel, grid, block, flag, out)
    assert error is not None or out[0] == 5


@cuda.jit
def look_back(ready, partial, x, out):
    """Each block waits for the running total of the block before it, and publishes its own."""
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        total = 0
        if b > 0:
            while cuda.atomic.add(ready, b - 1, 0) == 0:
                pass
            cuda.threadfence()
            total = partial[b - 1]
        total += x[b]
        partial[b] = total
        cuda.threadfence()
        cuda.atomic.exch(ready, b, 1)
        out[b] = total


@pytest.mark.parametrize("lanes", [32, 1 << 20])
def test_a_single_pass_scan_between_blocks_makes_progress_or_is_refused(lanes):
    x = np.arange(1, 9, dtype=np.int64)
    ready, partial, out = np.zeros(8, np.int32), np.zeros(8, np.int64), np.zeros(8, np.int64)
    with simt.batch_lanes(lanes):
        error = stopped(look_back, 8, 32, ready, partial, x, out)
    assert error is not None or out.tolist() == np.cumsum(x).tolist()


def test_an_attribute_is_named_as_it_was_written():
    settings = types.SimpleNamespace(size=4)

    @cuda.jit
    def read(x):
        x[0] = settings.size

    @cuda.jit
    def read_later(x):
        s = settings
        x[0] = s.size

    @cuda.jit
    def call(x):
        x[0] = math.nothing(x[0])

    for kernel, said in (
        (read, "Numba does not compile settings.size, an attribute of settings, which is no module: give it a global"),
        (read_later, "s.size: an object with attributes has no attribute size"),
        (call, "the module math has no method nothing"),
    ):
        with pytest.raises(simt.UnsupportedError, match=re.escape(said)):
            kernel[1, 1](np.zeros(1))
