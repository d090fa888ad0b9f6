"""Exercises of notebooks/90_feeding_the_gpu.ipynb: a missing wait, two buffers in turn, a copy in pieces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.kernels.feeding.streams import Program
from pmpp.lab.teach.exercise import Case, Exercise, Trap

ANY = np.nan  # in what a trap foresees
KINDS = ("filled too early", "used too early", "overwritten too early")
TOO_EARLY = (
    "A buffer is filled while a copy from it may still run: synchronize the host with an event behind that copy.",
    "An operation may begin before what it reads has arrived: let its stream wait for an event behind the copy.",
    "Memory is written while an earlier operation may still use it: let the stream wait for an event behind that.",
)


def _early(place: int) -> Callable:
    """What a report has at least if there is a race of that kind."""
    foreseen = [ANY] * 5
    foreseen[place] = 1.0
    return lambda *_: {0: np.array(foreseen)}


def _too_early(*places: int) -> tuple[Trap, ...]:
    return tuple(Trap(KINDS[place], TOO_EARLY[place], _early(place)) for place in places)


# ------------------------------------------------------------------------------------------------ feeding/missing_wait

COPY, KERNEL, RECORD, WAIT = range(4)

WORDS = {"copy": COPY, "kernel": KERNEL, "record": RECORD, "wait": WAIT}
# Each operation: what is done, on which stream, and with which memory or event.
PROGRAMS = {
    "two operations": "copy 0 0, kernel 1 0",
    "one stream": "copy 0 0, kernel 0 0, copy 0 0",
    "an event": "copy 0 0, record 0 0, wait 1 0, kernel 1 0, kernel 1 0",
    "an event too early": "record 0 0, copy 0 0, wait 1 0, kernel 1 0",
    "a wait of another stream": "copy 0 0, record 0 0, wait 2 0, kernel 1 1, kernel 2 0, kernel 1 0",
    "two readers": "copy 0 0, record 0 0, wait 1 0, wait 2 0, kernel 1 0, kernel 2 0",
    "memory that is used again": "copy 0 0, record 0 0, wait 1 0, kernel 1 0, copy 0 1, record 0 1, wait 1 1, "
    "kernel 1 1, copy 0 0",
    "two copies": "copy 0 4, copy 1 5, copy 0 5, copy 1 4",
    "an order by way of a third stream": "copy 0 3, record 0 0, wait 2 0, kernel 2 5, record 2 1, wait 1 1, "
    "kernel 1 3, kernel 2 3",
    "an event that is recorded again": "copy 0 0, record 0 7, wait 1 7, copy 0 1, record 0 7, kernel 1 0, kernel 1 1",
    "an event that is recorded twice": "copy 0 0, record 0 7, copy 0 1, record 0 7, wait 1 7, kernel 1 0, kernel 1 1",
    "two readers and a copy": "kernel 1 0, kernel 2 0, copy 0 0",
    "two buffers in turn": "copy 0 0, record 0 0, copy 0 1, record 0 1, wait 1 0, kernel 1 0, record 1 2, wait 1 1, "
    "kernel 1 1, record 1 3, wait 0 2, copy 0 0, copy 0 1",
}


def _parsed(program: str, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A program with drawn numbers of streams, memory and events, and with copies in it that race with nothing."""
    rows = [one.split() for one in program.split(", ")]
    streams, memory, events = rng.permutation(10), rng.permutation(10), rng.permutation(10)
    found = [
        (WORDS[word], streams[int(stream)], (memory if WORDS[word] <= KERNEL else events)[int(name)])
        for word, stream, name in rows
    ]
    if len(found) > 3:
        for alone in range(rng.integers(1, 4)):
            found.insert(rng.integers(len(found)), (COPY, streams[rng.integers(3)], 10 + alone))
    return tuple(np.stack(found, axis=1))


def _two_in_turn(rng: np.random.Generator) -> str:
    """Five batches by way of two buffers, and one wait of those that are needed is left out."""
    program, waits = [], []
    for k in range(5):
        turn = k % 2
        if k > 1:
            waits.append(len(program))
            program.append(f"wait 0 {2 + turn}")
        program += [f"copy 0 {turn}", f"record 0 {turn}"]
        waits.append(len(program))
        program += [f"wait 1 {turn}", f"kernel 1 {turn}", f"record 1 {2 + turn}"]
    del program[rng.choice(waits)]
    return ", ".join(program)


def missing_wait_answer(what, stream, name):
    behind = {}  # of each stream: the operations that have ended before its next one begins
    events = {}
    for j in range(what.size):
        done = behind.setdefault(stream[j], set())
        if what[j] == RECORD:
            events[name[j]] = set(done)
        elif what[j] == WAIT:
            done |= events[name[j]]
        else:
            for i in range(j):
                uses = what[i] in (COPY, KERNEL) and name[i] == name[j]
                if uses and COPY in (what[i], what[j]) and i not in done:
                    return np.array([i, j])
            done.add(j)
    return np.array([-1, -1])


def _missing_wait_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for called, program in {**PROGRAMS, "two buffers in turn, and a wait left out": _two_in_turn(rng)}.items():
        what, stream, name = _parsed(program, rng)
        expected = missing_wait_answer(what, stream, name)
        cases.append(Case(called, (what, stream, name), None, None, {0: expected}))
    return cases


def _pairs(ordered: Callable, conflict: Callable) -> Callable:
    """The first pair that has a conflict and no order, by somebody's ideas of both."""

    def wrong(what: np.ndarray, stream: np.ndarray, name: np.ndarray) -> dict[int, np.ndarray]:
        for j in range(what.size):
            for i in range(j):
                both = max(what[i], what[j]) <= KERNEL and name[i] == name[j]
                if both and conflict(what[i], what[j]) and not ordered(what, stream, name, i, j):
                    return {0: np.array([i, j])}
        return {0: np.array([-1, -1])}

    return wrong


def _has_order(what: np.ndarray, stream: np.ndarray, name: np.ndarray, i: int, j: int) -> bool:
    """By `missing_wait_answer`'s walk, for one pair."""
    behind: dict[int, set] = {}
    events: dict[int, set] = {}
    for k in range(j):
        done = behind.setdefault(stream[k], set())
        if what[k] == RECORD:
            events[name[k]] = set(done)
        elif what[k] == WAIT:
            done |= events[name[k]]
        else:
            done.add(k)
    return i in behind.get(stream[j], set())


def _a_copy(first: int, second: int) -> bool:
    return COPY in (first, second)


def _read_after_write(first: int, second: int) -> bool:
    return (first, second) == (COPY, KERNEL)


def _by_stream_alone(what: np.ndarray, stream: np.ndarray, name: np.ndarray, i: int, j: int) -> bool:
    return bool(stream[i] == stream[j])


def _by_any_wait(what: np.ndarray, stream: np.ndarray, name: np.ndarray, i: int, j: int) -> bool:
    waits = [k for k in range(i, j) if what[k] == WAIT and stream[k] == stream[j]]
    return bool(stream[i] == stream[j] or waits)


# ----------------------------------------------------------------------------------------------- feeding/double_buffer


def double_buffer_answer(Program, load, copy, compute):
    program = Program()
    copied, used = [], []
    for k in range(load.size):
        pinned, there = f"pinned {k % 2}", f"there {k % 2}"
        if k >= 2:
            program.synchronize(copied[k - 2])  # the host fills its buffer again
        program.fill(pinned, k, us=load[k])
        if k >= 2:
            program.wait("copies", used[k - 2])  # the copy overwrites what a kernel has read
        program.copy(pinned, there, "copies", us=copy[k])
        copied.append(program.record("copies"))
        program.wait("compute", copied[k])
        program.kernel(there, "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


class TwoBuffers(Program):
    """The `Program` of the chapter, which also looks at the names of what is used."""

    def report(self) -> np.ndarray:
        """As that of a `Program`; the fourth number is 2 if there is other memory than that of the task."""
        found = super().report()
        used = {name for one in self.operations for name in (*one.reads, *one.writes)}
        if used - {f"{what} {k}" for what in ("pinned", "there") for k in range(2)}:
            found[3] = 2
        return found


def _double_buffer_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, n, scales in (
        ("1 batch", 1, (3, 2, 4)),
        ("2 batches", 2, (3, 2, 4)),
        ("5 batches, kernels the slowest", 5, (3, 2, 9)),
        ("6 batches, loading the slowest", 6, (9, 2, 3)),
        ("7 batches, copies the slowest", 7, (2, 9, 3)),
        ("10 batches, of which two are slow to load", 10, (2, 1, 5)),
        ("8 batches, all alike", 8, (5, 5, 6)),
    ):
        times = [np.round(scale * rng.uniform(0.8, 1.2, n), 2) for scale in scales]
        if name.endswith("load"):
            times[0][4::5] *= 10
        expected = double_buffer_answer(Program, *times)
        tolerance = np.array([0, 0, 0, 0, 1e-9 * expected[4]])  # sums of at most a hundred numbers in float64
        cases.append(Case(name, (TwoBuffers, *times), None, None, {0: expected}, {0: tolerance}))
    return cases


def _one_after_another(_: type, *times: np.ndarray) -> dict[int, np.ndarray]:
    return {0: np.array([0, 0, 0, 0, np.sum(times)])}


def _host_waits(before_fill: str = "", before_copy: str = "", behind_copy: bool = False) -> Callable:
    """What a host comes to that waits until batch k - 2 was "copied" or "used", or until batch k was copied."""

    def wrong(_: type, load: np.ndarray, copy: np.ndarray, compute: np.ndarray) -> dict[int, np.ndarray]:
        program = Program()
        events: dict[str, list] = {"copied": [], "used": []}
        for k in range(load.size):
            pinned, there = f"pinned {k % 2}", f"there {k % 2}"
            if k >= 2 and before_fill:
                program.synchronize(events[before_fill][k - 2])
            program.fill(pinned, k, us=load[k])
            if k >= 2 and before_copy:
                program.synchronize(events[before_copy][k - 2])
            if k >= 2:
                program.wait("copies", events["used"][k - 2])
            program.copy(pinned, there, "copies", us=copy[k])
            events["copied"].append(program.record("copies"))
            if behind_copy:
                program.synchronize(events["copied"][k])
            program.wait("compute", events["copied"][k])
            program.kernel(there, "compute", us=compute[k])
            events["used"].append(program.record("compute"))
        return {0: program.report()}

    return wrong


def _other_memory(*_: object) -> dict[int, np.ndarray]:
    return {0: np.array([ANY, ANY, ANY, 2, ANY])}


def _other_batches(*_: object) -> dict[int, np.ndarray]:
    return {0: np.array([0, 0, 0, 1, ANY])}


# ------------------------------------------------------------------------------------------------------ feeding/pieces

A_MEGABYTE = {"copy": 20.0, "kernel": 15.0, "copy_back": 22.0}  # microseconds, of a GPU that nobody sells


def pieces_answer(Program, sizes):
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        program.wait("out", program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * size)
    return pieces_report(program, len(sizes))


def pieces_report(program: Program, n: int) -> np.ndarray:
    """As `Program.report`; the fourth number is 1 unless each piece was copied, computed and copied back once."""
    done = sorted((one.what, *one.reads, *one.writes) for one in program.operations if one.what != "wait")
    wanted = [("copy", f"x {k}", f"there {k}") for k in range(n)]
    wanted += [("kernel", f"there {k}", f"result {k}") for k in range(n)]
    wanted += [("copy back", f"result {k}", f"out {k}") for k in range(n)]
    report = program.report()
    report[3] = float(done != sorted(wanted))
    return report


def _pieces_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 2, 3, 8):
        sizes = np.round(rng.uniform(1, 3, n), 1)
        expected = pieces_answer(Program, sizes)
        tolerance = np.array([0, 0, 0, 0, 1e-9 * expected[4]])
        cases.append(Case(f"{n} piece{'s' * (n > 1)}", (Program, sizes), None, None, {0: expected}, {0: tolerance}))
    return cases


def _pieces_one_after_another(_: type, sizes: np.ndarray) -> dict[int, np.ndarray]:
    return {0: np.array([0, 0, 0, 0, sum(A_MEGABYTE.values()) * sizes.sum()])}


def _out_on_the_stream_of_kernels(_: type, sizes: np.ndarray) -> dict[int, np.ndarray]:
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        program.copy_back(f"result {k}", f"out {k}", "compute", us=22 * size)
    return {0: pieces_report(program, len(sizes))}


def _host_waits_for_kernels(_: type, sizes: np.ndarray) -> dict[int, np.ndarray]:
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        program.synchronize(program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * size)
    return {0: pieces_report(program, len(sizes))}


TOO_LONG = (
    "No race, but the host has to wait for the copy from the buffer that it fills next, and for nothing else: let "
    "streams wait for the rest."
)
NOT_OVERLAPPED = "No race, but nothing overlaps either: each operation waits for the one before."

EXERCISES = (
    Exercise(
        "feeding/missing_wait",
        task="A list of operations, in the order in which the host queues them: what[j] is 0 for a copy, which writes "
        "memory name[j]; 1 for a kernel, which reads memory name[j]; 2 for recording event name[j]; 3 for letting the "
        "stream wait for event name[j]. stream[j] is the stream. Return np.array([i, j]), the first two operations "
        "that use the same memory, one of them to write, although neither waits for the other: the smallest j, and "
        "for it the smallest i. Return np.array([-1, -1]) if there are none.",
        parameters="what, stream, name",
        cases=_missing_wait_cases,
        answer=missing_wait_answer,
        hints=(
            "Keep for each stream the set of the operations that have ended before its next one begins.",
            "An event has the set of its stream at the time of the recording. A wait adds it to that of another.",
            "Two kernels that read the same memory do not race.",
        ),
        traps=(
            Trap("events ignored", "A wait orders two streams.", _pairs(_by_stream_alone, _a_copy)),
            Trap(
                "any wait counts",
                "A wait orders what was queued before the event was recorded, and nothing else.",
                _pairs(_by_any_wait, _a_copy),
            ),
            Trap(
                "readers may race",
                "Two kernels that only read do not disturb each other.",
                _pairs(_has_order, lambda *_: True),
            ),
            Trap(
                "only reads looked at",
                "A copy may also overwrite what a kernel still reads, or what another copy has written.",
                _pairs(_has_order, _read_after_write),
            ),
        ),
    ),
    Exercise(
        "feeding/double_buffer",
        task="Queue the training on load.size batches, with buffers in turn. Batch k takes the host load[k] us to "
        'fill, copy[k] us to copy, and compute[k] us to compute. The buffers are "pinned 0" and "pinned 1", the '
        'memory is "there 0" and "there 1", the streams are "copies" and "compute". Begin with program = Program(), '
        "which is the class of the chapter, and return program.report(). Nothing may race, and nothing may wait "
        "longer than it has to.",
        parameters="Program, load, copy, compute",
        cases=_double_buffer_cases,
        answer=double_buffer_answer,
        hints=(
            "Write it for one batch first: fill, copy, record, wait, kernel.",
            "Batch k uses what batch k - 2 has used. Who must wait for what, before it is filled and before it is "
            "overwritten?",
            "program.synchronize(event) stops the host, and program.wait(stream, event) only a stream.",
        ),
        traps=(
            *_too_early(0, 1, 2),
            Trap("other batches", "The k-th kernel must find batch k, each once and in order.", _other_batches),
            Trap("other memory", 'There are "pinned 0", "pinned 1", "there 0" and "there 1" alone.', _other_memory),
            Trap("nothing overlaps", NOT_OVERLAPPED, _one_after_another),
            *(
                Trap("the host waits too long", TOO_LONG, _host_waits(*waits))
                for waits in (("used",), ("copied", "used"), ("", "", True))
            ),
        ),
    ),
    Exercise(
        "feeding/pieces",
        task='An array was split in pieces of sizes[k] megabytes. Piece k is copied from "x k" to "there k" in 20 us a '
        'megabyte, a kernel reads that and writes "result k" in 15 us a megabyte, and a copy back to "out k" takes '
        '22 us a megabyte. Queue all of it on the streams "in", "compute" and "out" so that the pieces overlap and '
        "nothing races. Begin with program = Program(), and return pieces_report(program, len(sizes)).",
        parameters="Program, sizes",
        cases=_pieces_cases,
        answer=pieces_answer,
        hints=(
            "The host has nothing to wait for: everything can be queued at once.",
            "A kernel waits for the copy of its own piece: record the event right behind that copy.",
        ),
        traps=(
            *_too_early(1),
            Trap("pieces left out", "Each piece is copied, computed and copied back once.", _other_batches),
            Trap("nothing overlaps", NOT_OVERLAPPED, _pieces_one_after_another),
            Trap(
                "two in one stream",
                "A kernel need not wait for the copy back of the piece before: give the copies back a stream.",
                _out_on_the_stream_of_kernels,
            ),
            Trap(
                "the host waits too long",
                "No race, but the next copy is queued late: let streams wait for events, and not the host.",
                _host_waits_for_kernels,
            ),
        ),
    ),
)
