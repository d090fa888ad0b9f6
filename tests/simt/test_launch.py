"""Launches that cannot work are errors with a sentence, before anything runs; and how kernels are declared."""

import inspect
import sys
import textwrap

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from tests.support import versus


def line_of(kernel, fragment):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return first + next(k for k, text in enumerate(lines) if fragment in text)


@cuda.jit
def fill(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = value


@cuda.jit
def block_shape(out):
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0:
        b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        out[b, 0] = cuda.blockDim.x
        out[b, 1] = cuda.blockDim.y
        out[b, 2] = cuda.blockDim.z
        out[b, 3] = cuda.gridsize(1)


@pytest.mark.parametrize(
    "grid, block",
    [
        (2, 3),
        ((2,), (3,)),
        ((2, 1), (3, 1)),
        ((2, 1, 1), (3, 1, 1)),
        ((2, 3, 2), (4, 2, 3)),
        ((1, 2), (4, 4)),
        (2, (3, 5)),
        (np.int64(2), np.int32(3)),
        ([2, 1], [3]),
        (1, 1024),
        (1, (32, 32)),
        (1, (1, 1, 64)),
    ],
    ids=str,
)
def test_launch_shapes_of_one_two_and_three_dimensions(grid, block):
    full = [tuple(np.atleast_1d(v).tolist()) + (1,) * (3 - np.size(v)) for v in (grid, block)]
    out = np.zeros((np.prod(full[0]), 4), np.int64)
    block_shape[grid, block](out)
    assert out.tolist() == [[*full[1], full[0][0] * full[1][0]]] * len(out)


@pytest.mark.parametrize(
    "grid, block, sentence",
    [
        (1, 1025, "1024"),
        (1, (32, 33), "1024"),
        (1, (1, 1, 65), "64"),
        (1, (1, 1, 128), "64"),
        (0, 32, "(?i)grid|block"),
        (1, 0, "(?i)thread|block"),
        ((1, 0), 32, "(?i)grid|block"),
        (1, (32, 0), "(?i)thread|block"),
        (-1, 32, "-1"),
        (1, -32, "-32"),
        ((1, 65536), 32, "65535"),
        ((1, 1, 65536), 32, "65535"),
        (2**31, 32, "2147483647"),
        (1.5, 32, "1.5"),
        (1, 32.0, "32.0"),
        ("1", 32, "'1'"),
        (None, 32, "None"),
        ((1, 1, 1, 1), 32, "(?i)three|3"),
        ((), 32, "(?i)grid|dimension"),
        (1, "x", "'x'"),
    ],
    ids=str,
)
def test_impossible_launch_shapes_are_refused(grid, block, sentence):
    x = np.zeros(4)
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        fill[grid, block](x, 1)
    assert isinstance(caught.value, simt.SimtError)
    assert not x.any()


def test_a_launch_error_is_a_value_error_and_a_simt_error():
    assert issubclass(simt.LaunchError, ValueError)
    for error in (simt.LaunchError, simt.UnsupportedError, simt.HazardError):
        assert issubclass(error, simt.SimtError)
    assert issubclass(simt.SimtError, RuntimeError)


@pytest.mark.parametrize("configuration", [(1,), (), (1, 32, 0, 0, 0, 0, 0)], ids=str)
def test_a_configuration_needs_grid_and_block(configuration):
    with pytest.raises((simt.SimtError, ValueError, TypeError)):
        fill[configuration](np.zeros(4), 1)


@pytest.mark.parametrize("args", [(), (np.zeros(4),), (np.zeros(4), 1, 2)], ids=["none", "one", "three"])
def test_a_wrong_number_of_arguments_names_both_numbers(args):
    with pytest.raises((simt.SimtError, TypeError), match=rf"(?s)(?=.*2)(?=.*{len(args)})"):
        fill[1, 32](*args)


def test_calling_a_kernel_without_configuration_says_how():
    with pytest.raises((simt.SimtError, ValueError), match=r"\["):
        fill(np.zeros(4), 1)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        [1.0, 2.0],
        {"a": 1},
        {1},
        object(),
        np.array(["a"]),
        np.array([object()]),
        print,
    ],
    ids=lambda v: type(v).__name__,
)
def test_arguments_that_are_not_numbers_or_arrays_are_named(value):
    with pytest.raises((simt.SimtError, TypeError), match="value"):
        fill[1, 32](np.zeros(4), value)


@cuda.jit
def shared_of_run_time_size(x, n):
    s = cuda.shared.array(n, np.float32)
    s[0] = 1
    x[0] = s[0]


@cuda.jit
def local_of_run_time_size(x, n):
    s = cuda.local.array((4, x.size), np.float32)
    s[0, 0] = n
    x[0] = s[0, 0]


@cuda.jit
def shared_without_a_type(x, n):
    s = cuda.shared.array(4, n)
    x[0] = s[0]


@cuda.jit
def returns_a_value(x, n):
    x[0] = 1
    return x[0]


@pytest.mark.parametrize(
    "kernel, fragment, sentence",
    [
        (shared_of_run_time_size, "shared.array", "(?i)constant"),
        (local_of_run_time_size, "local.array", "(?i)constant"),
        (shared_without_a_type, "shared.array", "(?i)type"),
        (returns_a_value, "return x[0]", "(?i)return"),
    ],
    ids=["shared shape", "local shape", "shared dtype", "return"],
)
def test_kernels_that_numba_would_not_compile_are_refused_with_the_line(kernel, fragment, sentence):
    with pytest.raises(simt.SimtError, match=sentence) as caught:
        kernel[1, 1](np.zeros(4), 8)
    assert str(line_of(kernel, fragment)) in str(caught.value)


def test_return_without_a_value_and_return_none_are_fine():
    x = np.zeros(2)
    returns_none[1, 2](x)
    assert x.tolist() == [1, 0]


@cuda.jit
def returns_none(x):
    if cuda.grid(1) > 0:
        return None  # noqa: RET501
    x[0] = 1


@cuda.jit
def much_static_shared(x):
    s = cuda.shared.array((64, 64, 4), np.float32)
    s[0, 0, 0] = 1
    x[0] = s[0, 0, 0]


@cuda.jit
def dynamic_size(x):
    s = cuda.shared.array(0, np.float32)
    x[0] = s.size


def test_more_shared_memory_than_a_block_has_is_refused():
    with pytest.raises(simt.SimtError, match=r"65,?536|49,?152|48"):
        much_static_shared[1, 1](np.zeros(1))
    with pytest.raises(simt.SimtError):
        dynamic_size[1, 1, 0, 1 << 20](np.zeros(1))
    with pytest.raises(simt.SimtError):
        dynamic_size[1, 1, 0, -4](np.zeros(1))


def test_dynamic_shared_memory_is_given_in_bytes():
    x = np.zeros(1)
    dynamic_size[1, 1, 0, 4096](x)
    assert x[0] == 1024
    simt.profile(dynamic_size, 1, 1, (x,), sharedmem=400)
    assert x[0] == 100


@cuda.jit("void(float32[:], float32[:], float32)")
def with_string_signature(x, out, factor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


@cuda.jit((cuda.float32[:], cuda.float32[:], cuda.float32))
def with_tuple_signature(x, out, factor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


def with_two_signatures():
    single = cuda.void(cuda.float32[:], cuda.float32[:], cuda.float32)
    double = cuda.void(cuda.float64[:], cuda.float64[:], cuda.float64)
    return cuda.jit([single, double])(with_string_signature.py_func)


@pytest.mark.parametrize(
    "make",
    [lambda: with_string_signature, lambda: with_tuple_signature, with_two_signatures],
    ids=["string", "tuple", "list of two"],
)
def test_a_signature_fixes_the_argument_types(make):
    kernel = make()
    x = np.array([0.1, 0.2], np.float32)
    out = np.zeros(2, np.float32)
    kernel[1, 32](x, out, 0.1)  # the literal becomes float32, so the product is not rounded from float64
    np.testing.assert_array_equal(out, x * np.float32(0.1))
    with pytest.raises((simt.SimtError, TypeError)):
        kernel[1, 32](x.astype(np.int32), out, 0.1)


@cuda.jit("int32(int32, int32)", device=True)
def signed_device(a, b):
    return a * b + 0.75


@cuda.jit
def calls_signed_device(out):
    out[0] = signed_device(out[1], 3)


def test_a_device_signature_fixes_the_result_type():
    out = np.array([0, 5], np.float64)
    calls_signed_device[1, 1](out)
    assert out[0] == 15


@pytest.mark.parametrize(
    "options",
    [
        {"fastmath": True},
        {"debug": False},
        {"opt": True},
        {"lineinfo": True},
        {"max_registers": 64},
        {"launch_bounds": 256},
        {"cache": False},
        {"inline": "never"},
        {"device": False},
    ],
    ids=str,
)
def test_options_of_numba_are_accepted(options):
    x = np.zeros(4)
    cuda.jit(**options)(fill.py_func)[1, 32](x, 3)
    assert x.tolist() == [3] * 4


def test_jit_may_be_called_on_a_function():
    x = np.zeros(4)
    cuda.jit(fill.py_func)[1, 32](x, 3)
    assert x.tolist() == [3] * 4


def test_a_configured_kernel_can_be_kept_and_called_again():
    x = np.zeros(4)
    launch = fill[1, 32]
    launch(x, 1)
    launch(x, 2)
    assert x.tolist() == [2] * 4


@cuda.jit(device=True)
def device_function(x):
    return x + 1


def test_a_device_function_cannot_be_launched():
    with pytest.raises((simt.SimtError, TypeError, ValueError)):
        device_function[1, 1](np.zeros(1))


def test_a_kernel_can_come_from_a_file_written_later(tmp_path):
    path = tmp_path / "made_later.py"
    path.write_text(
        textwrap.dedent("""
        from pmpp.simt import cuda

        @cuda.jit
        def kernel(x):
            x[cuda.grid(1)] = 5
    """),
        encoding="utf-8",
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from made_later import kernel
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("made_later", None)
    x = np.zeros(3)
    kernel[1, 3](x)
    assert x.tolist() == [5] * 3


def test_profile_takes_numba_kernels_and_plain_functions():
    x = np.zeros(40, np.float32)
    report = simt.profile(fill.py_func, 2, 32, (x, 2))
    assert (x == 2).all()
    assert report.counters["global_store_requests"] == 2
    assert (report.grid[0], report.block[0]) == (2, 32)
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba import cuda as numba_cuda
    from numba import float32 as f4

    cuda_here = numba_cuda

    @numba_cuda.jit
    def kernel(x, out):
        s = cuda_here.shared.array(32, f4)
        t = cuda_here.threadIdx.x
        s[t] = x[cuda_here.grid(1)]
        cuda_here.syncthreads()
        value = cuda_here.shfl_xor_sync(0xFFFFFFFF, s[t], 1)
        out[cuda_here.grid(1)] = f4(value * 2)

    source, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    report = simt.profile(kernel, 2, 32, (source, out))
    np.testing.assert_array_equal(out, source.reshape(-1, 2)[:, ::-1].ravel() * 2)
    assert report.counters["barriers"] == 2


@pytest.mark.parametrize("level", ["Count", "", None, 3])
def test_an_unknown_level_is_refused(level):
    with pytest.raises((simt.SimtError, ValueError, TypeError), match=r"run.*count.*check"):
        simt.profile(fill, 1, 32, (np.zeros(4), 1), level=level)


@pytest.mark.native("processes")
def test_importing_the_interpreter_imports_neither_numba_nor_a_room():
    import subprocess

    code = (
        "import sys; import pmpp.simt; "
        "print([m for m in sys.modules if m.split('.')[0] == 'numba' or m.startswith('pmpp.kernels')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_kernels_of_the_speed_comparison_are_right_at_every_level():
    for level in ("run", "count", "check"):
        times = versus.in_interpreter(level, repeats=1)  # raises if a result is wrong
        assert len(times) == 4
    assert not versus.IN_SIMULATOR
