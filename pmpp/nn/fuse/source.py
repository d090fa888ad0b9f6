"""Writing a kernel: a `Part` of a graph becomes Python source, as a person would write it.

Arithmetic and memory are kept apart. What is computed for one element stands in device functions. The kernel moves
elements, 128 bits at a time where it can. There are two forms.

*Without reductions* a thread takes one vector. *With reductions* a row belongs to a team, a warp or a block. A phase
goes over the row and ends in the reductions that need nothing but earlier phases; the last phase writes. What more than
one phase reads stays in registers if it fits there, else it is read again.
"""

from __future__ import annotations

import collections
import math
import re
import typing
from collections.abc import Collection, Sequence

from pmpp.kernels.common import blocks, round_up
from pmpp.nn.fuse.group import Part, space_of
from pmpp.nn.fuse.tracing import OPERATIONS, REDUCTIONS, Value, ancestors

BLOCK = 256  # threads
WIDEST = 512  # threads of the largest team: each can have 128 registers then
HELD = 32  # elements of float32 that a thread keeps in registers

HEADER = '''"""{title}"""
import math

import numpy as np

from pmpp import cuda
from pmpp.nn.fuse.teams import block_max, block_sum, larger, warp_max, warp_sum
from pmpp.runtime.vector import load128, store128

ZERO, ONE, LEAST = np.{dtype}(0), np.{dtype}(1), np.{dtype}(-np.inf)
'''
#: Names that the generated source uses itself. An argument with such a name gets another one there.
TAKEN = re.compile(
    r"[vt]\d+|(.*_|out)(\d+|row|held)|out|i|j|lane|row|rows|first|size|column|abs|range|np|math|cuda|ZERO|ONE|LEAST|larger|"
    r"(warp|block)_(sum|max)|load128|store128"
)


class Written(typing.NamedTuple):
    """A kernel as text, and how it is launched: with ``loads``, ``numbers``, its targets, and the size or the rows."""

    source: str
    name: str
    loads: tuple[Value, ...]
    numbers: tuple[Value, ...]
    targets: tuple[Value, ...]
    extent: int
    grid: int
    block: int
    registers: bool  # whether no element is read twice


def kind_of(value: Value, space: tuple[int, ...]) -> str:
    """How the elements of an array lie in a space: all of it, one row, one number a row, or one number for all."""
    shape = (1,) * (len(space) - value.ndim) + value.shape
    if shape == space:
        return "whole"
    if math.prod(shape) == 1:
        return "one"
    if shape[-1] == space[-1] and math.prod(shape[:-1]) == 1:
        return "row"
    if shape[-1] == 1 and shape[:-1] == space[:-1]:
        return "column"
    raise ValueError(
        f"{value!r} is repeated along some of the first axes of {space} and not along others: repeat it before"
    )


class Writer:
    """The source of one kernel.

    Args:
        name: what the kernel is called.
        part: what it computes.
        stored: values that earlier kernels wrote to memory.
        dtype: "float32" or "float64", that of all elements.
        width: elements of a vector, which divides rows; 1 for one element at a time.
    """

    def __init__(self, name: str, part: Part, stored: Collection[Value], dtype: str, width: int) -> None:
        self.name, self.part, self.dtype, self.width = name, part, dtype, width
        self.n, self.size = part.space[-1], math.prod(part.space)
        given = set(stored) - set(part.targets)
        self.body = ancestors(part.targets, lambda value: value in given)
        self.loads = [v for v in self.body if v.shape and (v.op == "input" or v in given)]
        self.numbers = [v for v in self.body if v.op == "input" and not v.shape]
        self.kinds = {value: kind_of(value, part.space) for value in self.loads}
        self.reductions = [v for v in self.body if v.op in REDUCTIONS and v not in self.kinds]
        self.outs = [f"out{k}" for k in range(len(part.targets))] if len(part.targets) > 1 else ["out"]
        self.functions: list[str] = []
        self.lines: list[str] = []

    def write(self) -> Written:
        """The source. Raises ValueError if the part is no kernel over its space, and names the value at fault."""
        space = self.part.space
        for value in self.reductions:
            if space_of(value) != space:
                raise ValueError(f"{value!r} goes over {space_of(value)}: not in a kernel over {space}")
        for value in self.part.targets:
            if value.shape not in (space, (*space[:-1], 1) if self.reductions else space):
                raise ValueError(f"{value!r} cannot be written by a kernel over {space}")
        arrays = [*map(self.named, self.loads), *map(self.named, self.numbers)]
        arrays += self.outs
        if self.reductions:
            extent, grid, block, registers = self._rows()
        else:
            extent, grid, block, registers = self.size, blocks(self.size, self.width * BLOCK), BLOCK, True
            self._flat()
        what = f"{self.name}, written by pmpp.nn.fuse."
        # More threads than BLOCK must be promised, or the compiler may give each more registers than there are.
        promise = f"(launch_bounds={block})" * (block > BLOCK)
        head = f"@cuda.jit{promise}\ndef {self.name}({', '.join(arrays)}, {'rows' if self.reductions else 'size'}):"
        kernel = "\n".join([head, *(f"    {line}" for line in self.lines)])
        text = "\n\n\n".join([HEADER.format(title=what, dtype=self.dtype).rstrip(), *self.functions, kernel]) + "\n"
        return Written(text, self.name, tuple(self.loads), tuple(self.numbers), self.part.targets,
                       extent, grid, block, registers)  # fmt: skip

    def granule(self) -> int:
        """How many elements lie in one piece in every array: vectors must divide them."""
        kinds = set(self.kinds.values())
        return self.n if self.reductions or kinds & {"row", "column"} else self.size

    # ---------------------------------------------------------------------------------------------------------- names

    def named(self, value: Value) -> str:
        """The name of a value as a parameter, or in an expression."""
        if value.op == "constant":
            number = repr(value.detail) if math.isfinite(value.detail) else f"np.{value.detail}".replace("-", "")
            return f"np.{self.dtype}({'-' * (value.detail == -math.inf)}{number})"
        if value.op == "input" and not TAKEN.fullmatch(value.detail):
            return value.detail
        return f"v{value.number}"

    def local(self, value: Value, lane: int = 0) -> str:
        """The name of a value in the kernel: of one element of a vector, or of what all elements of a row share."""
        if value not in self.kinds:
            return self.named(value)
        return f"{self.named(value)}_{lane if self.kinds[value] in ('whole', 'row') else 'row'}"

    def statement(self, value: Value) -> str:
        return f"{self.named(value)} = {OPERATIONS[value.op].format(*map(self.named, value.operands))}"

    # ------------------------------------------------------------------------------------- what an element goes through

    def function(self, name: str, wanted: Sequence[Value], shared: Collection[Value] = ()) -> tuple:
        """A device function that computes ``wanted`` for one element from what is loaded and from ``shared``.

        Returns a function from a lane to the call, and the values that are loaded for it. If nothing is to be computed
        there is no device function: the values are there.
        """
        found = ancestors(wanted, lambda value: value in self.kinds or value in shared)
        found = [v for v in found if v.op != "constant"]
        given = [v for v in found if v in self.kinds or v in shared or v.op == "input"]
        there = set(given)  # a list would compare with ==, which is an operation on elements
        steps = [v for v in found if v not in there]
        fetched = [v for v in given if v in self.kinds and self.kinds[v] in ("whole", "row")]
        if not steps and there.issuperset(wanted):
            return (lambda lane: ", ".join(self.local(v, lane) for v in wanted)), fetched
        lines = [f"@cuda.jit(device=True)\ndef {name}({', '.join(map(self.named, given))}):"]
        lines += [self.statement(value) for value in steps]
        lines.append(f"return {', '.join(map(self.named, wanted))}")
        self.functions.append("\n    ".join(lines))
        return (lambda lane: f"{name}({', '.join(self.local(v, lane) for v in given)})"), fetched

    def load(self, value: Value, at: str) -> str:
        """Load a vector, or an element."""
        if self.width == 1:
            return f"{self.local(value)} = {self.named(value)}[{at}]"
        return f"{', '.join(self.local(value, c) for c in range(self.width))} = load128({self.named(value)}, {at})"

    def store(self, k: int, at: str) -> str:
        if self.width == 1:
            return f"{self.outs[k]}[{at}] = {self.outs[k]}_0"
        return f"store128({self.outs[k]}, {at}, ({', '.join(f'{self.outs[k]}_{c}' for c in range(self.width))}))"

    # ----------------------------------------------------------------------------------------------- without reductions

    def _flat(self) -> None:
        kinds, say = set(self.kinds.values()), self.lines.append
        say(f"i = {f'{self.width} * ' * (self.width > 1)}cuda.grid(1)")
        say("if i >= size:")
        say("    return")
        if "row" in kinds:
            say(f"column = i % {self.n}")
        if "column" in kinds:
            say(f"row = i // {self.n}")
        at = {"whole": "i", "row": "column", "column": "row", "one": "0"}
        for value, kind in self.kinds.items():
            if kind in ("whole", "row"):
                say(self.load(value, at[kind]))
            else:
                say(f"{self.local(value)} = {self.named(value)}[{at[kind]}]")
        call, _ = self.function(f"{self.name}_element", self.part.targets)
        for lane in range(self.width):
            say(f"{', '.join(f'{name}_{lane}' for name in self.outs)} = {call(lane)}")
        self.lines += [self.store(k, "i") for k in range(len(self.part.targets))]

    # -------------------------------------------------------------------------------------------------- with reductions

    def _rows(self) -> tuple[int, int, int, bool]:
        phase, shared = self._phases()
        count = max(phase[value] for value in self.reductions)
        whole = [(k, v) for k, v in enumerate(self.part.targets) if v not in shared]
        jobs = []  # of each phase: what it needs of each element, the call, and what is loaded for it
        for p in range(1, count + 1):
            ending = [value for value in self.reductions if phase[value] == p]
            operands = list(dict.fromkeys(value.operands[0] for value in ending))
            jobs.append((ending, operands, *self.function(f"{self.name}_phase{p}", operands, shared)))
        if whole:
            wanted = [value for _, value in whole]
            jobs.append((None, wanted, *self.function(f"{self.name}_result", wanted, shared)))

        uses = [value for *_, fetched in jobs for value in fetched if self.kinds[value] == "whole"]
        self.held = {value for value, times in collections.Counter(uses).items() if times > 1}
        self._team()
        rows, say = self.size // self.n if self.n else 0, self.lines.append
        if self.team == 32:
            say(f"lane, row = cuda.laneid, cuda.grid(1) // 32  # a warp for each row, {BLOCK // 32} rows a block")
            say("if row >= rows:")
            say("    return")
        else:
            say("lane, row = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)  # a block for each row")
        say(f"first = row * {self.n}")
        for value, kind in self.kinds.items():
            if kind in ("column", "one"):
                say(f"{self.local(value)} = {self.named(value)}[{'row' if kind == 'column' else 0}]")
        if self.vectors:
            for value in sorted(self.held, key=lambda value: value.number):
                say(f"{self.named(value)}_held = cuda.local.array({self.vectors * self.width}, np.{self.dtype})")
        self._shared_steps(0, phase, shared)
        fetched_before: set[Value] = set()
        for p, (ending, wanted, call, fetched) in enumerate(jobs, 1):
            for value in ending or ():
                say(f"{self.named(value)} = {'ZERO' if value.op == 'sum' else 'LEAST'}")
            self._pass(ending, wanted, call, fetched, fetched_before, whole)
            fetched_before |= set(fetched)
            if ending:
                self._agree(ending)
                self._shared_steps(p, phase, shared)
        for k, value in enumerate(self.part.targets):
            if value in shared:
                say("if lane == 0:")
                say(f"    {self.outs[k]}[row] = {self.local(value)}")
        grid = blocks(rows, BLOCK // 32) if self.team == 32 else rows
        return rows, grid, BLOCK if self.team == 32 else self.team, not self.held or bool(self.vectors)

    def _phases(self) -> tuple[dict[Value, int], set[Value]]:
        """After which phase each value is known, and the values that all elements of a row share."""
        phase: dict[Value, int] = {}
        shared: set[Value] = set()
        for value in self.body:
            if value in self.kinds:
                phase[value] = 0
                if self.kinds[value] in ("column", "one"):
                    shared.add(value)
                continue
            phase[value] = max((phase[one] for one in value.operands), default=0) + (value.op in REDUCTIONS)
            if value.op in REDUCTIONS or all(one in shared for one in value.operands):
                shared.add(value)
        return phase, shared

    def _team(self) -> None:
        """How many threads hold a row, and how many vectors each has in registers; 0 if they do not fit."""
        room = HELD if self.dtype == "float32" else HELD // 2
        most = max(1, room // max(1, len(self.held)) // self.width)
        vectors = blocks(self.n, self.width)
        self.team = 32
        if vectors > 32 * most:
            self.team = min(WIDEST, round_up(blocks(vectors, min(most, 16 // self.width)), 32))
        self.vectors = blocks(vectors, self.team)
        if self.vectors > most:
            self.team, self.vectors = WIDEST, 0

    def _pass(self, ending, wanted, call, fetched, before, whole) -> None:  # type: ignore[no-untyped-def]
        """Once over the row: load what is needed, and add to the reductions that end here, or write the results."""
        body: list[str] = []
        step = f"{self.width} * " * (self.width > 1)
        for value in fetched:
            lanes = ", ".join(self.local(value, c) for c in range(self.width))
            kept = ", ".join(f"{self.named(value)}_held[{step}j{f' + {c}' * (c > 0)}]" for c in range(self.width))
            inside = self.vectors and value in self.held
            if inside and value in before:
                body.append(f"{lanes} = {kept}")
            else:
                body.append(self.load(value, "first + i" if self.kinds[value] == "whole" else "i"))
                if inside:
                    body.append(f"{kept} = {lanes}")
        if ending is None:
            for c in range(self.width):
                body.append(f"{', '.join(f'{self.outs[k]}_{c}' for k, _ in whole)} = {call(c)}")
            body += [self.store(k, "first + i") for k, _ in whole]
        else:
            for c in range(self.width):
                terms = {value: f"t{value.number}" for value in wanted}
                if len(ending) == 1:
                    terms = {wanted[0]: call(c)}
                else:
                    body.append(f"{', '.join(terms.values())} = {call(c)}")
                for value in ending:
                    name, term = self.named(value), terms[value.operands[0]]
                    body.append(f"{name} += {term}" if value.op == "sum" else f"{name} = larger({name}, {term})")
        if self.vectors:
            self.lines.append(f"for j in range({self.vectors}):")
            self.lines.append(f"    i = {step}(lane + {self.team} * j)")
            if self.vectors * self.team * self.width != self.n:
                self.lines.append(f"    if i < {self.n}:")
                body = [f"    {line}" for line in body]
        else:
            self.lines.append(f"for i in range({step}lane, {self.n}, {self.width * self.team}):")
        self.lines += [f"    {line}" for line in body]

    def _agree(self, ending: Sequence[Value]) -> None:
        """The threads of a team join what each has found."""
        for value in ending:
            name, array = self.named(value), f"cuda.shared.array(32, np.{self.dtype})"
            team, more = ("warp", "") if self.team == 32 else ("block", f", {array}")
            self.lines.append(f"{name} = {team}_{value.op}({name}{more})")

    def _shared_steps(self, p: int, phase: dict[Value, int], shared: set[Value]) -> None:
        """What follows from a phase's reductions for a whole row, computed by each of its threads."""
        for value in self.body:
            if value in shared and value.op in OPERATIONS and value not in self.kinds and phase[value] == p:
                inner = [self.local(one) for one in value.operands]
                self.lines.append(f"{self.named(value)} = {OPERATIONS[value.op].format(*inner)}")
