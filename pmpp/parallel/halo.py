"""Halo exchange: Jacobi's method on a plate that is cut into parts, one for each rank.

A cell becomes the mean of its four neighbours. At the edge of a part some of these belong to another rank. So every
part has a *halo* around it, with copies of the cells next door, and after each step the ranks exchange borders: what is
the border of one part is the halo of the next.

A rung of `LADDER` makes one step of one rank, its exchange included. All give the same bits as one rank, since each
cell is computed from the same numbers in the same order. They differ in when messages are sent and how many.

- `one_after_another`: a rank receives from above before it sends below, so the ranks wait for each other in a chain.
- `even_odd`: pairs of neighbours exchange at the same time, and then the other pairs.
- `both_ways`: all ranks send up while they receive from below, and then the other way round.
- `overlapped`: borders are computed first, and travel while the rest is computed.
- `one_sided`: a rank writes into its neighbours' halos, and signals; nobody receives.
- `wide`: a halo of k cells is enough for k steps, so there is one exchange in k steps, and more to compute.

``python -m pmpp.parallel.run -n 4 -m pmpp.parallel.halo`` runs all of them in processes, but for those with windows.

Source: PMPP 4e sections 20.2 to 20.7; 5e chapter 23.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.stencil import jacobi
from pmpp.parallel.group import Group
from pmpp.parallel.plates import as_plate, shares
from pmpp.parallel.simulated import clock, until, work
from pmpp.parallel.traffic import Links
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number, as_pair

__all__ = [
    "LADDER",
    "Part",
    "Solution",
    "Span",
    "both_ways",
    "even_odd",
    "halo_bytes",
    "one_after_another",
    "one_sided",
    "overlapped",
    "reference",
    "seconds",
    "solve",
    "whole",
    "wide",
]

ABOVE, BELOW, LEFT, RIGHT = range(4)  # the sides of a part
AXES = ((ABOVE, BELOW), (LEFT, RIGHT))
OTHER = (BELOW, ABOVE, RIGHT, LEFT)  # the side across


def reference(grid: np.ndarray, steps: int) -> np.ndarray:
    """The grid after so many steps, in NumPy, with the sums in the order of the kernels: the same bits.

    >>> reference(np.float32([[1, 1, 1], [0, 0, 0], [0, 0, 0]]), 1)[1, 1]
    np.float32(0.25)
    """
    grid, inner = grid.copy(), (slice(1, -1),) * grid.ndim
    for _ in range(steps):
        total = None
        for axis in range(grid.ndim):
            before, behind = ((*inner[:axis], one, *inner[axis + 1 :]) for one in (slice(None, -2), slice(2, None)))
            total = grid[before] + grid[behind] if total is None else total + (grid[before] + grid[behind])
        grid[inner] = total * np.float32(1 / (2 * grid.ndim))
    return grid


class Span(typing.NamedTuple):
    """What a rank did, "border", "inside" or "exchange", and from when to when on its clock."""

    kind: str
    begin: float
    end: float


class Part:
    """What a rank has of a plate: its own cells, and around them a halo, or the plate's border where nobody is.

    A grid of three dimensions is cut along its first two axes, which count as rows and columns. Each of these has all
    cells of the third axis.

    Args:
        group: the ranks. Rank i * columns + j has place (i, j) of the mesh.
        grid: the plate at the beginning, a NumPy array of float32 with two or three dimensions and at least 3 cells
            along each, on all ranks. Its outermost cells keep their values.
        mesh: how many ranks there are down and across: together ``group.size``. By default all are below each other.
        halo: how many cells wide the halo is.
        cell: the seconds that a cell takes, for the clocks of simulated ranks.

    Attributes: rows, columns, of its own; place, of its first cell in ``grid``; pad, on each side how many cells lie
    around its own; peers, on each side the rank there, or None; old and new, the arrays; made, how many steps; spans.
    All ranks have arrays of one shape, as memory has to be that others write to; small parts do not use all of it.

    Raises TypeError and ValueError for what does not fit together.
    """

    def __init__(
        self, group: Group, grid: np.ndarray, mesh: tuple[int, int] | None = None, halo: int = 1, cell: float = 0.0
    ) -> None:
        grid, self.group = as_plate(grid, (2, 3)), group
        self.mesh = (group.size, 1) if mesh is None else as_pair("mesh", mesh, 1)
        self.halo, self.cell = as_integer("halo", halo, 1), float(as_number("cell", cell, 0, dtype=np.float64))
        if self.mesh[0] * self.mesh[1] != group.size:
            raise ValueError(f"mesh must have a place for each of the {group.size} ranks, was {self.mesh}")
        cuts = [shares(n - 2, count) for n, count in zip(grid.shape[:2], self.mesh, strict=True)]
        sizes = [b - a for axis, count in zip(cuts, self.mesh, strict=True) if count > 1 for a, b in axis]
        if min(sizes, default=self.halo) < self.halo:
            raise ValueError(f"halo must be at most as wide as the smallest part, {min(sizes)} cells, was {self.halo}")
        i, j = divmod(group.rank, self.mesh[1])
        (top, bottom), (left, right) = cuts[0][i], cuts[1][j]
        self.height = len(grid) - 2  # of all parts together
        self.rows, self.columns, self.place = bottom - top, right - left, (top + 1, left + 1)
        self.peers = (
            group.rank - self.mesh[1] if i else None,
            group.rank + self.mesh[1] if i + 1 < self.mesh[0] else None,
            group.rank - 1 if j else None,
            group.rank + 1 if j + 1 < self.mesh[1] else None,
        )
        self.pad = tuple(1 if peer is None else self.halo for peer in self.peers)
        mine = grid[top + 1 - self.pad[ABOVE] : bottom + 1 + self.pad[BELOW]]
        mine = mine[:, left + 1 - self.pad[LEFT] : right + 1 + self.pad[RIGHT]]
        room = [max(b - a for a, b in axis) + 2 * (self.halo if len(axis) > 1 else 1) for axis in cuts]
        padded = np.zeros((*room, *grid.shape[2:]), np.float32)
        padded[: mine.shape[0], : mine.shape[1]] = mine
        self.old, self.new = device.to_device(padded), device.to_device(padded)
        self.shape = mine.shape
        self.change, self.nothing = device.to_device(np.zeros(1, np.float32)), device.empty(0, np.float32)
        self.made, self.watched, self.spans = 0, False, []
        self.windows: list[typing.Any] = []

    # ------------------------------------------------------------------------------------------------------- compute

    def rectangle(self, extra: int = 0) -> tuple[int, int, int, int]:
        """Top, bottom, left and right of its own cells, and of ``extra`` cells of the halo on sides with a peer."""
        more = [0 if peer is None else extra for peer in self.peers]
        top, left = self.pad[ABOVE], self.pad[LEFT]
        return top - more[0], top + self.rows + more[1], left - more[2], left + self.columns + more[3]

    def cells(self, rectangle: tuple[int, int, int, int]) -> float:
        """Compute the new cells of a rectangle. Returns the seconds that it takes."""
        top, bottom, left, right = rectangle
        if top >= bottom or left >= right:
            return 0.0
        kernel, launch, deep = jacobi.cell_kernel, jacobi.tiles(bottom - top, right - left), 1
        if len(self.shape) == 3:
            deep = self.shape[2] - 2
            kernel, launch = jacobi.space_kernel, jacobi.boxes(bottom - top, right - left, deep)
        change = self.change if self.watched else self.nothing
        kernel[launch](self.old, self.new, change, top, bottom, left, right)
        return self.cell * (bottom - top) * (right - left) * deep

    def compute(self, extra: int = 0) -> None:
        """All of its new cells, and ``extra`` ones of the halo."""
        begin = clock()
        work(self.cells(self.rectangle(extra)))
        self.note("inside", begin)

    def compute_border(self) -> tuple[int, int, int, int]:
        """The new cells that a peer needs. Returns the rectangle of those that are left."""
        begin, (top, bottom, left, right) = clock(), self.rectangle()
        above, below, before, behind = (peer is not None for peer in self.peers)
        inner_top, inner_bottom = min(top + above, bottom), max(bottom - below, min(top + above, bottom))
        inner_left, inner_right = min(left + before, right), max(right - behind, min(left + before, right))
        for one in (
            (top, inner_top, left, right),
            (inner_bottom, bottom, left, right),
            (inner_top, inner_bottom, left, inner_left),
            (inner_top, inner_bottom, inner_right, right),
        ):
            work(self.cells(one))
        self.note("border", begin)
        return inner_top, inner_bottom, inner_left, inner_right

    def note(self, kind: str, begin: float) -> None:
        """What the rank has done up to now."""
        self.spans.append(Span(kind, begin, clock()))

    def turn(self) -> None:
        """The step is made: what was new is old."""
        self.old, self.new, self.made = self.new, self.old, self.made + 1
        self.windows.reverse()

    # ------------------------------------------------------------------------------------------------------ exchange

    def strip(self, side: int, inside: bool) -> tuple[slice, slice]:
        """Where the border on a side is, or the halo beyond it.

        Rows go first, and have the part's own columns. Columns go behind them with the halo above and below, so that
        the corners of a wide halo come along.
        """
        before, behind = (self.pad[ABOVE], self.pad[BELOW]) if side in AXES[0] else (self.pad[LEFT], self.pad[RIGHT])
        n = self.rows if side in AXES[0] else self.columns
        if side in (ABOVE, LEFT):
            first = before if inside else 0
        else:
            first = before + n - behind if inside else before + n
        width = self.pad[side]
        if side in AXES[1]:
            return slice(0, self.shape[0]), slice(first, first + width)
        if self.mesh[1] == 1:
            return slice(first, first + width), slice(0, self.old.shape[1])
        return slice(first, first + width), slice(self.pad[LEFT], self.pad[LEFT] + self.columns)

    def packed(self, side: int, inside: bool, copy: bool) -> tuple[typing.Any, typing.Any]:
        """A strip of the new array as it can be sent, and, if that is another array, the strip where it lies."""
        view = self.new[self.strip(side, inside)]
        if side in AXES[0] and self.mesh[1] == 1:
            return view, None
        box = device.to_device(np.zeros(view.shape, np.float32))
        if copy:
            move(view, box)
        return box, view

    def send(self, side: int) -> None:
        """Send the border to the rank on that side, if there is one."""
        if self.peers[side] is not None:
            self.group.send(self.packed(side, True, True)[0], self.peers[side])

    def receive(self, side: int) -> None:
        """Fill the halo on that side, if a rank is there."""
        if self.peers[side] is not None:
            box, view = self.packed(side, False, False)
            self.group.recv(box, self.peers[side])
            if view is not None:
                move(box, view)

    def shift(self, side: int) -> None:
        """Send the border towards a side, and meanwhile fill the halo on the side across."""
        to, source = self.peers[side], self.peers[OTHER[side]]
        if to is None or source is None:
            self.send(side)
            self.receive(OTHER[side])
            return
        box, view = self.packed(OTHER[side], False, False)
        self.group.send_recv(self.packed(side, True, True)[0], to, box, source)
        if view is not None:
            move(box, view)


def move(source: typing.Any, target: typing.Any) -> None:
    """Copy a rectangle or a box, on the device."""
    if len(source.shape) == 3:
        jacobi.copy_space_kernel[jacobi.boxes(*source.shape)](source, target)
    else:
        jacobi.copy_kernel[jacobi.tiles(*source.shape)](source, target)


# ----------------------------------------------------------------------------------------------------------- the ladder


def one_after_another(part: Part) -> None:
    """Compute. Receive from above and answer; then send below and wait for the answer.

    Leaves: rank 1 can send to rank 2 only when it has heard from rank 0, so 2 (p - 1) messages follow one another.
    """
    part.compute()
    begin = clock()
    for low, high in AXES:
        part.receive(low)
        part.send(low)
        part.send(high)
        part.receive(high)
    part.note("exchange", begin)


def even_odd(part: Part) -> None:
    """Ranks 0 and 1 exchange while 2 and 3 do; then ranks 1 and 2 do: four messages in a row, however many ranks.

    Leaves: a link carries a message in one direction at a time.
    """
    part.compute()
    begin = clock()
    for (low, high), place in zip(AXES, divmod(part.group.rank, part.mesh[1]), strict=True):
        if place % 2 == 0:
            part.send(high)
            part.receive(high)
            part.send(low)
            part.receive(low)
        else:
            part.receive(low)
            part.send(low)
            part.receive(high)
            part.send(high)
    part.note("exchange", begin)


def exchange(part: Part) -> None:
    """All borders to all sides: each rank sends towards one side while it receives from the other."""
    begin = clock()
    for low, high in AXES:
        part.shift(low)
        part.shift(high)
    part.note("exchange", begin)


def both_ways(part: Part) -> None:
    """All send up and receive from below at once, and then the other way: two messages in a row.

    Leaves: while messages travel, nothing is computed.
    """
    part.compute()
    exchange(part)


def overlapped(part: Part) -> None:
    """The border is computed first. It travels while the rest is computed.

    Simulated ranks overlap on their clocks alone. `pmpp.parallel.plates` does so on GPUs.

    Leaves: both ranks of a message have to be ready for it.
    """
    begin, inside = clock(), part.compute_border()
    begin = clock()
    done = begin + part.cells(inside)  # a kernel runs by itself: the rank goes on
    exchange(part)
    part.spans.append(Span("inside", begin, done))
    until(done)


def one_sided(part: Part) -> None:
    """A rank writes its border into its neighbours' halos, signals, and waits for their signals when it needs them.

    There are two arrays, and a signal says two things: a border is there, and the halo of the step before was read. So
    one signal for each step and side is enough. The ranks have to be below each other, since a window has rows.

    Leaves: one message for each step and side, however short it is.
    """
    if part.mesh[1] > 1:
        raise ValueError(f"mesh must have one column for one_sided, whose windows have rows, was {part.mesh}")
    if not part.windows:
        part.windows = [part.group.window(part.new), part.group.window(part.old)]
    window = part.windows[0]
    inside = part.compute_border()
    begin = clock()
    done = begin + part.cells(inside)
    sides = [side for side in (ABOVE, BELOW) if part.peers[side] is not None]
    for side in sides:
        border = part.new[part.strip(side, True)]
        window.write(border, part.peers[side], at=landing(part, side))
        window.signal(part.peers[side])
    for side in sides:
        window.wait(part.peers[side])
        window.rows(part.strip(side, False)[0].start, part.halo)  # read in the next step
    part.note("exchange", begin)
    part.spans.append(Span("inside", begin, done))
    until(done)


def landing(part: Part, side: int) -> int:
    """The first row of the halo in the neighbour's array: below its own rows, or at its top."""
    if side == BELOW:
        return 0
    i = part.peers[ABOVE]
    first, last = shares(part.height, part.mesh[0])[i]
    return (part.halo if i else 1) + last - first


def wide(part: Part) -> None:
    """With a halo of k cells, k steps need one exchange. Each of them computes a cell less of the halo.

    Source: J. Demmel, M. Hoemmen, M. Mohiyuddin and K. Yelick, Avoiding communication in sparse matrix computations
    (2008).
    """
    left = part.halo - 1 - part.made % part.halo
    part.compute(left)
    if not left:
        exchange(part)


LADDER = (one_after_another, even_odd, both_ways, overlapped, one_sided, wide)


# ---------------------------------------------------------------------------------------------------------- all steps


class Solution(typing.NamedTuple):
    """A rank's part of the result: ``cells`` on the host, where they begin in the plate; ``steps`` made; the largest
    ``change`` of all ranks when it was last looked at; and ``spans``, what the rank did when."""

    cells: np.ndarray
    place: tuple[int, int]
    steps: int
    change: float
    spans: list[Span]


def solve(
    group: Group,
    grid: np.ndarray,
    step: Callable = both_ways,
    *,
    tolerance: float = 0.0,
    most: int = 100_000,
    every: int = 1,
    mesh: tuple[int, int] | None = None,
    halo: int = 1,
    cell: float = 0.0,
) -> Solution:
    """Steps until no cell of the plate changes by more than ``tolerance`` in one, or until ``most`` are made.

    Args:
        group, grid, mesh, halo, cell: see `Part`. A halo of more than 1 is for `wide`.
        step: a function of `LADDER`.
        tolerance: at least 0.
        every: after how many steps the ranks ask each other for the largest change: an all-reduce of one number.

    >>> from pmpp import parallel
    >>> plate = np.zeros((6, 5), np.float32)
    >>> plate[0] = 1
    >>> found = parallel.ranks(2, lambda group: solve(group, plate, most=20))
    >>> bool((whole(plate, found) == reference(plate, 20)).all())
    True
    """
    if step not in LADDER:
        raise ValueError(f"step must be one of {', '.join(one.__name__ for one in LADDER)}, was {step!r}")
    tolerance = float(as_number("tolerance", tolerance, 0, dtype=np.float64))
    most, every = as_integer("most", most, 0), as_integer("every", every, 1)
    part, largest = Part(group, grid, mesh, halo, cell), float("inf")
    if part.halo > 1 and step is not wide:
        raise ValueError(f"halo must be 1 for {step.__name__}, which exchanges after each step, was {halo}")
    while part.made < most and largest > tolerance:
        part.watched = (part.made + 1) % every == 0
        if part.watched:
            part.change.copy_to_device(np.zeros(1, np.float32))
        step(part)
        part.turn()
        if part.watched:
            largest = float(device.to_host(group.all_reduce(part.change, "max"))[0])
    top, bottom, left, right = part.rectangle()
    cells = device.to_host(part.old)[top:bottom, left:right].copy()
    return Solution(cells, part.place, part.made, largest, part.spans)


def whole(grid: np.ndarray, solutions: list[Solution]) -> np.ndarray:
    """The plate of the parts that ranks have returned."""
    result = grid.copy()
    for one in solutions:
        (top, left), (rows, columns, *_) = one.place, one.cells.shape
        result[top : top + rows, left : left + columns] = one.cells
    return result


# ----------------------------------------------------------------------------------------------------------- the model


def halo_bytes(rows: int, columns: int, mesh: tuple[int, int], halo: int = 1, depth: int | None = None) -> int:
    """The bytes that a rank with neighbours on all sides sends in one exchange, as long as parts are equally large.

    Args:
        rows, columns: inner cells of the plate.
        mesh: ranks down and across; an axis with one rank has no neighbours.
        halo: its width.
        depth: inner cells along the third axis, if there is one.

    A rank has rows / mesh[0] times columns / mesh[1] cells to compute. It only sends their edge: surface over volume.

    >>> halo_bytes(1024, 1024, (16, 1)), halo_bytes(1024, 1024, (4, 4))
    (8208, 4112)
    """
    tall, across = rows // mesh[0], columns // mesh[1]
    total = 0
    if mesh[0] > 1:
        total += 2 * halo * (across if mesh[1] > 1 else columns + 2)
    if mesh[1] > 1:
        total += 2 * halo * (tall + 2 * (halo if mesh[0] > 1 else 1))
    return 4 * total * (1 if depth is None else depth + 2)


def seconds(
    rows: int,
    columns: int,
    mesh: tuple[int, int],
    links: Links,
    cell: float,
    halo: int = 1,
    *,
    depth: int | None = None,
    overlap: bool = False,
) -> float:
    """The time of a step by the alpha-beta model, of a rank with neighbours on all sides, without the largest change.

    Args:
        rows, columns, mesh, halo, depth: as for `halo_bytes`.
        links: what a message costs.
        cell: seconds that a cell takes.
        overlap: whether the messages travel while the cells that no neighbour needs are computed; for a halo of 1.

    >>> seconds(8, 8, (2, 1), Links(latency=10.0, bandwidth=40.0), 1.0)
    54.0
    >>> seconds(8, 8, (2, 1), Links(latency=10.0, bandwidth=40.0), 1.0, overlap=True)
    38.0
    """
    tall, across = rows // mesh[0], columns // mesh[1]
    down, aside, cell = mesh[0] > 1, mesh[1] > 1, cell * (1 if depth is None else depth)
    messages = 2 * (down + aside) * links.latency + halo_bytes(rows, columns, mesh, halo, depth) / links.bandwidth
    if overlap:
        inside = max(tall - 2 * down, 0) * max(across - 2 * aside, 0)
        return cell * (tall * across - inside) + max(cell * inside, messages)
    computed = sum((tall + 2 * k * down) * (across + 2 * k * aside) for k in range(halo))
    return (cell * computed + messages) / halo
