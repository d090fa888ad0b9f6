"""Parts of a long run: who does what, and what their runs are called."""

import argparse

import pytest

from pmpp.lab.measure.parts import Part, run_name, share


def test_parts_are_whole_and_take_equally_long():
    seconds = {f"{n}": n % 17 + 1.0 for n in range(200)} | {"new": None, "other": None}
    parts = [share(seconds, Part(k, 4)) for k in (1, 2, 3, 4)]
    assert sorted(name for part in parts for name in part) == sorted(seconds)
    loads = [sum(seconds[name] or 9.0 for name in part) for part in parts]
    assert max(loads) - min(loads) <= 2
    assert parts[0] == [name for name in seconds if name in parts[0]], "in the order that was given"
    # One that takes longer than all others together has a part of its own.
    assert share({"long": 100.0, "a": 1.0, "b": 2.0}, Part(1, 2)) == ["long"]
    assert share(dict.fromkeys("abcd"), Part(2, 2)) == ["b", "d"]
    assert share({}, Part(1, 2)) == share({"a": 1.0}, Part(2, 2)) == []


def test_a_part_is_a_number_of_a_number():
    assert Part.parse("2/4") == Part(2, 4)
    assert str(Part(2, 4)) == "2/4"
    for text in ("0/4", "5/4", "2", "a/b", "2/4/8", "-1/4", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="K/N with K from 1 to N"):
            Part.parse(text)


def test_runs_of_parts_that_begin_together_have_names_of_their_own():
    run = {"date": "2026-11-28T01:00:00Z"}
    assert run_name(run) == "2026-11-28T01:00:00Z"
    assert run_name({**run, "part": "2/4"}) == "2026-11-28T01:00:00Z 2/4"
