"""What practitioners write kernels in: what the page says of a record, and that nothing is measured without a GPU."""

import pytest

from pmpp.lab.measure import record
from pmpp.nn.measure import practitioners, recorded
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
    said = practitioners.page(RECORD)
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


def test_the_page_is_that_of_the_record():
    try:
        found = recorded("practitioners")
    except record.RecordError:
        pytest.skip("nothing recorded yet")
    assert practitioners.PAGE.read_text(encoding="utf-8") == practitioners.page(found)


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert practitioners.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
