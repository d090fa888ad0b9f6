"""`attest --gpus all`: who runs what on which GPU, and processes that are told to stop."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from pmpp.lab.measure import attest, lanes
from pmpp.runtime import device

TESTS = ["tests/test_a.py", "tests/test_b.py", "tests/test_two.py"]
PAGES = ["notebooks/01_a", "notebooks/02_b", "notebooks/03_c", "notebooks/04_d"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in TESTS:
        words = 'skipif(True, reason="needs two GPUs")' if "two" in name else ""
        (tmp_path / name).write_text(words, encoding="utf-8")
    return tmp_path


def test_each_gpu_has_tests_and_chapters_and_what_needs_two_sees_both(root):
    found = lanes.lanes(TESTS, PAGES, ["3", "5"], chapters_at_once=3, cores=11, more=("--seconds", "60"), root=root)
    single = tuple(TESTS[:2])
    assert found == [
        lanes.Lane("tests-1", "3", (*single, "--part", "1/2", "--workers", "4", "--seconds", "60")),
        lanes.Lane("tests-2", "5", (*single, "--part", "2/2", "--workers", "4", "--seconds", "60")),
        lanes.Lane("tests-of-several", "3,5", (TESTS[2], "--workers", "2", "--seconds", "60")),
        *(
            lanes.Lane(f"chapters-{k}", gpu, (*PAGES, "--part", f"{k}/3", "--beside", "--seconds", "60"))
            for k, gpu in ((1, "5"), (2, "3"), (3, "5"))
        ),
    ]


def test_no_two_runs_have_the_same_name(root):
    found = lanes.lanes(TESTS, PAGES, ["0", "1"], chapters_at_once=2, cores=1, root=root)
    parts = [lane.arguments[lane.arguments.index("--part") + 1] for lane in found if "--part" in lane.arguments]
    assert parts == ["1/2", "2/2", "1/3", "2/3", "3/3"]


def test_one_gpu_and_one_kind_alone(root):
    (chapter,) = lanes.lanes([], PAGES[:1], ["0"], chapters_at_once=0, cores=4, root=root)[:1]
    assert chapter.name == "chapters-1"
    (tests,) = lanes.lanes(TESTS, [], ["0"], chapters_at_once=3, cores=4, root=root)
    assert tests.arguments == (*TESTS, "--part", "1/1", "--workers", "4")


def test_gpus_that_are_hidden_are_not_used():
    assert lanes.visible(2, {"CUDA_VISIBLE_DEVICES": "4, 6"}) == ["4", "6"]
    assert lanes.visible(3, {}) == ["0", "1", "2"]


RECORDS = """
import json, os, signal, sys
arguments = sys.argv[1:]
out = arguments[arguments.index("--out") + 1]
def end(*_):
    with open(out, "w") as file:
        json.dump([os.environ["CUDA_VISIBLE_DEVICES"], *arguments[:-2]], file)
    print("recorded", flush=True)
    os._exit(3)
signal.signal(signal.SIGTERM, end)
open(out + ".ready", "w").close()
signal.pause() if "waits" in arguments else end()
"""


@pytest.mark.native("processes")
def test_lanes_run_at_once_and_sigterm_reaches_all(tmp_path):
    which = [lanes.Lane("one", "0", ("waits",)), lanes.Lane("two", "0,1", ("waits",)), lanes.Lane("three", "1", ())]
    said, me = [], os.getpid()

    def stop():
        while len(list(tmp_path.glob("*.ready"))) < 3:
            time.sleep(0.01)
        os.kill(me, signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop)
    thread.start()
    status = lanes.run(which, tmp_path, command=(sys.executable, "-c", RECORDS), progress=said.append)
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
    assert status == {"one": 3, "two": 3, "three": 3}
    assert [json.loads((tmp_path / f"{lane.name}.json").read_text()) for lane in which] == [
        [lane.gpus, *lane.arguments] for lane in which
    ]
    assert said == [f"{lane.name} ended with status 3:\nrecorded" for lane in which]


@pytest.mark.skipif(device.on_gpu(), reason="it would run everything")
def test_without_a_gpu_it_says_so_and_parts_are_refused(capsys):
    assert attest.main(["--gpus", "all"]) == 2
    assert "attest needs an NVIDIA GPU" in capsys.readouterr().err
    assert attest.main(["--gpus", "all", "--part", "1/2"]) == 2
    assert "makes the parts itself" in capsys.readouterr().err
