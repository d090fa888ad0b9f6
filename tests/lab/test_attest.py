"""Attesting in made-up repositories: what passed, what failed, what changed since, and what may be left out."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest

from pmpp.lab.measure import attest, environment, stale
from pmpp.lab.measure.sources import MEASURED, Sources, key_of
from pmpp.runtime import device

GPU = {"name": "NVIDIA Test 1"}
FILES = {
    "pmpp/__init__.py": "",
    "pmpp/kernels/scan/ladder.py": "def scan(x):\n    return x\n",
    "pmpp/lab/plot.py": "COLOUR = 1\n",
    "pmpp/simt/cuda.py": "",
    "pmpp/lab/table.py": "",
    "tests/test_scan.py": "from pmpp.kernels.scan.ladder import scan\n\n\ndef test_one():\n    assert scan(1) == 1\n",
    "tests/lab/test_plot.py": "import pytest\nfrom pmpp.lab import plot\n\n\n@pytest.mark.parametrize('n', [1, 2, 3])\n"
    "def test_colour(n):\n    if n == 3:\n        pytest.skip('not here')\n    assert plot.COLOUR\n",
    "notebooks/source/30_scan.py": "# %%\nfrom pmpp.kernels.scan.ladder import scan\nprint(scan(2))\n",
}
TESTS, CHAPTER = ["tests/lab/test_plot.py", "tests/test_scan.py"], "notebooks/30_scan"
RECORD = "pmpp/recorded/nvidia-test-1/attested.json"


@pytest.fixture
def root(tmp_path):
    put(tmp_path, FILES)
    return tmp_path


def put(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run(date="2026-11-22T01:00:00Z"):
    return {"date": date, "revision": "abc1234"}


PASSED = {"passed": 2, "failed": 0, "skipped": 1}
RAN = {"passed": True, "seconds": 1.5, "how": "script"}


def attested(root, *only, date="2026-11-22T01:00:00Z", **results):
    """Record results, by default good ones, as `make attest` does on a GPU."""
    tests, chapters = attest.select(only, root)
    starts = stale.chapters(root)
    found = {**dict.fromkeys(tests, PASSED), **dict.fromkeys(chapters, RAN), **results.get("results", {})}
    now = Sources(root)
    sources = {name: now.digests(starts.get(name, name)) for name in found}
    data = attest.merged(stale.read(root / RECORD), GPU, run(date), found, sources, root)
    attest.write(data, root / RECORD)
    return data


def test_all_is_stale_until_it_is_attested(root):
    assert stale.stale(root) == dict.fromkeys([*TESTS, CHAPTER], "never attested")
    data = attested(root)
    assert stale.stale(root) == {}
    assert data["tests"]["tests/test_scan.py"].items() >= PASSED.items()
    assert data["chapters"][CHAPTER].items() >= RAN.items()
    assert json.loads((root / RECORD).read_text(encoding="utf-8")) == data


def test_a_changed_source_names_who_depends_on_it_and_why(root):
    attested(root)
    put(root, {"pmpp/kernels/scan/ladder.py": "def scan(x):\n    return x + 0\n"})
    why = "run on NVIDIA Test 1, 2026-11-22; changed since: pmpp/kernels/scan/ladder.py"
    assert stale.stale(root) == {"tests/test_scan.py": why, CHAPTER: why}


def test_a_comment_changes_nothing(root):
    attested(root)
    put(root, {"pmpp/kernels/scan/ladder.py": '"""Scan."""\n\n\ndef scan(x):  # all of it\n    return x\n'})
    put(root, {"notebooks/source/30_scan.py": FILES["notebooks/source/30_scan.py"] + "\n# %% [markdown]\n# The end.\n"})
    assert stale.stale(root) == {}


def test_a_new_import_is_named(root):
    attested(root)
    put(root, {"tests/test_scan.py": "import pmpp.lab.table\n" + FILES["tests/test_scan.py"]})
    assert stale.stale(root) == {
        "tests/test_scan.py": "run on NVIDIA Test 1, 2026-11-22; changed since: tests/test_scan.py; "
        "not recorded then: pmpp/lab/table.py"
    }


def test_the_interpreter_counts_for_its_own_tests_alone(root):
    both = {"tests/simt/test_cuda.py": "import pmpp.simt.cuda\n", "tests/test_count.py": "import pmpp.simt.cuda\n"}
    put(root, both)
    attested(root)
    put(root, {"pmpp/simt/cuda.py": "X = 1\n"})
    why = "run on NVIDIA Test 1, 2026-11-22; changed since: pmpp/simt/cuda.py"
    assert stale.stale(root) == {"tests/simt/test_cuda.py": why}


def test_what_a_result_depends_on_no_more_does_not_matter(root):
    put(root, {"tests/conftest.py": "", "tests/test_scan.py": FILES["tests/test_scan.py"]})
    attested(root)
    (root / "tests/conftest.py").unlink()
    put(root, {"pmpp/lab/plot.py": "COLOUR = 2\n"})
    assert list(stale.stale(root)) == ["tests/lab/test_plot.py"]


@pytest.mark.parametrize(
    ("name", "outcome", "why"),
    [
        (TESTS[0], {"passed": 5, "failed": 1, "skipped": 0}, "1 test failed"),
        (TESTS[0], {"passed": 0, "failed": 2, "skipped": 0}, "2 tests failed"),
        (TESTS[0], {"passed": 0, "failed": 0, "skipped": 0}, "no test ran"),
        (CHAPTER, {**RAN, "passed": False, "error": "ValueError: bad"}, "failed (ValueError: bad)"),
    ],
)
def test_what_failed_is_recorded_and_not_attested(root, name, outcome, why):
    data = attested(root, results={name: outcome})
    assert {**data["tests"], **data["chapters"]}[name].items() >= outcome.items()
    assert stale.stale(root) == {name: f"{why} on NVIDIA Test 1, 2026-11-22"}


def test_a_file_whose_tests_are_all_skipped_did_not_fail(root):
    attested(root, results={TESTS[0]: {"passed": 0, "failed": 0, "skipped": 1}})
    assert stale.stale(root) == {}


def test_what_pytest_reports_is_counted_by_file(tmp_path):
    kinds = {
        "tests/test_good.py": "import pytest\n\n\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_it(n):\n"
        "    if n == 3:\n        pytest.skip('not here')\n\n\n@pytest.mark.xfail\ndef test_not_yet():\n    assert 0\n",
        "tests/a/test_bad.py": "class TestIt:\n    def test_good(self):\n        pass\n\n"
        "    def test_bad(self):\n        1 / 0\n",
        "tests/a/test_fixture.py": "import pytest\n\n\n@pytest.fixture\ndef f():\n    1 / 0\n\n\n"
        "def test_it(f):\n    pass\n",
        "tests/a/test_import.py": "import a_module_that_is_not_there\n",
        "tests/a/test_lacks.py": "import pytest\n\npytest.importorskip('a_module_that_is_not_there')\n",
        "tests/a/test_none.py": "X = 1\n",
        "tests/a/test_not_asked.py": "def test_it():\n    1 / 0\n",
    }
    put(tmp_path, kinds)
    asked = sorted(kinds.keys() - {"tests/a/test_not_asked.py"})
    found = attest.run_tests(asked, root=tmp_path, workers=2 if importlib.util.find_spec("xdist") else 0)
    assert {path: tuple(one[key] for key in ("passed", "failed", "skipped")) for path, one in found.items()} == {
        "tests/test_good.py": (2, 0, 2),
        "tests/a/test_bad.py": (1, 1, 0),
        "tests/a/test_fixture.py": (0, 1, 0),
        "tests/a/test_import.py": (0, 1, 0),
        "tests/a/test_lacks.py": (0, 0, 1),
        "tests/a/test_none.py": (0, 0, 0),
    }
    assert found["tests/a/test_bad.py"]["failures"] == ["TestIt::test_bad"]


def test_a_run_that_ends_early_attests_nothing(root):
    put(root, {"tests/test_scan.py": "import os\n\n\ndef test_it():\n    os._exit(3)\n"})
    with pytest.raises(attest.StoppedError, match=r"status 3; still running: tests/test_scan.py::test_it$"):
        attest.run_tests(TESTS[1:], root=root, workers=0)


def test_of_a_run_that_is_stopped_the_files_that_ended_are_kept(tmp_path, monkeypatch):
    kinds = {
        "tests/test_good.py": "def test_it():\n    pass\n",
        "tests/test_hangs.py": "import os\n\n\ndef test_first():\n    pass\n\n\n"
        "def test_it():\n    os._exit(0)\n\n\ndef test_last():\n    pass\n",
    }
    put(tmp_path, kinds)

    finish = attest._finish

    def finish_late(command, *, seconds, **options):
        finish(command, seconds=None, **options)
        raise subprocess.TimeoutExpired(command, seconds)

    monkeypatch.setattr(attest, "_finish", finish_late)
    expected = r"took more than 10 s and were stopped; still running: tests/test_hangs.py::test_it$"
    with pytest.raises(attest.StoppedError, match=expected) as caught:
        attest.run_tests(sorted(kinds), root=tmp_path, workers=0, seconds=10)
    (found,) = caught.value.finished.items()
    assert found[0] == "tests/test_good.py"
    assert found[1].items() >= {"passed": 1, "failed": 0, "skipped": 0}.items()


def test_a_part_is_merged_into_the_record(root):
    attested(root)
    put(root, {"pmpp/kernels/scan/ladder.py": "def scan(x):\n    return +x\n"})
    again = attested(root, CHAPTER, date="2026-11-23T01:00:00Z")
    assert list(stale.stale(root)) == ["tests/test_scan.py"]
    assert list(again["runs"]) == ["2026-11-22T01:00:00Z", "2026-11-23T01:00:00Z"]
    assert list(again["tests"]) == TESTS
    whole = attested(root, date="2026-11-24T01:00:00Z")
    assert list(whole["runs"]) == ["2026-11-24T01:00:00Z"], "a run without results goes"
    (root / "tests/test_scan.py").unlink()
    assert list(attested(root, CHAPTER)["tests"]) == TESTS[:1], "and so do the results of files that are gone"
    with pytest.raises(ValueError, match="NVIDIA Test 1, but this machine has NVIDIA Test 2"):
        attest.merged(whole, {"name": "NVIDIA Test 2"}, run(), {}, {}, root)


def test_any_gpu_attests_and_the_newest_attempt_says_why_not(root):
    data = attested(root)
    entry = {**data["tests"]["tests/test_scan.py"], "failed": 2}
    other = {**data, "gpu": {"name": "NVIDIA Test 2"}, "tests": {"tests/test_scan.py": entry}}
    attest.write(other, root / "pmpp/recorded/nvidia-test-2/attested.json")
    assert stale.stale(root) == {}
    put(root, {"pmpp/kernels/scan/ladder.py": "scan = abs\n"})
    assert set(stale.stale(root)) == {"tests/test_scan.py", CHAPTER}
    (root / RECORD).unlink()
    put(root, FILES)
    assert stale.stale(root)["tests/test_scan.py"] == "2 tests failed on NVIDIA Test 2, 2026-11-22"


def test_a_measurement_of_its_own_is_named_when_its_sources_change(root):
    attested(root)
    file, by = "pmpp/recorded/nvidia-test-1/survey.json", "pmpp/kernels/scan/survey.py"
    put(root, {by: "from pmpp.kernels.scan import ladder\nfrom pmpp.lab import plot\n"})
    sources = Sources(root).digests(by, within=MEASURED)
    assert sorted(sources) == ["pmpp/kernels/scan/ladder.py", by]
    put(root, {file: json.dumps({"about": {"run": run(), "measured_by": by, "sources": sources}})})
    assert stale.stale(root) == {}
    put(root, {"pmpp/lab/plot.py": "COLOUR = 2\n"})
    assert list(stale.stale(root)) == TESTS[:1], "who draws it does not matter to a measurement"
    put(root, {"pmpp/kernels/scan/ladder.py": "scan = abs\n"})
    assert stale.stale(root)[file] == "measured 2026-11-22; changed since: pmpp/kernels/scan/ladder.py"


def test_parts_are_chosen_by_file_folder_and_chapter(root):
    assert attest.select((), root) == (TESTS, [CHAPTER])
    assert attest.select(["tests/lab", "notebooks"], root) == (TESTS[:1], [CHAPTER])
    for name in ("notebooks/30_scan", "notebooks/30_scan.ipynb", "notebooks/source/30_scan.py", "notebooks/"):
        assert attest.select([name], root) == ([], [CHAPTER])
    assert attest.select(["tests/test_scan.py"], root) == (TESTS[1:], [])
    for name in ("tests/test_scan.py::test_one", "tests/test", "notebooks/30", "attic"):
        with pytest.raises(attest.SelectionError, match="no test file, no folder with test files and no chapter"):
            attest.select([name], root)


def test_a_chapter_runs_elsewhere_without_windows_and_is_stopped_if_it_hangs(root):
    text = "import os, pathlib\npathlib.Path('left.txt').write_text('')\nassert os.environ['MPLBACKEND'] == 'agg'\n"
    put(root, {"notebooks/source/30_scan.py": text + "assert os.environ['GIVEN'] == '1'\n"})
    source = stale.chapters(root)[CHAPTER]
    assert attest.run_chapter(source, root=root, notebook=False, environment={"GIVEN": "1"})["passed"]
    assert not list(root.rglob("left.txt"))
    put(root, {"notebooks/source/30_scan.py": "# %%\nprint('so far')\n\n# %%\nraise ValueError('a bad chapter')\n"})
    found = attest.run_chapter(source, root=root, notebook=False)
    assert (found["passed"], found["how"], found["error"]) == (False, "script", "ValueError: a bad chapter")
    noted = (
        "# %%\nerror = MemoryError('out of memory')\nerror.add_note('In plain words: it was the shape')\nraise error\n"
    )
    put(root, {"notebooks/source/30_scan.py": noted})
    assert attest.run_chapter(source, root=root, notebook=False)["error"] == "MemoryError: out of memory"
    put(root, {"notebooks/source/30_scan.py": "import time\ntime.sleep(600)\n"})
    found = attest.run_chapter(source, root=root, notebook=False, seconds=0.5)
    assert not found["passed"]
    assert found["error"] == "stopped after 0 s"


def test_the_commands(root, capsys):
    assert stale.main([], root) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "notebooks/30_scan: never attested"
    assert stale.main(["--check"], root) == 1
    attested(root)
    capsys.readouterr()
    assert stale.main(["--check"], root) == 0
    assert capsys.readouterr().out == ""
    assert attest.main(["tests/attic"]) == 2
    assert "'tests/attic' is no test file" in capsys.readouterr().err


@pytest.mark.skipif(device.on_gpu(), reason="there is a GPU")
def test_attest_without_a_gpu_says_so_in_one_sentence(capsys):
    assert attest.main(["tests/lab/test_attest.py"]) == 2
    assert capsys.readouterr().err == f"attest needs an NVIDIA GPU, but {device.backend().why}.\n"


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A machine with a GPU, on which a test file and a chapter end as they are told to."""
    outcomes = {"tests": PASSED, "chapter": RAN, "asked": []}

    def run_tests(files, **options):
        outcomes["asked"].append((list(files), options["environment"]))
        if isinstance(outcomes["tests"], Exception):
            raise outcomes["tests"]
        return dict.fromkeys(files, outcomes["tests"])

    def run_chapter(source, **options):
        outcomes["asked"].append((source, options["environment"]))
        return dict(outcomes["chapter"])

    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(environment, "describe_gpu", lambda: GPU)
    monkeypatch.setattr(environment, "describe_machine", run)
    monkeypatch.setattr(attest, "run_tests", run_tests)
    monkeypatch.setattr(attest, "run_chapter", run_chapter)
    return outcomes


PART = ["tests/lab/test_roofline.py", "notebooks/00_start_here"]


def test_the_command_runs_on_the_gpu_and_records_what_passed(on_a_gpu, tmp_path, capsys):
    out = tmp_path / "attested.json"
    assert attest.main([*PART, "--out", str(out)]) == 0
    on_the_gpu = {"PMPP_BACKEND": "numba"}
    assert on_a_gpu["asked"] == [(PART[:1], on_the_gpu), ("notebooks/source/00_start_here.py", on_the_gpu)]
    data = stale.read(out)
    assert data["tests"][PART[0]].items() >= PASSED.items()
    assert data["chapters"][PART[1]].items() >= {**RAN, "alone": True}.items()
    expected = {key_of(path, digest): path for path, digest in Sources().digests(PART[0]).items()}
    assert data["tests"][PART[0]]["sources"].split() == sorted(expected)
    assert data["sources"].items() >= expected.items()
    assert "2 of 2 attested" in capsys.readouterr().out


def test_the_command_says_what_failed_and_keeps_the_rest(on_a_gpu, tmp_path, capsys):
    out = tmp_path / "attested.json"
    on_a_gpu["chapter"] = {**RAN, "passed": False, "error": "ValueError: bad"}
    assert attest.main([*PART, "--out", str(out)]) == 1
    assert f"{PART[1]}: failed (ValueError: bad)" in capsys.readouterr().out
    on_a_gpu.update(tests=attest.StoppedError("pytest ended with status 3", {}), chapter=RAN)
    assert attest.main([*PART, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert "not all tests are attested: pytest ended with status 3" in said.err
    assert "1 of 2 attested" in said.out
    assert stale.read(out)["chapters"][PART[1]]["passed"], "the chapter that ran is recorded"
    assert stale.read(out)["tests"][PART[0]].items() >= PASSED.items(), "and the tests of the run before"


def test_the_report_of_this_repository_names_what_exists(capsys):
    assert stale.main([]) == 0
    known = {*stale.suites(), *stale.chapters()}
    for line in capsys.readouterr().out.splitlines():
        assert line.partition(":")[0] in known or line.startswith("pmpp/recorded/"), line


# --------------------------------------------------------------------------------------------------------------- parts


def test_parts_are_merged_into_one_record(root):
    whole = attested(root)
    put(root, {"pmpp/kernels/scan/ladder.py": "def scan(x):\n    return +x\n"})
    now, records = Sources(root), []
    for number, name in (("1/2", TESTS[1]), ("2/2", CHAPTER)):
        results = {name: PASSED if name in TESTS else RAN}
        sources = {name: now.digests(stale.chapters(root).get(name, name))}
        records.append(attest.merged(whole, GPU, {**run(), "part": number}, results, sources, root))
    attest.write(found := attest.joined([whole, *records], root), root / RECORD)
    assert stale.stale(root) == {}
    assert list(found["runs"]) == ["2026-11-22T01:00:00Z", "2026-11-22T01:00:00Z 1/2", "2026-11-22T01:00:00Z 2/2"]
    assert found == attest.joined(records[::-1], root), "in whatever order; each has what the shipped record had"
    other = {**records[0], "runs": {name: {**one, "revision": "other"} for name, one in records[0]["runs"].items()}}
    with pytest.raises(ValueError, match="two runs are named 2026-11-22T01:00:00Z"):
        attest.joined([whole, other], root)
    with pytest.raises(ValueError, match="these are of NVIDIA Test 1, NVIDIA Test 2"):
        attest.joined([whole, {**whole, "gpu": {"name": "NVIDIA Test 2"}}], root)


def test_the_command_runs_a_part_and_merges_parts(on_a_gpu, tmp_path, capsys):
    both = [*PART, "tests/lab/test_points.py", "notebooks/04_vector_add"]
    files = [tmp_path / f"{number}.json" for number in (1, 2)]
    for number, out in enumerate(files, 1):
        assert attest.main([*both, "--part", f"{number}/2", "--out", str(out)]) == 0
    asked = [one for found, _ in on_a_gpu["asked"] for one in ([found] if isinstance(found, str) else found)]
    sources = {stale.chapters().get(name, name) for name in both}
    assert len(asked) == 4
    assert set(asked) == sources
    capsys.readouterr()
    whole = tmp_path / "whole.json"
    assert attest.main(["--merge", *map(str, files), "--out", str(whole)]) == 0
    data = stale.read(whole)
    parts = {data[kind][name]["run"] for kind in ("tests", "chapters") for name in both if name in data[kind]}
    assert parts == {"2026-11-22T01:00:00Z 1/2", "2026-11-22T01:00:00Z 2/2"}
    assert attest.main(["--merge", str(tmp_path / "none.json")]) == 2
    assert "there is no" in capsys.readouterr().err


def test_a_record_of_schema_1_still_loads_and_attests_nothing(root):
    run_then = {**run(), "sources": {"tests/test_scan.py": "0" * 16}}
    entry = {"run": "2026-11-22T01:00:00Z", "digest": "0" * 16, **PASSED}
    old = {"schema": 1, "gpu": GPU, "runs": {"2026-11-22T01:00:00Z": run_then}, "tests": {TESTS[1]: entry}}
    put(root, {RECORD: json.dumps({**old, "chapters": {}})})
    why = "run on NVIDIA Test 1, 2026-11-22; it was not recorded then which sources this result depends on"
    assert stale.stale(root)[TESTS[1]] == why
    attested(root, CHAPTER)
    assert stale.stale(root) == {TESTS[0]: "never attested", TESTS[1]: why}


def test_what_is_told_to_stop_kills_its_processes_and_records_what_passed(on_a_gpu, tmp_path, monkeypatch, capsys):
    """The first chapter passes. While the second runs, SIGTERM comes."""
    out, pages = (
        tmp_path / "attested.json",
        ["notebooks/00_start_here", "notebooks/04_vector_add", "notebooks/08_warps"],
    )
    ran = []

    def run_chapter(source, **options):
        ran.append(source)
        if len(ran) == 1:
            return dict(RAN)
        tell = "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(600)"
        status, _ = attest._finish([sys.executable, "-c", tell], seconds=None)
        return {**RAN, "passed": status == 0}

    monkeypatch.setattr(attest, "run_chapter", run_chapter)
    assert attest.main([*pages, "--out", str(out)]) == 2
    chapters, when = stale.read(out)["chapters"], "2026-11-22T01:00:00Z"
    assert [name for name in pages if chapters.get(name, {}).get("run") == when] == pages[:1]
    assert f"told to stop before the end of {pages[1]}, {pages[2]}" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "outside of it the signal means what it did"


def test_when_the_seconds_are_used_up_nothing_more_begins(on_a_gpu, tmp_path, capsys):
    out = tmp_path / "attested.json"
    assert attest.main([*PART, "--seconds", str(attest.RESERVE), "--out", str(out)]) == 2
    assert [found for found, _ in on_a_gpu["asked"]] == [PART[:1]], "the tests were asked, with no time"
    assert f"the 10 s are used up before the end of {PART[1]}" in capsys.readouterr().err


def test_what_a_process_started_ends_with_it(tmp_path):
    """The child writes to a pipe that nobody else holds: its end is seen when the child has ended."""
    read, write = os.pipe()
    child = "import time\ntime.sleep(600)"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])"
    assert attest._finish([sys.executable, "-c", code], seconds=None, stdout=write) == (0, "")
    with pytest.raises(subprocess.TimeoutExpired):
        attest._finish([sys.executable, "-c", child], seconds=0.2, stdout=write)
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    assert not attest._running
