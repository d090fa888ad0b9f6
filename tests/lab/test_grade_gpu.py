"""Grading with --gpu: what is measured, what is refused without a GPU, and what the process that measures may write."""

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from pmpp.lab.measure import timing
from pmpp.lab.teach.grade import capture, command, edition, gpu, player, result, supervise, wall
from pmpp.lab.teach.grade.result import Graded, Result
from pmpp.lab.teach.points import named
from pmpp.runtime import device

ROOT = Path(__file__).parents[2]
NAME = "launches/fused"
ANSWER = """\
@cuda.jit
def answer(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], np.float32(0))
"""
interpreted = pytest.mark.skipif(device.on_gpu(), reason="a stand-in for a GPU, which is the interpreter")


def test_without_a_gpu_it_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.ipynb").write_text('{"cells": []}', encoding="utf-8")
    monkeypatch.setattr(gpu, "fault", lambda: "no NVIDIA driver was found")
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--gpu"])
    assert "--gpu needs a GPU: no NVIDIA driver was found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("done", "found"),
    [
        ({"stdout": '{"gpu": "H"}', "stderr": "", "returncode": 0}, {"gpu": "H"}),
        ({"stdout": "", "stderr": "a\nKilled: b\n", "returncode": 1}, {"failed": "Killed: b"}),
        ({"stdout": "[", "stderr": "", "returncode": -9}, {"failed": "the process that measures ended with status -9"}),
    ],
)
def test_what_its_process_says(monkeypatch, done, found):
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: types.SimpleNamespace(**done))
    assert gpu._asked({}) == found


def test_a_process_that_hangs_is_given_up(monkeypatch):
    def run(*_, timeout, **__):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    assert gpu._asked({}, 7.5) == {"failed": "it took longer than 7.5 s"}


@pytest.mark.skipif(not wall.version(), reason="this system has no Landlock")
def test_within_the_wall_a_driver_opens_its_files_and_no_other(tmp_path):
    for name in ("nvidia0", "other"):
        (tmp_path / name).touch()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert wall.build((), (), (), [str(tmp_path / "nvidia0")])
            os.close(os.open(tmp_path / "nvidia0", os.O_RDWR))
            os.close(os.open(tmp_path / "other", os.O_RDONLY))
            with pytest.raises(PermissionError):
                os.open(tmp_path / "other", os.O_RDWR)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


class Timer:
    """Launches, and says that each took as many microseconds as there have been samples."""

    l2_bytes = 0

    def __init__(self):
        self.samples = 0

    def synchronize(self):
        pass

    def sample(self, calls, **_):
        self.samples += 1
        for call in calls[:1]:
            call()
        return timing.Sample(self.samples * 1e-6, 0.0, True)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What the process would answer to a job, with the interpreter in the place of a GPU."""
    if device.on_gpu():
        pytest.skip("a stand-in for a GPU, which is the interpreter")
    built = []
    monkeypatch.setattr(timing, "gpu_timer", Timer)
    monkeypatch.setattr(player, "limit", lambda memory, seconds: built.append((memory, seconds)))
    monkeypatch.setattr(wall, "build", lambda *about: built.append(about))
    monkeypatch.setattr(gpu, "_asked", lambda job, seconds: gpu._measured(json.loads(json.dumps(job)) | {"seconds": 9}))

    def measure(source):
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec("import numpy as np\nfrom pmpp import cuda\n", module.__dict__)
        player.run(source, "code cell 1", module.__dict__)
        nodes = capture.taken(module.answer, {"code cell 1": 1})
        found = gpu.timed(NAME, nodes, edition.given(), 3, supervise.Limits(), tmp_path / "lock")
        assert built[0] == (None, 9)  # a driver reserves more addresses than there is memory
        assert built[1][:3] == ((), (), ())
        return found

    return measure


def test_an_answer_is_measured_beside_the_shipped_one(measured):
    found = measured(ANSWER)
    assert sorted(found) == ["empty", "gpu", "own", "shipped"]
    assert found["own"] > 0
    assert found["shipped"] > 0


def test_no_time_is_shown_of_a_wrong_result(measured):
    assert measured(ANSWER.replace("a * x", "a - x")) == {"failed": "on this GPU args[3] of the answer is wrong"}


@interpreted
def test_the_inputs_are_those_of_the_verdict(monkeypatch):
    seen = []
    one = named(NAME)
    watched = dataclasses.replace(one, cases=lambda rng: seen.append(rng.random()) or one.cases(rng))
    numbers = supervise.numbers_of(3, NAME, [["plain", 1]])
    for _ in range(2):
        assert supervise.with_inputs(watched, numbers).inputs
    assert seen[0] == seen[1]


def test_a_rubric_says_what_was_measured():
    def said(timed):
        one = Graded(NAME, 5, 5, True, "", "passed", share=0.5, shipped=1.0, timed=timed)
        return result.rubric_markdown([Result("a", "a.ipynb", "22_launches", 5, 5, [one])])

    times = {"gpu": "NVIDIA H200", "own": 3.25e-6, "shipped": 2.5e-6, "empty": 1e-6}
    assert "| 50%, shipped 100%; on an NVIDIA H200 3.25 us, shipped 2.50 us, an empty kernel 1.00 us |  |" in said(
        times
    )
    assert "| 50%, shipped 100%; not measured: why |  |" in said({"failed": "why"})
    assert "| 50%, shipped 100% |  |" in said(None)


@pytest.mark.gpu
def test_a_class_is_measured(tmp_path):
    """The command, on a GPU: the driver's files are opened from inside the wall, and two jobs wait for each other."""
    cells = ["import numpy as np\nfrom pmpp import check, cuda", f'{ANSWER}\n\ncheck("{NAME}", answer)']
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in cells]
    for student in ("a", "b"):
        (tmp_path / "in" / student).mkdir(parents=True)
        path = tmp_path / "in" / student / "22_launches.ipynb"
        path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    done = subprocess.run(  # noqa: PLW1510 (the status is compared below)
        [sys.executable, "-m", "pmpp.lab.teach.grade", "in", "--gpu", "--jobs", "2", "--json", "out.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for one in json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["notebooks"]:
        found = next(graded for graded in one["exercises"] if graded["exercise"] == NAME)
        assert found["passed"], found
        assert sorted(found["timed"]) == ["empty", "gpu", "own", "shipped"], found["timed"]
        assert all(found["timed"][who] > 0 for who in ("empty", "own", "shipped"))
