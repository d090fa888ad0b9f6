"""The corpus on the hardware: its record is of the kernels as they are, and nothing that was found there is missed."""

import pytest

from pmpp.lab.measure import sanitizers
from tests.corpus import hardware, pairs

PAIRS = pairs()

# Correct kernels that compute-sanitizer reports. racecheck does not see that a warp waits for a flag in shared memory.
# memcheck takes a copy for as long as its place, where the part beyond the end is filled with zeros; and it reports a
# product of warpgroups that reads one panel twice.
REPORTED = {
    "leader_raises_a_shared_flag_for_lanes_it_has_not_met": "racecheck",
    "one_lane_waits_on_shared_memory": "racecheck",
    "one_warp_waits_on_shared_memory_for_two": "racecheck",
    "shared_flag_without_a_fence": "racecheck",
    "a_copy_past_the_end": "memcheck",
    "the_second_panel_lies_outside": "memcheck",
}


@pytest.fixture(scope="module")
def record():
    return sanitizers.recorded()


def test_the_record_is_of_these_kernels(record):
    """So each of them was compiled by Numba and ran.  If not: run `python -m tests.corpus.hardware` on a GPU."""
    assert {pair.name: pair.source for pair in PAIRS} == {name: p["source"] for name, p in record["pairs"].items()}


def test_on_the_gpu_every_look_alike_was_right(record):
    assert record["about"]["wrong_results"] == []


def test_what_compute_sanitizer_names_the_interpreter_names(record):
    assert [name for name, p in record["pairs"].items() if p["tools"] and not p["interpreter"]] == []


def test_which_look_alikes_a_tool_reports(record):
    for name, p in record["pairs"].items():
        assert set(p["look_alike"]["tools"]) == set(sanitizers.TOOLS) - {REPORTED.get(name)}, name
        assert p["look_alike"]["interpreter"], name


def test_the_table_adds_up(record):
    *subjects, everything = sanitizers.rows(record)
    for column in ("bugs", "any_tool", "interpreter", *sanitizers.TOOLS):
        assert everything[column] == sum(row[column] for row in subjects)
    assert everything["bugs"] == len(PAIRS)
    assert record["about"]["device"] in sanitizers.table(record)


def test_a_log_is_read_by_kernel_and_line():
    pair = next(pair for pair in PAIRS if pair.name == "exchange")
    line = pair.first_line + 5
    log = f"========= Error: Race between tests::corpus::shared::exchange[abi:v1](bool)+0x230 in shared.py:{line}\n"
    assert hardware.named(log, pair) == [5]
    assert hardware.named(log.replace("exchange", "exchange_between_lanes"), pair) is None
    assert hardware.named(log.replace(f" in shared.py:{line}", ""), pair) == []
