"""Every argument of every rung and of every plain function is checked: its kind, its value, and the memory it lies in.

What is called, and with what, is found by inspection: `tests.support.public`. Each argument of a right call is replaced
by values of other kinds. An argument is either refused, by an error that begins with its name and shows what it was, or
it means what the same value of Python's own type means. Rungs are not launched: what `arguments` makes of a call is
enough.
"""

import importlib
import inspect
import math
import re

import numpy as np
import pytest

from pmpp.lab.rooms import rooms
from pmpp.runtime import device
from pmpp.runtime.rung import Problem, Rung
from tests.support.public import name_of, plain_functions, right_call, rungs

CALLED = [*rungs(), *plain_functions()]
each_call = pytest.mark.parametrize("function", CALLED, ids=name_of)
channels_last_gradients = importlib.import_module("pmpp.kernels.convolution_layer.channels_last_gradients")
mixed = importlib.import_module("pmpp.kernels.convolution_layer.mixed")
find = importlib.import_module("pmpp.kernels.convolution_layer.find")
conjugate_gradient = importlib.import_module("pmpp.kernels.sparse.conjugate_gradient")
formats = importlib.import_module("pmpp.kernels.sparse.formats")
pagerank = importlib.import_module("pmpp.kernels.graph.pagerank")
calibration = importlib.import_module("pmpp.kernels.quantisation.calibration")
on_tensor_cores = importlib.import_module("pmpp.kernels.attention.on_tensor_cores")
weight_only = importlib.import_module("pmpp.kernels.quantisation.weight_only")


empty = device.empty


def empty_but_for_counts(shape, dtype, **rest):
    """As ``device.empty``. But a count, from which the length of a result may follow, is 0 if no kernel has written it.

    On a GPU it is else what was in memory before, and the same call makes results of different lengths.
    """
    if shape == 1 and dtype is np.int64:
        return device.to_device(np.zeros(1, dtype))
    return empty(shape, dtype, **rest)


@pytest.fixture(autouse=True)
def nothing_is_launched(monkeypatch, request):
    if "function" in request.fixturenames:  # what its example makes before the call is made as ever
        right_call(request.getfixturevalue("function"))
    monkeypatch.setattr(Rung, "run", lambda self, p: p)
    monkeypatch.setattr(device, "empty", empty_but_for_counts)
    monkeypatch.setattr(conjugate_gradient, "_steps", lambda *given: given[2:])
    monkeypatch.setattr(formats, "_run", lambda work, *given: given)
    monkeypatch.setattr(pagerank, "_steps", lambda *given: given[2:])
    monkeypatch.setattr(find, "_candidate", lambda name, *rest: find.Candidate(name, 1.0, 0, 0.0))
    monkeypatch.setattr(find, "samples_of", lambda p: None)
    monkeypatch.setattr(calibration, "ends_of", lambda rows, stream: 2 * (np.ones(rows.shape[0]),))
    monkeypatch.setattr(calibration, "narrowed", lambda row, low, high, *rest: (low, high))
    # What these compute is not looked at, and they have no arguments but what was checked.
    monkeypatch.setattr(on_tensor_cores, "by_tile", lambda *given: None)
    monkeypatch.setattr(mixed, "gathered", lambda *given: None)
    monkeypatch.setattr(mixed, "correlated", lambda *given: None)
    monkeypatch.setattr(mixed, "_add_parts", lambda *given: None)
    monkeypatch.setattr(channels_last_gradients, "_product", lambda *given: None)
    monkeypatch.setattr(weight_only, "numbers_of_groups", lambda x, *rest: (x.astype(np.int8), np.ones(len(x), "f4")))


def test_what_is_called_is_every_rung_of_every_room_and_more():
    of_rooms = {rung for room in rooms() for rung in room.LADDER}
    assert of_rooms < set(rungs())
    assert find.find in plain_functions()


def parameters_of(function):
    return inspect.signature(function).parameters


# --------------------------------------------------------------------------------------------- arguments of other kinds

VALUES = [
    None, True, False, 0, 1, -1, 2**70, 1.5, 1.0, 1e300, 1e-300, math.nan, math.inf, -math.inf, 1j,
    "no such", "", b"sum", object(), np.float32, len,
    {}, {1}, [], [1], ["a"], [1, 1], [1, 1, 1], [1.5, 1.5], [True, True], (), (1,), (1, None),
    np.True_, np.int64(1), np.int8(-1), np.uint64(2**63), np.float32(0.5), np.float32("nan"), np.float64(1e300),
    np.str_("no such"),
    np.array(1), np.array([1, 1]), np.array([1.5, 2.5]), np.array([True, False]), np.array(["a", "b"]),
]  # fmt: skip


def plain(value):
    """The same value of Python's own type. A pair may be given as a list."""
    if isinstance(value, list):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


def kinds_of(default, given):
    """The types of Python's own that a parameter may accept, by its default and by an argument that is right.

    Where both are None it may take an array, a number or a pair: each is judged by what it does.
    """
    if isinstance(default, bool | str):
        return {type(default)}
    if isinstance(default, float):
        return {float, int}
    if isinstance(given, float):
        kinds = {float, int}
    else:
        kinds = {int, tuple} if isinstance(given, int | tuple | list | None) else set()
    return kinds | {type(None)} if default is None else kinds


def outcome(function, arguments):
    """What a call makes, in a form that can be compared: of arrays their form, of numbers their type and value."""
    made = function(**arguments)
    return form_of(vars(made) if isinstance(made, Problem) else made)


def form_of(value):
    if isinstance(value, tuple):
        return type(value), [form_of(one) for one in value]
    if hasattr(value, "copy_to_host") or isinstance(value, np.ndarray):
        return "array", tuple(value.shape), str(value.dtype)
    if isinstance(value, dict):
        return {name: form_of(one) for name, one in value.items()}
    return type(value), value


def names(said, name, value):
    """Whether an error says what an argument must be: it begins with its name, or says which value asks for that."""
    return re.match(rf"{name}\b.* must ", said) or re.search(rf" must .*\b{re.escape(f'{name}={value!r}')}", said)


def words_for(value):
    """What may stand in an error for a value: itself, or of what is no number or word its type or form."""
    several = [words for one in value for words in (one, type(one).__name__)] if isinstance(value, tuple | list) else []
    words = {repr(value), str(value), type(value).__name__, *map(str, several)}
    if isinstance(value, np.ndarray):
        words |= {"a NumPy array", f"was {value.dtype}", f"had {value.shape}", f"had {value.ndim}"}
    return words - {""}


WORDS = [(value, words_for(value)) for value in VALUES]  # made once: to print an array takes longer than most calls


@each_call
def test_an_argument_of_another_kind_is_refused_by_name_or_means_the_same(function):
    right = right_call(function)
    wrong = []
    for name, parameter in parameters_of(function).items():
        given = right.get(name, parameter.default)
        for value, words in WORDS:
            if isinstance(given, np.ndarray) and isinstance(value, np.ndarray) and value.dtype.kind != "U":
                continue  # whether such an array is right depends on the others
            if isinstance(given, np.number) and isinstance(value, np.number):
                continue  # of NumPy's numbers several dtypes may be right
            try:
                made = outcome(function, right | {name: value})
            except (TypeError, ValueError) as error:
                said = str(error)
                if not names(said, name, value) or not any(word in said for word in words):
                    wrong.append(f"{name}={value!r}: {type(error).__name__}: {said}")
                continue
            except Exception as error:
                wrong.append(f"{name}={value!r}: {type(error).__name__}: {error}")
                continue
            same = plain(value)
            if type(same) not in kinds_of(parameter.default, given):
                wrong.append(f"{name}={value!r} is accepted, in place of {given!r}")
            elif made != outcome(function, right | {name: same}):
                wrong.append(f"{name}={value!r} does not do what {same!r} does")
    assert wrong == []


NUMPYS = {bool: (np.bool_,), int: (np.int64, np.int32, np.uint8), float: (np.float64, np.float32), str: (np.str_,)}


@each_call
def test_a_scalar_of_numpy_is_taken_as_one_of_pythons(function):
    right = right_call(function)
    for name, parameter in parameters_of(function).items():
        value = right.get(name, parameter.default)
        for kind in NUMPYS.get(type(value), ()) if name != "stream" else ():
            if kind is not np.uint8 or 0 <= value < 256:
                scalar = kind(value)
                assert outcome(function, right | {name: scalar}) == outcome(function, right | {name: scalar.item()})


# --------------------------------------------------------------------------------------------- calls that do not fit


@pytest.mark.parametrize("rung", rungs(), ids=name_of)
def test_a_rung_takes_a_stream_by_name(rung):
    stream = parameters_of(rung)["stream"]
    assert stream.kind is inspect.Parameter.KEYWORD_ONLY
    assert stream.default == 0


def refused(function, /, *args, **kwargs):
    """What Python's TypeError says, which names what was called, and not the function that checks its arguments."""
    with pytest.raises(TypeError) as raised:
        function(*args, **kwargs)
    said = str(raised.value)
    public = name_of(function) if isinstance(function, Rung) else f"{function.__name__}()"
    assert said.startswith(public)
    assert not re.search(r"\b\w*arguments\(", said)
    if isinstance(function, Rung):
        assert said.endswith(f": call it as {public}{inspect.signature(function)}")
    return said


@each_call
def test_a_misspelt_keyword_is_named_and_a_rung_knows_what_was_meant(function):
    right = right_call(function)
    for name in parameters_of(function):
        misspelt = name + name[-1]
        said = refused(function, **right, **{misspelt: None})
        assert f"unexpected keyword argument '{misspelt}'" in said
        assert f"(did you mean '{name}'?)" in said or not isinstance(function, Rung)
    assert "did you mean" not in refused(function, **right, nothing_like_it=None)


@each_call
def test_missing_superfluous_and_repeated_arguments_are_named(function):
    parameters, right = parameters_of(function), right_call(function)
    first = next(iter(parameters))
    others = {name: value for name, value in right.items() if name != first}
    assert "missing" in (said := refused(function, **others))
    assert repr(first) in said
    assert "positional argument" in refused(function, *[None] * (len(parameters) + 1))
    assert f"multiple values for argument '{first}'" in refused(function, right[first], **right)


# --------------------------------------------------------------------------------------------------------- memory


def may_be(function):
    """The arguments that ``out`` may be, by the docstring. Of a function without an entry for ``out``: None."""
    found = re.search(r"^ +out: (.*?)\n(?= *\w+: |\n)", inspect.getdoc(function), re.MULTILINE | re.DOTALL)
    if not found:
        return None
    entry = " ".join(found.group(1).split())
    assert "apart from" in entry, f"the docstring does not say that out lies apart from the others: {entry}"
    return re.findall(r"``(\w+)``", entry.partition("It may be")[2].partition(",")[0])


def arrays_of(arguments):
    """Each array among the arguments, also of a pair: its parameter, the array, and what to pass with another one."""
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            yield name, value, lambda other, name=name: {name: other}
        elif isinstance(value, tuple):
            for i, one in enumerate(value):
                if isinstance(one, np.ndarray):
                    yield name, one, lambda other, name=name, v=value, i=i: {name: (*v[:i], other, *v[i + 1 :])}


def in_one_memory(x, out, offset):
    """Two device arrays of the form of x and of out, of which the second begins that many bytes behind the first."""
    begin = max(0, -offset)
    end = max(begin + x.nbytes, begin + offset + out.nbytes)
    memory = device.to_device(np.zeros(end, np.uint8))

    def part(first, array):
        return memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)

    return part(begin, x), part(begin + offset, out)


@pytest.mark.parametrize("function", [one for one in CALLED if "out" in parameters_of(one)], ids=name_of)
def test_an_output_that_overlaps_an_input_is_refused(function):
    right = right_call(function)
    made = function(**right)
    out, allowed = device.to_host(made.result if isinstance(made, Problem) else made), may_be(function)
    for name, x, replaced in arrays_of(right):
        step = max(x.itemsize, out.itemsize)
        for offset in (0, x.nbytes - step, step - out.nbytes):  # the first, the last element of x, the last of out
            there, result = in_one_memory(x, out, offset)
            if offset == 0 and (allowed is None or name in allowed) and x.shape == out.shape:
                if allowed is not None:
                    function(**right | replaced(there), out=there)
                    function(**right | replaced(there), out=result)
                continue
            words = (
                rf"^out must (be {name} itself or )?share no memory with (it|{name}.*), had \d+ bytes, shared \d+ of"
            )
            with pytest.raises(ValueError, match=words):
                function(**right | replaced(there), out=result)
        for offset in (x.nbytes, -out.nbytes):  # side by side
            there, result = in_one_memory(x, out, offset)
            function(**right | replaced(there), out=result)
