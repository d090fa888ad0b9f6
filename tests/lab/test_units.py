"""A room's roof is that of the units that it uses, and who uses tensor cores says so."""

import pytest

from pmpp.lab import rooms
from pmpp.lab.measure import record, units
from pmpp.lab.measure.roofline import Ceilings


class Kept:
    """A record of one run."""

    def __init__(self, **tensor):
        self.kept = Ceilings(4e12, 60e12, "a test", 2e-6, 15e-6, tensor)

    def ceilings(self, room):
        return self.kept


def test_who_says_so_is_a_room_and_a_rate_is_measured_for_its_type():
    assert units.tensor_types()["warpgroups"] == "float16"
    assert units.tensor_types()["sparsity"] == "float16", "the only room of a subject has its name"
    for name in units.tensor_types():
        rooms.room_named(name)  # raises if there is none
    shown = record.load(record.RECORDED / record.SHOWN)
    assert set(units.tensor_types().values()) <= set(shown.ceilings().tensor)


def test_the_roof_is_that_of_the_units():
    both = Kept(float16=800e12)
    assert units.roof(both, "matmul") == (both.kept, None, True)
    ceilings, tensor, known = units.roof(both, "warpgroups")
    assert (ceilings.fma_f32, tensor, known) == (800e12, "float16", True)
    assert units.roof(both, "integer_linear") == (both.kept, "int8", False), "its rate was not measured"


@pytest.mark.parametrize("kind", ["library", "rung"])
@pytest.mark.parametrize("who", ["cuda.add_min", "cupy.sort", "cuda_like"])
def test_a_kernel_of_ours_among_libraries_is_a_roof(kind, who):
    shown = record.load(record.RECORDED / record.SHOWN)
    entry = shown.entries("vector_add")[0]
    made = type(entry)(**{**vars(entry), "kind": kind, "contender": who})
    assert units.is_roof(made) == (kind == "library" and who == "cuda.add_min")
