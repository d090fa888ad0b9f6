"""Idioms of CUDA-Python code: each does what Numba makes of it, or is refused with a sentence that is true.

`idioms.py` has the kernels, `idioms.json` what numba-cuda made of each: what was left in its arrays, or "refused".
"""

import argparse
import hashlib
import importlib.metadata
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

from pmpp import simt
from tests.simt import idioms

RECORD = Path(__file__).with_name("idioms.json")
KERNELS = {kernel.py_func.__name__: kernel for kernel in idioms.KERNELS}

#: What Numba compiles and the interpreter does not, and what it says.
LACKED = {
    "defaults_of_functions_inside_by_name": "Numba gives it no arguments by name: give them in their order",
    "defaults_of_functions_inside_in_part": "whose defaults Numba mixes up if only some are given: give all or none",
    "hasattr_of_an_array": "Numba compiles hasattr, but the interpreter lacks it",
    "index_of_a_tuple_method": "a tuple of 3 has no method index() in a kernel: write a loop",
    "iter_in_a_loop": "Numba compiles iter, but the interpreter lacks it; loop over the thing itself",
    "next_of_an_iterator": "Numba compiles iter, but the interpreter lacks it",
    "np_searchsorted": "Numba compiles np.searchsorted, but the interpreter lacks it; write a loop",
    "optional_numbers_compared": "nothing in others and nothing; ask `is None` first",
    "variable_of_two_unlike_kinds": "a variable cannot be a 1-D array of float32 in some threads and int64 in others",
}

#: What Numba refuses and the interpreter runs: it would have to type a path before anything is known of it.
PASSES = {"variable_that_is_none_at_first"}

#: What the refusals of both say.
SAYS = {
    "append_to_a_list": "a list does not exist on the device: write a tuple, (1, 2), or cuda.local.array",
    "array_compared": "the operator == does not take a 1-D array of float32",
    "array_of_another_type_chosen": "Numba has no type for both",
    "asserts_with_an_f_string": "what an exception says must be a constant",
    "class_attribute": "Numba does not compile Config.SCALE, an attribute of Config, a class: give it a global name",
    "attribute_of_an_object": "Numba does not compile CONFIG.scale, an attribute of CONFIG, a Settings: give it",
    "conditional_expressions": "Numba takes no bool as its index: write a if condition else b",
    "constant_beyond_64_bits_written_out": "does not fit 64 bits: write it as a float",
    "f_string": "an f-string does not exist on the device: print takes several values",
    "flattened": "a kernel makes no arrays; write x.reshape(x.size)",
    "global_of_70_bits": "TOO_BIG is 1180591620717411303424, which does not fit 64 bits: make it a float",
    "loop_over_a_global_list": "NUMBERS is a list, and Numba compiles no list that is a global: make it a tuple",
    "int_enum_times_a_float": "Numba, which has no floats of an IntEnum: write Color.GREEN.value",
    "int_enum_as_a_shape": "is Color.GREEN: write Color.GREEN.value",
    "loop_over_reversed_range": "reversed cannot be called in a kernel: write range(n - 1, -1, -1)",
    "match_on_a_tuple": "Numba does not compile this match: compare the elements with if",
    "match_with_a_guard": "a name, v, together with a condition behind `if` does not compile",
    "math_gcd": "Numba does not compile math.gcd for a GPU; write a loop",
    "np_abs": "Numba compiles no np.abs for a GPU; write abs(x)",
    "np_clip": "write min(max(x, low), high)",
    "np_sqrt": "write math.sqrt(x)",
    "prints_with_a_separator": "print takes no end= on a GPU: values alone",
    "raises_with_an_f_string": "what an exception says must be a constant",
    "row_assigned_from_an_array": "Numba assigns no array to a slice on a GPU; write a loop",
    "try_and_except": "try does not exist on the device: test with if before",
    "view_of_a_function": "row_alone returns an array that was not passed to it, such as a part of one",
    "walrus": "an assignment expression does not exist on the device: assign on a line of its own",
}

#: Words of Python's that say nothing to a reader.
INTERNAL = re.compile(r"object has no attribute|<lambda>|<locals>|positional argument|NoneType|__\w+__|Traceback")


def arguments(kernel):
    """Fresh arguments of a kernel, by the names of its parameters."""
    known = idioms.given()
    return {name: known[name] for name in inspect.signature(kernel.py_func).parameters}


def left_in(given):
    """What stands in the arrays, as lists; complex numbers as text."""
    arrays = {
        name: value for name, value in given.items() if isinstance(value, np.ndarray) and value.dtype.names is None
    }
    before = idioms.given()
    changed = {
        name: a for name, a in arrays.items() if not np.array_equal(a, before[name], equal_nan=a.dtype.kind in "fc")
    }
    return {name: a.astype(str).tolist() if a.dtype.kind == "c" else a.tolist() for name, a in changed.items()}


def source_of(kernel):
    """A digest of what a kernel says, the functions and constants of its file included."""
    text = inspect.getsource(kernel.py_func) + _before_the_kernels()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _before_the_kernels():
    return Path(idioms.__file__).read_text(encoding="utf-8").partition("# ----")[0]


def ask(launcher, kernel):
    """What numba-cuda makes of a kernel: what is left in its arrays, "refused", or "compiles" if it cannot run here."""
    from tests.support.launched import Unknown
    from tests.support.lowered import Refused

    given = arguments(kernel)
    try:
        raised = launcher.launch(kernel, idioms.BLOCKS, idioms.THREADS, tuple(given.values()))
    except Refused:
        return "refused"
    except Unknown:
        return "compiles"
    return "raised" if raised else left_in(given)


def alike(a, b):
    """Whether two records say the same: exactly, but for what a library computes."""
    if isinstance(a, str) or isinstance(b, str) or a.keys() != b.keys():
        return a == b
    kinds = [np.asarray(a[name]).dtype.kind for name in a]
    pairs = [(np.asarray(a[n], k if k == "c" else None), np.asarray(b[n])) for n, k in zip(a, kinds, strict=True)]
    return all(
        p.shape == q.shape
        and np.allclose(*(x.astype(complex) if x.dtype.kind == "U" else x for x in (p, q)), 1e-14, 0, equal_nan=True)
        for p, q in pairs
    )


RECORDED = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"kernels": {}}


def test_the_record_is_of_these_kernels():
    stale = [n for n, k in KERNELS.items() if RECORDED["kernels"].get(n, {}).get("source") != source_of(k)]
    assert not stale, f"python -m tests.simt.test_idioms asks Numba about {stale}"
    assert RECORDED["kernels"].keys() == KERNELS.keys()


@pytest.mark.parametrize("name", KERNELS)
def test_an_idiom_does_what_numba_makes_of_it(name):
    kernel, numba = KERNELS[name], RECORDED["kernels"][name]["numba"]
    given, refusal = arguments(kernel), None
    try:
        report = simt.profile(kernel, idioms.BLOCKS, idioms.THREADS, tuple(given.values()), level="check")
    except simt.SimtError as error:
        refusal = str(error)
    if name in PASSES:
        assert (numba, refusal) == ("refused", None)
    elif name in LACKED or numba == "refused":
        assert refusal is not None
        assert LACKED.get(name, SAYS.get(name, "")) in refusal
        assert not INTERNAL.search(refusal), refusal
        lines, first = inspect.getsourcelines(kernel.py_func)
        assert re.search(rf"idioms\.py:({'|'.join(str(first + k) for k in range(len(lines)))}): ", refusal) or (
            name in ("function_with_named_only_parameters",)  # refused where it is defined
        )
    else:
        assert refusal is None
        assert numba == "compiles" or alike(left_in(given), numba), f"{left_in(given)}, where Numba gives {numba}"
        assert not [hazard for hazard in report.hazards if hazard.kind != "race"]


@pytest.mark.parametrize("name", [*KERNELS][::8])
@pytest.mark.parametrize("lanes, schedule", [(4, None), (1 << 20, "lanes")])
def test_what_it_does_depends_on_no_batch_and_no_schedule(name, lanes, schedule):
    kernel, numba = KERNELS[name], RECORDED["kernels"][name]["numba"]
    if isinstance(numba, dict) and name not in LACKED:
        given = arguments(kernel)
        with simt.batch_lanes(lanes):
            simt.profile(kernel, idioms.BLOCKS, idioms.THREADS, tuple(given.values()), level="run", schedule=schedule)
        assert alike(left_in(given), numba)


@pytest.mark.parametrize("name", [name for name in KERNELS if "string" not in name][::40])  # strings take seconds
def test_numba_still_makes_the_same_of_it(name, launcher):
    assert alike(ask(launcher, KERNELS[name]), RECORDED["kernels"][name]["numba"])


@pytest.fixture(scope="module")
def launcher():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from tests.support.launched import Launcher

    return Launcher()


def main():
    """Ask Numba about the kernels that have changed since the record, or about all, and write it anew."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--all", action="store_true", help="ask about every kernel")
    everything = parser.parse_args().all
    from tests.support.launched import Launcher

    launcher, found = Launcher(), {}
    for name, kernel in KERNELS.items():
        known = RECORDED["kernels"].get(name, {})
        fresh = known.get("source") == source_of(kernel) and not everything
        found[name] = known if fresh else {"source": source_of(kernel), "numba": ask(launcher, kernel)}
    versions = {package: importlib.metadata.version(package) for package in ("numba-cuda", "numba", "llvmlite")}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in found.items())
    RECORD.write_text(f'{{"versions": {json.dumps(versions)}, "kernels": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
