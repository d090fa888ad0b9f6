"""What practitioners write kernels in: what the page says of a record, and that nothing is measured without a GPU.

Also what each tool's module refuses, and that its kernels compile where the tool is installed.
"""

import importlib
import re
import sys
import types

import numpy as np
import pytest

from pmpp.lab.measure import record
from pmpp.nn.measure import practitioners, practitioners_page, recorded
from pmpp.runtime import device

RECORD = {
    "about": {"gpu": {"name": "NVIDIA H200"}, "run": {"date": "2026-11-28T12:00:00Z"}},
    "tools": {"Triton": "3.6.0", "CuTe DSL": None},
    "problems": {
        "softmax of rows": {
            "PyTorch": {"first_call_s": 0.1, "kernel_ms": 0.2, "call_us": 9.0, "off": 1e-7},
            "this workbook": {"first_call_s": 2.0, "kernel_ms": 0.1, "call_us": 20.0, "off": 1e-7},
            "Triton": {"error": "ValueError: off by 2.0"},
        }
    },
}


def test_the_page_says_what_was_measured_and_what_was_not():
    said = practitioners_page.page(RECORD)
    assert "on an NVIDIA H200 on 2026-11-28" in said
    assert "| this workbook | 0.100 ms | 2.00 | 20 us | 2.0 s |" in said
    assert "| Triton | failed: ValueError: off by 2.0 |" in said
    assert "| Triton (`triton`) | 3.6.0 |" in said
    assert "| CuTe DSL (`nvidia-cutlass-dsl`) | not there |" in said
    assert "| nvmath-python (`nvmath-python`) | not there |" in said, "a record that is older than the tool"


def test_a_tool_is_there_or_not():
    found = practitioners.tools()
    assert found.keys() == practitioners.TOOLS.keys()
    missing = practitioners.Tool("pmpp_has_no_such.module", "no-such-package", "")
    assert not practitioners._is_there(missing)


def test_calls_are_made_for_the_tools_that_are_there_only(monkeypatch):
    monkeypatch.setattr(practitioners, "_is_there", lambda tool: tool.module == "triton")
    made = practitioners.those_there({"Triton": lambda: "a call", "CuTe DSL": lambda: pytest.fail("it is not there")})
    assert made == {"Triton": "a call"}


@pytest.mark.parametrize("name, tool", [("nvmath", "nvmath"), ("compute", "cuda.compute"), ("cute", "cutlass")])
def test_a_tool_is_imported_where_it_is_used(name, tool, monkeypatch):
    monkeypatch.setitem(sys.modules, tool, None)  # to import it is an error now
    monkeypatch.delitem(sys.modules, f"pmpp.nn.measure.practitioners_{name}", raising=False)
    importlib.import_module(f"pmpp.nn.measure.practitioners_{name}")
    assert practitioners.kernels(name).__name__.endswith(name)


def matrix(*shape, dtype=np.float32):
    """What stands for an array on a GPU where only its shape and its dtype count."""
    dtype = np.dtype(dtype)
    interface = {"shape": shape, "typestr": dtype.str, "descr": dtype.descr, "data": (4096, False), "strides": None}
    return types.SimpleNamespace(shape=shape, dtype=dtype, __cuda_array_interface__=interface)


def test_cublasdx_takes_whole_tiles():
    product = practitioners.kernels("nvmath").Product
    product(matrix(128, 64), matrix(64, 256), None)
    with pytest.raises(ValueError, match="m must be a multiple of 128; was 100"):
        product(matrix(100, 64), matrix(64, 256), None)
    with pytest.raises(ValueError, match="n must be a multiple of 256; was 128"):
        product(matrix(128, 64), matrix(64, 128), None)
    with pytest.raises(ValueError, match="k must be a multiple of 64; was 65"):
        product(matrix(128, 65), matrix(65, 256), None)


def test_cute_takes_whole_rows_of_groups():
    softmax = practitioners.kernels("cute").Softmax
    softmax(matrix(3, 1024), None)
    with pytest.raises(ValueError, match="columns must be a multiple of 1024; was 1025"):
        softmax(matrix(3, 1025), None)


def test_cute_takes_whole_tiles():
    product = practitioners.kernels("cute").Product
    product(matrix(1024, 64), matrix(64, 256), None)
    with pytest.raises(ValueError, match="m must be a multiple of 1024; was 128"):
        product(matrix(128, 64), matrix(64, 256), None)
    with pytest.raises(ValueError, match="n must be a multiple of 256; was 128"):
        product(matrix(1024, 64), matrix(64, 128), None)


@pytest.fixture
def cute(monkeypatch, tmp_path):
    """The module in the CuTe DSL, which keeps what it compiles to, for an H200."""
    for name, value in {"ARCH": "sm_90a", "KEEP_PTX": "1", "DUMP_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"CUTE_DSL_{name}", value)  # read when it is imported
    pytest.importorskip("cutlass")
    return practitioners.kernels("cute")


def test_the_softmax_in_cute_compiles(cute):
    ptx = cute.compiled_softmax(5, 4096).artifacts.PTX
    assert ptx.count("ld.global.v4") == ptx.count("st.global.v4") == 4, "elements come in groups, and only once"
    assert ".local" not in ptx
    branches = re.findall(r"bra \t?(\$\w+);(.*?)\1:", ptx, re.DOTALL)
    assert len(branches) == 2
    assert not any("shfl" in inside for _, inside in branches), (
        "a shuffle of the warp where not all lanes are: a deadlock"
    )


def test_the_product_in_cute_compiles(cute):
    ptx = cute.compiled_product(1024, 256, 128).artifacts.PTX
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16") == 4, "a step of K is 64"
    assert ptx.count("cp.async.bulk.tensor") == 5, "a tile of A at once, and of B in columns of 128 bytes"
    assert ".local" not in ptx


def test_cuda_compute_compiles(monkeypatch):
    compute = pytest.importorskip("cuda.compute")
    if not compute._BINDINGS_AVAILABLE:
        pytest.skip("it needs the driver's library")
    codegen = pytest.importorskip("numba.cuda.codegen")
    monkeypatch.setattr(codegen.CUDACodeLibrary, "_ensure_cc", lambda self, cc: cc or (9, 0))
    room = practitioners.kernels("compute")
    pairs = matrix(5, dtype=room.operators(64).Pair.dtype)
    assert len(room.compiled(*room.arguments(matrix(320), matrix(320), pairs, 64), compute_capability=90)) == 2


def test_the_page_is_that_of_the_record():
    try:
        found = recorded("practitioners")
    except record.RecordError:
        pytest.skip("nothing recorded yet")
    assert practitioners_page.PAGE.read_text(encoding="utf-8") == practitioners_page.page(found)


def test_without_a_record_no_page_is_written(monkeypatch, capsys, tmp_path):
    def none(name):
        raise record.RecordError(f"no {name}")

    monkeypatch.setattr(practitioners_page, "recorded", none)
    monkeypatch.setattr(practitioners_page, "PAGE", tmp_path / "page.md")
    assert practitioners_page.main([]) == 1
    assert "no practitioners" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert practitioners.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
