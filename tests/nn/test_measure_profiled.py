"""PyTorch's profiler in a process of its own: its answer counts, however the process ends."""

import json
import sys

import pytest

from pmpp.nn.measure import profiled
from pmpp.runtime import device

pytestmark = pytest.mark.native("processes")


def process(code):
    return profiled.apart("a case", "a version", [sys.executable, "-c", code])


def test_an_answer_counts_though_the_process_is_aborted_after_it():
    answer = {"most": [["kernel", 1.0, 2.5]]}
    code = f"import os, sys; print('loading'); print({json.dumps(answer)!r}, flush=True); os.kill(os.getpid(), 6)"
    assert process(code) == answer


def test_a_process_without_an_answer_is_named_with_its_status():
    said = {"missing": "the profiler's process ended with status 3 and no answer"}
    assert process("import sys; sys.exit(3)") == said
    assert process("import sys; print('half of {'); sys.exit(3)") == said


@pytest.mark.skipif(device.on_gpu(), reason="there it would profile")
def test_without_a_gpu_there_is_nothing_to_say():
    assert profiled.apart("launches", "one update for all") is None
