"""Hopper's matrix instructions, the twins of those in `pmpp.runtime.hopper` and `pmpp.runtime.hopper_registers`.

machine/engines.py has what is under way: products of tiles, bulk copies, and the mbarriers that count them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.matrix import _array, _shared, _together
from pmpp.simt.machine import engines, memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.instructions import BARRIER
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scheduler import Waiting
from pmpp.simt.machine.storage import Storage, lane_of
from pmpp.simt.machine.turns import Waits, suspending
from pmpp.simt.values import tensor_cores
from pmpp.simt.values.dtypes import FLOAT32, INT32, UINT32, UINT64, Value, is_number

_SUMS = "32, 64, 96 or 128"
#: Of products of 16-bit numbers: see pmpp/runtime/hopper_registers.py, and hopper_columns.py for the last.
FORMS = ("first", "rows", "kept", "columns")
MOST = (1 << 20) - 1  # arrivals and bytes that an mbarrier counts
BEFORE_MAPS = 6  # words of a parameter before its first tensor map: see pmpp/runtime/hopper_maps.py


def _integer(name: str, argument: str, given: Any) -> None:
    if not is_number(given) or given.dtype.kind not in "iu":
        raise TypeError(f"{name}: {argument} must be one integer, was {kind_of(given)}")


def _sums(name: str, argument: str, given: Any, *numbers: np.dtype) -> None:
    if (
        not isinstance(given, tuple)
        or len(given) not in tensor_cores.TILE_COLUMNS
        or any(not is_number(part) or part.dtype not in numbers or part.dtype != given[0].dtype for part in given)
    ):
        kinds = sorted({kind_of(part) for part in given}) if isinstance(given, tuple) else []
        has = f"a tuple of {len(given)} {', '.join(kinds)}" if kinds else kind_of(given)
        wanted = " or ".join(map(str, numbers))
        raise TypeError(f"{name}: {argument} must be a tuple of {_SUMS} {wanted}, was {has}")


def _barriers(f: Frame, name: str, barriers: Any, b: Any) -> Array:
    if not isinstance(barriers, Array) or barriers.dtype != UINT64:
        raise TypeError(f"{name}: barriers must be an array of uint64, was {kind_of(barriers)}")
    _integer(name, "b", b)
    if not f.m.dry and barriers.storage.space != "shared":
        raise TypeError(f"{name}: barriers must be in shared memory; it is in {barriers.storage.space} memory")
    return barriers


def _group_of_warps(f: Frame, call: Any, what: str, shape: int = 0) -> None:
    """Report a warp that does not take part whole, and a warpgroup of which not all four warps take part.

    `shape` is what else they must have in common: how many sums, registers or groups.
    (PTX ISA, `.aligned` of wgmma.mma_async, fence, commit_group, wait_group and of setmaxnreg: all threads in the
    warpgroup must execute the same instruction.)
    """
    _together(f, call, what)
    path: tuple[int, ...] = ()
    if f.m.turns is not None:
        around: Frame | None = f
        while around is not None and around.call is not None:
            path, around = (around.call.line, *path), around.caller
    engines.take_part(f.m, f.mask, what, shape, call.line, path)


# -- products of tiles -----------------------------------------------------------------------------------------------


def _descriptor(f: Frame, call: Any, shared: Any, i: Value, apart: Value) -> Value:
    shared = _shared(f, "tile_descriptor", "shared", shared, (2,))
    for argument, given in (("i", i), ("apart", apart)):
        _integer("tile_descriptor", argument, given)
    if f.m.dry:
        return np.uint64(0)
    return engines.describe(f.m, f.mask, shared, i, apart, call.name, call.line)


def _multiply(name: str, form: str = "") -> Callable:
    """`form`: see `engines.multiply`."""
    number, kind = INT32 if name == "wgmma_s8" else FLOAT32, name.removesuffix(f"_{form}")

    def wgmma(f: Frame, call: Any, a: Any, b: Any, c: Any) -> tuple[Value, ...]:
        for argument, given in (("b", b),) if form == "kept" else (("a", a), ("b", b)):
            if not is_number(given) or given.dtype != UINT64:
                raise TypeError(f"{name}: {argument} must be a descriptor (uint64), was {kind_of(given)}")
        if form == "kept" and (
            not isinstance(a, tuple) or len(a) != 4 or any(not is_number(x) or x.dtype != UINT32 for x in a)
        ):
            raise TypeError(f"{name}: a must be a tuple of 4 uint32, was {kind_of(a)}")
        _sums(name, "like" if form == "first" else "c", c, number)
        if f.m.dry:
            return (number.type(0),) * len(c)
        _group_of_warps(f, call, f"{name}()", len(c))
        if f.m.counts is not None:
            f.m.counts.tensor(call.line, f.mask, tensor_cores.tile_operations(kind, 2 * len(c)))
        if form == "kept":
            engines.registers_read(f.m, engines.warps_of(f.mask), a, call.argument(0), call.line)
        return engines.multiply(f.m, f.mask, kind, a, b, c, call.argument(2), call.line, form)

    wgmma.counts_itself = True  # type: ignore[attr-defined]
    return wgmma


def refuse_ticket(f: Frame, value: Any, name: str, line: int) -> None:
    """Report a sum that is read though `wgmma_wait` has not given it."""
    if f.m.checks is None or f.m.batch is None or f.m.batch.engines is None or not f.m.batch.engines.products:
        return  # nothing was multiplied, and a number is a number
    if not is_number(value) or value.dtype not in (FLOAT32, INT32) or f.mask is None:
        return
    product = engines.ticket(value)
    waiting = (product >= 0) & (product <= f.m.batch.engines.made)
    waiting = waiting if f.mask.bits is None else waiting & f.mask.bits
    if np.any(waiting):
        f.m.hazard("race", "register", name, line, lane_of(f.m.batch.lanes, np.asarray(waiting)),
                   "{who} reads {name} while its product is under way: wgmma_wait returns the sums of what was "
                   "committed before")  # fmt: skip


def _plain(name: str, act: Callable) -> Callable:
    def instruction(f: Frame, call: Any) -> None:
        if f.m.dry:
            return
        if f.m.counts is not None:
            f.m.counts.instruction(call.line, f.mask, BARRIER)
        if name.startswith("wgmma"):
            _group_of_warps(f, call, f"{name}()")
        act(f.m, f.mask)

    instruction.counts_itself = True  # type: ignore[attr-defined]
    return instruction


def _fence(f: Frame, call: Any) -> None:
    """What a warp has in registers may be read by its products from here on.

    Registers that change afterwards need another fence.  Level "check" reports numbers that a product is given and that
    no register of the warp held at the fence, as far as that can be known: see machine/fences.py.
    """
    if f.m.dry:
        return
    if f.m.counts is not None:
        f.m.counts.instruction(call.line, f.mask, BARRIER)
    _group_of_warps(f, call, "wgmma_fence()")
    engines.fence(f, call)


def _show(m: Any, mask: Any) -> None:
    if m.checks is not None:
        m.checks.shows(mask)


def _registers(name: str) -> Callable:
    """A warpgroup changes how many registers its threads have: here nobody can tell, so only the call is checked."""

    def instruction(f: Frame, call: Any, n: Value) -> None:
        literal = call.literals[0] is True or call.literals[0] in f.literals
        if not literal or not isinstance(n, np.integer) or n not in range(24, 257, 8):
            given = n if isinstance(n, np.integer) else kind_of(n)
            raise TypeError(f"{name}: n must be a literal, a multiple of 8 from 24 to 256, was {given}")
        if f.m.dry:
            return
        if f.m.counts is not None:
            f.m.counts.instruction(call.line, f.mask, BARRIER)
        _group_of_warps(f, call, f"{name}()", int(n))

    instruction.counts_itself = True  # type: ignore[attr-defined]
    return instruction


def _wait(f: Frame, call: Any, n: Value, sums: Any) -> tuple[Value, ...]:
    literal = call.literals[0] is True or call.literals[0] in f.literals
    if not literal or not isinstance(n, np.integer) or not 0 <= n <= 7:
        given = n if isinstance(n, np.integer) else kind_of(n)
        raise TypeError(f"wgmma_wait: n must be a literal, an integer from 0 to 7, was {given}")
    _sums("wgmma_wait", "sums", sums, FLOAT32, INT32)
    if f.m.dry:
        return sums
    if f.m.counts is not None:
        f.m.counts.instruction(call.line, f.mask, BARRIER)
    _group_of_warps(f, call, "wgmma_wait()", int(n))
    return engines.wait(f.m, f.mask, int(n), sums, call.argument(1), call.line)


_wait.counts_itself = True  # type: ignore[attr-defined]


# -- mbarriers -------------------------------------------------------------------------------------------------------


def _each(f: Frame, call: Any, barriers: Array, b: Value, act: Callable, *, writes: bool = False) -> None:
    """Call `act` for each barrier that the lanes mean."""
    m = f.m
    at, mask = memory.position(m, f.mask, barriers, (b,), call.name, call.line, (False,))
    if mask is None:
        return
    if m.checks is not None:
        if writes:
            m.checks.write(mask, barriers.storage, at, None, call.name, call.line, of_mbarrier=True)
        else:
            m.checks.read(mask, barriers.storage, at, call.name, call.line, of_mbarrier=True)
    for one, lanes in engines.each_barrier(m, mask, barriers.storage, at):
        act(lanes, one)


def _within(f: Frame, call: Any, name: str, argument: str, value: Value, least: int, most: int) -> None:
    """Refuse a number that is not from `least` to `most` in a thread of the call."""
    found = np.broadcast_to(value, f.mask.grid().shape)[f.mask.grid()]
    wrong = (found < least) | (found > most)
    if wrong.any():
        was = int(found[int(np.argmax(wrong))])
        raise f.m.error(f"{name}: {argument} must be from {least} to {most:,}, was {was:,}", call.line)


def _initialise(f: Frame, call: Any, barriers: Any, b: Value, count: Value) -> None:
    barriers = _barriers(f, "mbarrier_init", barriers, b)
    _integer("mbarrier_init", "count", count)
    if f.m.dry:
        return
    if f.m.counts is not None:
        f.m.counts.instruction(call.line, f.mask, BARRIER)
    _within(f, call, "mbarrier_init", "count", count, 1, MOST)
    _each(f, call, barriers, b, lambda mask, at: engines.initialise(
        f.m, mask, barriers.storage, at, count, f"{call.name}[{at}]", call.line), writes=True)  # fmt: skip


def _arrive(f: Frame, call: Any, barriers: Any, b: Value) -> None:
    _arrive_with(f, call, "mbarrier_arrive", barriers, b, np.int64(0))


def _expect(f: Frame, call: Any, barriers: Any, b: Value, size: Value) -> None:
    _arrive_with(f, call, "expect_bytes", barriers, b, size)


def _arrive_with(f: Frame, call: Any, name: str, barriers: Any, b: Value, size: Value) -> None:
    barriers = _barriers(f, name, barriers, b)
    _integer(name, "bytes", size)
    if f.m.dry:
        return
    if f.m.counts is not None:
        f.m.counts.instruction(call.line, f.mask, BARRIER)
    _within(f, call, name, "bytes", size, 0, MOST)
    _each(f, call, barriers, b, lambda mask, at: engines.arrive(
        f.m, mask, barriers.storage, at, size, f"{call.name}[{at}]", call.line))  # fmt: skip


@suspending
def _await(f: Frame, call: Any, barriers: Any, b: Value, parity: Value) -> Waits:
    barriers = _barriers(f, "mbarrier_wait", barriers, b)
    _integer("mbarrier_wait", "parity", parity)
    m = f.m
    if m.dry:
        return
    if m.counts is not None:
        m.counts.instruction(call.line, f.mask, BARRIER)
    _within(f, call, "mbarrier_wait", "parity", parity, 0, 1)
    meant: list[tuple[Any, int]] = []
    _each(f, call, barriers, b, lambda mask, at: meant.append((mask, at)))
    for mask, at in meant:
        while not engines.has_ended(m, mask, barriers.storage, at, parity, call.line):
            if m.turns is None:
                raise Waiting(m.where(call.line) + f"threads wait at {call.name}[{at}] for a phase that has not ended")
            row = int(np.argmax(mask.grid().any(axis=1)))
            why = functools.partial(engines.lacks, engines.engines(m), barriers.storage, at, row, f"{call.name}[{at}]")
            yield from m.turns.idle(call.line, frozen=True, endless=True, why=why)


for _handler in (_fence, _initialise, _arrive, _expect, _await):
    _handler.counts_itself = True  # type: ignore[attr-defined]


# -- bulk copies -----------------------------------------------------------------------------------------------------


def _maps(name: str, maps: Any) -> Array:
    if not isinstance(maps, Array) or maps.dtype != UINT64:
        raise TypeError(f"{name}: maps must be an array of uint64, was {kind_of(maps)}")
    return _array(name, "maps", maps, (8,))


def _place_map(f: Frame, call: Any, maps: Any, j: Value, words: Any) -> None:
    maps = _maps("place_map", maps)
    _integer("place_map", "j", j)
    if not isinstance(words, tuple) or len(words) != engines.WORDS or any(
        not is_number(word) or word.dtype != UINT64 for word in words
    ):  # fmt: skip
        raise TypeError(f"place_map: words must be a tuple of {engines.WORDS} uint64, was {kind_of(words)}")
    if f.m.dry:
        return
    if maps.storage.space != "global":
        raise TypeError(f"place_map: maps must be in global memory; it is in {maps.storage.space} memory")
    flat = Array(maps.storage, maps.dtype, (maps.size(),), (1,), maps.offset)
    for k, word in enumerate(words):
        index = memory.as_index(f.m, j, call.name) + np.int64(k)
        at, mask = memory.position(f.m, f.mask, flat, (index,), call.name, call.line, (False,))
        if mask is not None:
            if k == 0:
                _begins_a_map(f.m, mask, at, call)
            memory.store(f.m, mask, maps, at, word, call.name, call.line)


def _begins_a_map(m: Any, mask: Any, at: Value, call: Any) -> None:
    """Refuse a place where the hardware would not look for a map."""
    grid = mask.grid()
    wrong = np.broadcast_to(np.asarray(at) % engines.WORDS != 0, grid.shape) & grid
    if wrong.any():
        place = int(np.broadcast_to(at, grid.shape)[wrong][0])
        raise m.error(
            f"place_map: j must lead to a multiple of {engines.WORDS} words; here it leads to {place}", call.line
        )


def _maps_of_launch(f: Frame, call: Any, words: Any) -> Array:
    count = len(words) - BEFORE_MAPS if isinstance(words, tuple) else 0
    if count <= 0 or count % engines.WORDS or any(not is_number(word) or word.dtype != UINT64 for word in words):
        raise TypeError(
            f"maps_of_launch: words must be what launch_words gives, tuples of uint64, was {kind_of(words)}"
        )
    _refuse_other_words(f, call, words)
    given = np.array([np.asarray(word).reshape(-1)[0] for word in words[BEFORE_MAPS:]], UINT64)  # of all threads
    given.flags.writeable = False
    return Array(Storage("const", given, name=call.name), UINT64, (count,), (1,))


def _refuse_other_words(f: Frame, call: Any, words: tuple) -> None:
    """Refuse what is not the kernel's first argument: a GPU takes the maps from there, whatever `words` is."""
    if f.m.dry:
        return
    if f.caller is not None:
        said = "maps_of_launch: call it in the kernel itself; a device function has other parameters"
        raise f.m.error(said, call.line)
    name, first = next(iter(f.m.launch.arguments.items()), ("nothing", None))
    same = words is first or (
        isinstance(first, tuple) and len(first) == len(words) and all(a is b for a, b in zip(words, first, strict=True))
    )
    if not same:
        raise f.m.error(
            f"maps_of_launch: words must be the first argument of {f.m.launch.name}, {name}, was "
            f"{call.argument(0, 'words')}: a GPU takes the maps from there, whatever is given", call.line,
        )  # fmt: skip


def _soon(f: Frame, call: Any, maps: Any, j: Value) -> None:
    _maps("soon", maps)
    _integer("soon", "j", j)


def _bulk_tile(
    f: Frame, call: Any, shared: Any, i: Value, maps: Any, j: Value, row: Value, column: Value, barriers: Any, b: Value
) -> None:
    shared, maps = _shared(f, "bulk_tile", "shared", shared, (2,)), _maps("bulk_tile", maps)
    barriers = _barriers(f, "bulk_tile", barriers, b)
    for argument, given in (("i", i), ("j", j), ("row", row), ("column", column)):
        _integer("bulk_tile", argument, given)
    m = f.m
    if m.dry:
        return
    at, mask = memory.position(m, f.mask, barriers, (b,), call.argument(6), call.line, (False,))
    if mask is None:
        return
    if m.checks is not None:
        m.checks.read(mask, barriers.storage, at, call.argument(6), call.line, of_mbarrier=True)
    shape = (m.batch.lanes.blocks, m.batch.lanes.width)
    of_lanes = i, shared.offset, shared.size(), j, maps.offset, row, column, at
    values = [np.broadcast_to(np.asarray(v), shape).reshape(-1) for v in of_lanes]
    for lane in mask.places().tolist():
        first, begin, size, tensor, begin_of_maps, down, along, barrier = (int(v[lane]) for v in values)
        if not 0 <= first < size:
            m.hazard("out_of_bounds", "shared", call.name, call.line, lane,
                     f"{{who}} copies a tile to {{name}}[{first}], but it has {size} elements")  # fmt: skip
            continue
        engines.copy_tile(
            m, lane, (shared, first + begin), (maps.storage, tensor + begin_of_maps), (down, along),
            (barriers.storage, barrier), (call.name, call.argument(2)), call.line,
        )  # fmt: skip


for _handler in (_place_map, _bulk_tile):
    _handler.counts_itself = True  # type: ignore[attr-defined]

HOPPER: dict[str, Callable] = {
    "tile_descriptor": _descriptor,
    **{name: _multiply(name) for name in tensor_cores.TILES},
    **{f"{name}_{form}": _multiply(f"{name}_{form}", form) for name in ("wgmma_f16", "wgmma_bf16") for form in FORMS},
    "wgmma_fence": _fence,
    "wgmma_commit": _plain("wgmma_commit", engines.commit),
    "wgmma_wait": _wait, "fewer_registers": _registers("fewer_registers"),
    "more_registers": _registers("more_registers"),
    "copies_visible": _plain("copies_visible", _show),
    "mbarrier_init": _initialise, "mbarrier_arrive": _arrive, "expect_bytes": _expect, "mbarrier_wait": _await,
    "place_map": _place_map, "maps_of_launch": _maps_of_launch, "soon": _soon, "bulk_tile": _bulk_tile,
}  # fmt: skip
