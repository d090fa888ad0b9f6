"""Each planted mistake is named with its rank and line, and its look-alike runs to the end."""

import pytest

from pmpp.parallel.owners import ForeignMemory, UnwrittenMemory
from pmpp.runtime import device
from tests.parallel.programs import PROGRAMS, Program, alarms, faults

pytestmark = pytest.mark.native("threads")

# Whose an array is, and who wrote to it, is known in the interpreter only.
seen = [one for one in PROGRAMS if not device.on_gpu() or one.kind not in (ForeignMemory, UnwrittenMemory)]
each = pytest.mark.parametrize("one", seen, ids=lambda one: one.name)


@each
def test_the_mistake_is_named(one):
    assert faults(one) == []


@each
def test_the_look_alike_is_left_alone(one):
    assert alarms(one) == []


@each
def test_it_is_named_in_the_same_words_every_time(one):
    def said():
        with pytest.raises(one.kind) as found:
            one.run(False)
        return str(found.value)

    assert said() == said()


def test_there_are_enough():
    assert len(PROGRAMS) >= 16
    assert len({one.name for one in PROGRAMS}) == len(PROGRAMS)


def test_the_judge_sees_a_wrong_rank_a_wrong_line_and_silence():
    def of(name, **changed):
        (one,) = [one for one in PROGRAMS if one.name == name]
        return faults(Program(**(vars(one) | changed)))

    (said,) = of("another_dtype", ranks=(2,))
    assert said.startswith("names ranks (1, 0, 2), planted in (2,)")
    (said,) = of("another_dtype", kind=ValueError)
    assert said.startswith("Mismatch, expected ValueError")
    assert of("another_dtype", function=lambda group, mended: 1) == ["nothing was raised: [1, 1, 1]"]
    (said,) = of("a_rank_that_raises", ranks=(1,))
    assert said.startswith("raised by rank 2 of 4 at ")
