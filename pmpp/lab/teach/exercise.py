"""Exercises: `check()` runs a reader's kernel on awkward inputs, and says what a good teacher would say.

    from pmpp import check
    check("vector_add/saxpy", my_kernel)

An exercise is data. A subject's ``exercises.py`` holds ``EXERCISES``, a tuple of `Exercise`; an exercise makes its own
`Case` s: the arguments of a launch, its geometry, and what the outputs must then hold. To write one::

    def _scale_cases(rng):
        cases = []
        for n in (1, 255, 256, 257, 5000):      # a block and one more or less; one size that fits the blocks exactly
            x = rng.standard_normal(n, dtype=np.float32)
            args = np.float32(3), x, unwritten(n, np.float32)
            cases.append(Case(f"n = {n}", args, grid=-(-n // 256), block=256,
                              expected={2: 3.0 * x.astype(np.float64)}, tolerance={2: 2**-24 * np.abs(3 * x)}))
        return cases

    @cuda.jit
    def scale_answer(a, x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a * x[i]

    EXERCISES = (
        Exercise("room/scale", "Write out = a * x.", parameters="a, x, out", cases=_scale_cases, answer=scale_answer),
    )

- Order the cases from small to large: the first that shows a mistake is the one that the reader is told about. Name a
  case so that it reads after "with". Have more than one size, one case with a single block, one that fills its blocks
  exactly, and for two dimensions no square. The counters are judged on the largest.
- Outputs start as `unwritten()`, so what the kernel leaves out shows. An output that the kernel adds to starts as 0.
  Where an element must stay as it was, ``expected`` holds what it was. Array arguments without an entry in ``expected``
  are inputs, and must not change.
- Say in a comment where a tolerance comes from. Where there is none, the result must be equal.
- ``answer`` sets the budget: a kernel may move half as many sectors again, and so on (see `pmpp.lab.teach.diagnosis`).
  ``budget`` is for what it should say itself, or set otherwise: ``lambda case: {"atomic_requests": (blocks, "One atomic
  a block is enough.")}``. A counter in it has this limit alone; ``math.inf`` is none. Besides the counters of a report
  there is "declared_shared_bytes": what the kernel takes beside the dynamic shared memory of the launch.
- ``traps`` name a wrong result that can be foreseen: a `Trap` computes what the mistake would give.
- A case with ``grid=None`` is for a function that runs on the host: ``answer(*args)`` is called, and ``expected[0]``
  is what it must return, an array (of either side) or a number. What it launches in the interpreter is checked.
- ``answers.py`` and ``wrong.py`` of tests/kernels/<subject>/ have wrong answers, and tests/contract/test_exercises.py
  shows that each is found out for its reason.
"""

from __future__ import annotations

import collections
import difflib
import functools
import html
import importlib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pmpp.lab.rooms import exercise_modules
from pmpp.lab.teach.source import in_notebook

__all__ = [
    "MOST_BLOCKS",
    "MOST_THREADS",
    "Case",
    "Exercise",
    "Trap",
    "Verdict",
    "can_step",
    "check",
    "exercise",
    "exercises",
    "in_modules",
    "named",
    "shown",
    "unwritten",
]

# The largest launches that `pmpp.lab.draw.stepper` shows: one full block, or several small ones.
MOST_BLOCKS = 4
MOST_THREADS = 1024

# Those of `pmpp.lab.draw.palette`, and not imported: every test depends on this file, and would on every colour.
RIGHT, WRONG, OPEN = "#2D9E68", "#D55E00", "#0C71B3"
SEED = 20261121  # the same inputs on every run, so that a verdict can be talked about

#: Former names of exercises, and what they are called now. Notebooks that were handed out and grade books have names,
#: so a name stays (tests/contract/exercise_names.txt).
ALIASES: dict[str, str] = {}


def unwritten(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """An array for a kernel to write: NaN, or for integers bytes of 0x5A, so that what is left out shows."""
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        return np.full(shape, np.nan, dtype)
    out = np.empty(shape, dtype)
    out.reshape(-1).view(np.uint8)[:] = 0x5A
    return out


@dataclass(frozen=True, eq=False)
class Case:
    """One launch: ``kernel[grid, block, 0, sharedmem](*args)``, and what the outputs must then hold.

    name       reads after "with": "n = 1025"
    args       NumPy arrays and numbers, in the order of the exercise's parameters; each launch gets fresh copies
    grid       blocks, an int or a tuple; None: the answer is a function of the host
    block      threads a block, an int or a tuple
    expected   {index in args: array of the argument's shape}; the array arguments not in it are inputs
    tolerance  {index in args: largest error allowed, a number or an array}; 0 where there is none
    sharedmem  bytes of dynamic shared memory
    """

    name: str
    args: tuple
    grid: int | tuple[int, ...] | None
    block: int | tuple[int, ...] | None
    expected: Mapping[int, typing.Any]
    tolerance: Mapping[int, typing.Any] = field(default_factory=dict)
    sharedmem: int = 0

    def __post_init__(self) -> None:
        for index, value in self.expected.items() if self.grid is not None else ():
            argument = self.args[index]
            if not isinstance(argument, np.ndarray) or argument.shape != np.shape(value):
                raise ValueError(
                    f"case {self.name!r}: expected[{index}] must have the shape of the array args[{index}]"
                )
        if stray := set(self.tolerance) - set(self.expected):
            raise ValueError(
                f"case {self.name!r}: there is a tolerance for {sorted(stray)}, but nothing expected there"
            )

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arguments that are arrays."""
        return [argument for argument in self.args if isinstance(argument, np.ndarray)]

    def copies(self) -> tuple:
        """The arguments for one launch, which may write to them."""
        return tuple(arg.copy(order="K") if isinstance(arg, np.ndarray) else arg for arg in self.args)

    @property
    def size(self) -> int:
        """Elements in all its arrays."""
        return sum(array.size for array in self.arrays)

    @property
    def largest(self) -> int:
        """Elements in its largest array."""
        return max((array.size for array in self.arrays), default=0)


@dataclass(frozen=True, eq=False)
class Trap:
    """A mistake that can be foreseen: ``wrong(*args)`` gives the outputs, ``{index: array}``, that it would lead to.

    A kernel whose result is that one, in every case that it gets wrong, is told ``mistake`` and ``sentence``. NaN
    stands for any value, and one element in a hundred may differ. It is given copies, outputs as before the launch.
    """

    mistake: str
    sentence: str
    wrong: Callable[..., dict[int, np.ndarray]]


@dataclass(frozen=True, eq=False, repr=False)
class Exercise:
    """A task, and all that is needed to judge an answer; how to write one is in the module's docstring.

    name        "room/task"
    task        what to write, in a sentence or two
    parameters  the kernel's parameters in order: "x, y, out"
    cases       ``cases(rng)`` gives the list of `Case`, from small to large
    budget      ``budget(case)`` gives {counter: (limit, sentence)} for the largest case, beside what ``answer`` implies
    hints       each says a little more than the one before
    answer      a right answer
    traps       wrong results to recognise
    advice      {mistake: sentence} where the usual advice (`pmpp.lab.teach.diagnosis.ADVICE`) is not for this task
    """

    name: str
    task: str
    parameters: str
    cases: Callable[[np.random.Generator], list[Case]]
    budget: Callable[[Case], dict[str, tuple[float, str]]] | None = None
    hints: tuple[str, ...] = ()
    answer: typing.Any = None
    traps: tuple[Trap, ...] = ()
    advice: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def inputs(self) -> list[Case]:
        """The cases, made once, always the same."""
        return self.cases(np.random.default_rng(SEED))

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [name.strip() for name in self.parameters.split(",")]

    def arguments(self, case: Case) -> tuple:
        """Copies of a case's arguments, as a named tuple."""
        return collections.namedtuple("inputs", self.names)(*case.copies())

    def __repr__(self) -> str:
        return f"{self.name}({self.parameters}): {self.task}"

    def _repr_html_(self) -> str:
        hints = "".join(
            f"<details><summary>Hint {i}</summary>{html.escape(hint)}</details>" for i, hint in enumerate(self.hints, 1)
        )
        name, task, parameters = map(html.escape, (self.name, self.task, self.parameters))
        return f"<p><b>{name}</b> {task}</p><p>Parameters: <code>{parameters}</code></p>{hints}"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What `check` found. True if the answer passed.

    exercise, passed
    mistake   its name, such as "missing guard"; "" if the answer passed
    message   what was seen, in which case, on which line, and what to do; begins with the mistake
    case      the name of the case that shows it, or ""
    line      the line of the reader's source, counted in its file or cell, or None
    code      that line
    inputs    the arguments of that case as they were before the launch, a tuple with the names of the parameters; ()
              without a case
    launch    the grid, the block, the stream and the bytes of dynamic shared memory: the case is
              ``kernel[verdict.launch](*verdict.inputs)``; () without a case, and for a function of the host
    kernel    the name of what was judged, or ""

    ``pmpp.lab.draw.stepper.step(kernel, verdict)`` shows that launch line by line, if it is small (`can_step`). A
    notebook says so.
    """

    exercise: str
    passed: bool
    mistake: str
    message: str
    case: str = ""
    line: int | None = None
    code: str = ""
    inputs: tuple = field(default=(), compare=False)
    launch: tuple = field(default=(), compare=False)
    kernel: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        quoted = f"\n    {self.line} | {self.code}" if self.line and self.code else ""
        return f"{self.exercise}: {self.message}{quoted}"

    def _repr_html_(self) -> str:
        colour = RIGHT if self.passed else WRONG
        quoted = f"<br><code>{self.line} | {html.escape(self.code)}</code>" if self.line and self.code else ""
        steps = ""
        if self.can_step() and self.kernel.isidentifier():
            steps = (
                "<br>Line by line: <code>from pmpp.lab.draw.stepper import step</code>, and in the next cell "
                f"<code>step({self.kernel}, _)</code>"
            )
        return (
            f"<div style='border-left:4px solid {colour};padding-left:0.8em'><b>{html.escape(self.exercise)}</b>: "
            f"{html.escape(self.message)}{quoted}{steps}</div>"
        )

    def can_step(self) -> bool:
        """Whether there is a launch, and `pmpp.lab.draw.stepper.step` shows launches of that size."""
        return bool(self.launch) and can_step(*self.launch[:2])


def can_step(grid: int | tuple[int, ...], block: int | tuple[int, ...]) -> bool:
    """Whether a launch is small enough to be stepped through: MOST_BLOCKS, and MOST_THREADS of all blocks."""
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    return blocks <= MOST_BLOCKS and blocks * threads <= MOST_THREADS


# What a package of exercises makes its own `exercises`, `exercise` and `check` of.


def in_modules(names: Iterable[str]) -> dict[str, typing.Any]:
    """The exercises of modules that hold ``EXERCISES``, by name. ``names`` are the full names of the modules."""
    return {one.name: one for name in names for one in importlib.import_module(name).EXERCISES}


def named(name: str, found: Mapping[str, typing.Any]) -> typing.Any:
    """``found[name]``. ValueError that says which names are close, if it is not there."""
    if name not in found:
        close = difflib.get_close_matches(name, found, n=3, cutoff=0.3) or sorted(found)
        raise ValueError(f"there is no exercise {name!r}; there is {', '.join(map(repr, close))}")
    return found[name]


def shown(verdict: Verdict) -> Verdict:
    """The verdict, printed unless in a notebook: a notebook shows the Verdict that a cell ends in."""
    if not in_notebook():
        print(verdict)
    return verdict


def exercises() -> dict[str, Exercise]:
    """Every exercise by name, room by room."""
    return in_modules(exercise_modules().values())


def exercise(name: str) -> Exercise:
    """The exercise of that name, or of that former name; in a notebook it shows its task and hints.

    ValueError if there is none.
    """
    return named(ALIASES.get(name, name), exercises())


def check(name: str, answer: typing.Any) -> Verdict:
    """Judge an answer to an exercise: does it compute the right thing, for every input, safely, and without waste?

    Args:
        name: the exercise, such as "vector_add/saxpy".
        answer: a kernel, made with ``@cuda.jit`` on either backend, or the plain function of one. Not launched before.

    The kernel runs in the interpreter, on a machine with a GPU too: with every access checked, on every case of the
    exercise. A wrong answer is a Verdict, never an exception. A notebook shows the Verdict that a cell ends in;
    elsewhere it is printed. Raises ValueError if there is no such exercise.
    """
    from pmpp.lab.teach.diagnosis import judge

    return shown(judge(exercise(name), answer))
