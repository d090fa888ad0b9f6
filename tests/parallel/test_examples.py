"""The chapters' scripts: right for several numbers of ranks, started as processes too, and loud when they are wrong."""

import re

import numpy as np
import pytest

from pmpp import parallel
from pmpp.parallel import all_reduce, pipeline, run, scaling
from pmpp.parallel.examples import digits, layers, machines, plate, same, stages, sums
from pmpp.parallel.examples.__main__ import SCRIPTS
from pmpp.runtime import device

each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__.rpartition(".")[2])


def test_every_chapter_about_several_gpus_has_a_script():
    chapters = [int(re.match(r"Chapter (\d+) as a script", script.__doc__)[1]) for script in SCRIPTS]
    assert chapters == [99, 100, 101, 102, 103, 104]


@pytest.mark.native("threads")
@each
def test_four_ranks_find_what_one_finds(script, unchecked):
    lines = parallel.ranks(4, script.run)
    assert all(re.search(r"\d", line) for line in lines)


@pytest.mark.native("processes")
def test_they_are_run_as_processes(capsys, monkeypatch):
    """One of them: what the others find is tested above, and how processes are started in test_run.py."""
    monkeypatch.setenv("PMPP_CHECK", "")
    assert run.main(["-n", "2", "--timeout", "120", "-m", "pmpp.parallel.examples.sums"]) == 0
    assert re.search(r"^\[0\] 2 ranks, simulated: ", capsys.readouterr().out, re.MULTILINE)


def test_all_are_run_one_after_another(monkeypatch, capsys):
    ran = []
    for script in SCRIPTS:
        monkeypatch.setattr(script, "run", lambda group, script=script: ran.append(script) or "found")
    same.main(*SCRIPTS)
    assert ran == list(SCRIPTS)
    assert capsys.readouterr().out.count("1 rank") == len(SCRIPTS)


def test_what_is_off_or_no_number_is_an_error():
    assert same.within("x", [1.0, 2.0], [1.0, 2.5], 0.5) == 0.5
    for found in ([1.0, 3.1], [1.0, np.nan]):
        with pytest.raises(RuntimeError, match="x of several ranks is not that of one"):
            same.within("x", found, [1.0, 2.5], 0.5)


# ----------------------------------------------------------------------------------------------------- planted mistakes


def doubled(group, x):
    total = all_reduce.ring(group, x)
    return device.to_device(2 * device.to_host(total))


def without_the_last(stage, count):
    pipeline.gpipe(stage, count - (stage.group.size > 1))


def not_summed(context, dy):
    return dy, None


@pytest.mark.native("threads")
@pytest.mark.parametrize(
    "script, where, name, wrong, said",
    [
        (sums, all_reduce, "LADDER", (doubled,), "the sum by doubled"),
        (digits, digits.data.DataParallel, "average_gradients", lambda net: None, "rank 1 has another"),
        (layers, layers.tensor.Copy, "backward", staticmethod(not_summed), "the gradient of the input"),
        (stages, pipeline, "one_forward_one_backward", without_the_last, "a gradient"),
        (plate, plate.halo, "reference", lambda grid, steps: grid, "other bits"),
        (machines, scaling, "two_levels", lambda group, x, per: group.all_reduce(2 * x), "the sum on two levels"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_program_is_no_success(script, where, name, wrong, said, monkeypatch, unchecked):
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(Exception, match=said):
        parallel.ranks(2, script.run)
