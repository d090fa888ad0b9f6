"""Answers to the exercises of notebooks/90_feeding_the_gpu.ipynb: wrong ones, and right ones written differently."""

import numpy as np

from pmpp.kernels.feeding.exercises import COPY, KERNEL, RECORD, WAIT, pieces_report
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()


# --------------------------------------------------------------------------------------------------------- missing_wait


@right("feeding/missing_wait")
def wait_by_clocks(what, stream, name):
    """Vector clocks: of each stream, how far it knows each other stream to be."""
    count = int(stream.max()) + 1
    clocks, events = np.zeros((count, count), int), {}
    stamps = []
    for j, (kind, here, which) in enumerate(zip(what, stream, name, strict=True)):
        stamps.append(None)
        if kind == RECORD:
            events[which] = clocks[here].copy()
        elif kind == WAIT:
            clocks[here] = np.maximum(clocks[here], events[which])
        else:
            for i in range(j):
                shares = stamps[i] is not None and name[i] == which and (kind == COPY or what[i] == COPY)
                if shares and clocks[here, stream[i]] < stamps[i]:
                    return [i, j]
            clocks[here, here] += 1
            stamps[j] = clocks[here, here]
    return [-1, -1]


@wrong("feeding/missing_wait", "events ignored", "A wait orders two streams")
def wait_for_nobody(what, stream, name):
    for j in range(what.size):
        for i in range(j):
            if what[i] + what[j] <= 1 and name[i] == name[j] and stream[i] != stream[j]:
                return np.array([i, j])
    return np.array([-1, -1])


@wrong("feeding/missing_wait", "any wait counts", "before the event was recorded")
def wait_for_anything(what, stream, name):
    for j in range(what.size):
        for i in range(j):
            if what[i] + what[j] > 1 or name[i] != name[j] or stream[i] == stream[j]:
                continue
            if not any(what[k] == WAIT and stream[k] == stream[j] for k in range(i, j)):
                return np.array([i, j])
    return np.array([-1, -1])


def walk(what, stream, name, conflict):
    behind, events = {}, {}
    for j in range(what.size):
        done = behind.setdefault(stream[j], set())
        if what[j] == RECORD:
            events[name[j]] = set(done)
        elif what[j] == WAIT:
            done |= events[name[j]]
        else:
            for i in range(j):
                if what[i] <= KERNEL and name[i] == name[j] and conflict(what[i], what[j]) and i not in done:
                    return np.array([i, j])
            done.add(j)
    return np.array([-1, -1])


@wrong("feeding/missing_wait", "readers may race", "only read")
def wait_of_readers(what, stream, name):
    return walk(what, stream, name, lambda a, b: True)


@wrong("feeding/missing_wait", "only reads looked at", "overwrite what a kernel still reads")
def wait_of_reads(what, stream, name):
    return walk(what, stream, name, lambda a, b: a == COPY and b == KERNEL)


@wrong("feeding/missing_wait", "wrong result")
def wait_the_other_way_round(what, stream, name):
    return walk(what, stream, name, lambda a, b: COPY in (a, b))[::-1]


def wait_with(first_recording=False, latest=False):
    """The walk with one of its parts exchanged."""

    def answer(what, stream, name):
        behind, events = {}, {}
        for j in range(what.size):
            done = behind.setdefault(stream[j], set())
            if what[j] == RECORD:
                events[name[j]] = events.get(name[j], set(done)) if first_recording else set(done)
            elif what[j] == WAIT:
                done |= events[name[j]]
            else:
                for i in range(j)[::-1] if latest else range(j):
                    uses = what[i] in (COPY, KERNEL) and name[i] == name[j]
                    if uses and COPY in (what[i], what[j]) and i not in done:
                        return np.array([i, j])
                done.add(j)
        return np.array([-1, -1])

    return answer


@wrong("feeding/missing_wait", "wrong result", "an event that is recorded twice")
def wait_for_the_first_recording(what, stream, name):
    return wait_with(first_recording=True)(what, stream, name)


@wrong("feeding/missing_wait", "wrong result", "two readers and a copy")
def wait_of_the_latest(what, stream, name):
    return wait_with(latest=True)(what, stream, name)


@wrong("feeding/missing_wait", "does not run", "KeyError")
def wait_for_an_event_of_nobody(what, stream, name):
    events = {}
    for j in range(what.size):
        if what[j] == WAIT:
            events[name[j]]
    return np.array([-1, -1])


@wrong("feeding/missing_wait", "input changed", "writes to what")
def wait_that_crosses_out(what, stream, name):
    found = walk(what, stream, name, lambda a, b: COPY in (a, b))
    what[...] = 0
    return found


# -------------------------------------------------------------------------------------------------------- double_buffer


@right("feeding/double_buffer")
def buffers_by_rings(Program, load, copy, compute):
    program = Program()
    ring = [{"copied": None, "used": None} for _ in range(2)]
    for k, times in enumerate(zip(load, copy, compute, strict=True)):
        slot = ring[k % 2]
        if slot["copied"]:
            program.synchronize(slot["copied"])
        program.fill(f"pinned {k % 2}", k, times[0])
        if slot["used"]:
            program.wait("copies", slot["used"])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", times[1])
        slot["copied"] = program.record("copies")
        program.wait("compute", slot["copied"])
        program.kernel(f"there {k % 2}", "compute", times[2])
        slot["used"] = program.record("compute")
    return program.report()


@right("feeding/double_buffer")
def buffers_waited_for_before_the_fill(Program, load, copy, compute):
    """The stream of copies may as well be told before the host fills."""
    program, events = Program(), []
    for k in range(len(load)):
        if k >= 2:
            program.wait("copies", events[k - 2][1])
            program.synchronize(events[k - 2][0])
        program.fill(f"pinned {k % 2}", k, load[k])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", copy[k])
        copied = program.record("copies")
        program.wait("compute", copied)
        program.kernel(f"there {k % 2}", "compute", compute[k])
        events.append((copied, program.record("compute")))
    return program.report()


def buffers(
    Program, load, copy, compute, *, before_fill=True, before_copy=True, before_kernel=True, count=2, order=None
):
    program, copied, used = Program(), [], []
    for k in range(load.size):
        pinned, there = f"pinned {k % count}", f"there {k % count}"
        if k >= count and before_fill:
            program.synchronize(copied[k - count])
        program.fill(pinned, order(k) if order else k, us=load[k])
        if k >= count and before_copy:
            program.wait("copies", used[k - count])
        program.copy(pinned, there, "copies", us=copy[k])
        copied.append(program.record("copies"))
        if before_kernel:
            program.wait("compute", copied[k])
        program.kernel(there, "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


@wrong("feeding/double_buffer", "filled too early", "synchronize the host")
def buffers_filled_at_once(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, before_fill=False)


@wrong("feeding/double_buffer", "used too early", "before what it reads has arrived")
def buffers_used_at_once(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, before_kernel=False)


@wrong("feeding/double_buffer", "overwritten too early", "may still use it")
def buffers_overwritten(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, before_copy=False)


@wrong("feeding/double_buffer", "other batches", "batch k, each once")
def buffers_backwards(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, order=lambda k: load.size - k)


@wrong("feeding/double_buffer", "nothing overlaps", "nothing overlaps either")
def buffers_that_stop_the_host(Program, load, copy, compute):
    program = Program()
    for k in range(load.size):
        program.fill("pinned 0", k, us=load[k])
        program.copy("pinned 0", "there 0", "compute", us=copy[k])
        program.kernel("there 0", "compute", us=compute[k])
        program.synchronize(program.record("compute"))
    return program.report()


@wrong("feeding/double_buffer", "wrong result")
def one_buffer(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, count=1)


@wrong("feeding/double_buffer", "other memory")
def three_buffers(Program, load, copy, compute):
    return buffers(Program, load, copy, compute, count=3)


@wrong("feeding/double_buffer", "the host waits too long", "two are slow to load")
def buffers_where_the_host_waits_for_memory(Program, load, copy, compute):
    """The host waits for the kernel before it queues the copy, where the stream could."""
    program, copied, used = Program(), [], []
    for k in range(load.size):
        if k >= 2:
            program.synchronize(copied[k - 2])
        program.fill(f"pinned {k % 2}", k, us=load[k])
        if k >= 2:
            program.synchronize(used[k - 2])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", us=copy[k])
        copied.append(program.record("copies"))
        program.wait("compute", copied[k])
        program.kernel(f"there {k % 2}", "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


@wrong("feeding/double_buffer", "the host waits too long", "the copy from the buffer that it fills next")
def buffers_where_the_host_waits_for_kernels(Program, load, copy, compute):
    program, used = Program(), []
    for k in range(load.size):
        if k >= 2:
            program.synchronize(used[k - 2])
        program.fill(f"pinned {k % 2}", k, us=load[k])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", us=copy[k])
        program.wait("compute", program.record("copies"))
        program.kernel(f"there {k % 2}", "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


@wrong("feeding/double_buffer", "the host waits too long")
def buffers_where_the_host_waits_for_each_copy(Program, load, copy, compute):
    program, used = Program(), []
    for k in range(load.size):
        program.fill(f"pinned {k % 2}", k, us=load[k])
        if k >= 2:
            program.wait("copies", used[k - 2])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", us=copy[k])
        program.synchronize(program.record("copies"))
        program.kernel(f"there {k % 2}", "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


# --------------------------------------------------------------------------------------------------------------- pieces


@right("feeding/pieces")
def pieces_breadth_first(Program, sizes):
    """All copies first, then all kernels: the same order on each stream."""
    program, arrived, made = Program(), [], []
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", 20 * size)
        arrived.append(program.record("in"))
    for k, size in enumerate(sizes):
        program.wait("compute", arrived[k])
        program.kernel(f"there {k}", "compute", 15 * size, f"result {k}")
        made.append(program.record("compute"))
    for k, size in enumerate(sizes):
        program.wait("out", made[k])
        program.copy_back(f"result {k}", f"out {k}", "out", 22 * size)
    return pieces_report(program, len(sizes))


def pieces(Program, sizes, streams=("in", "compute", "out"), waits=(True, True), leave_out=0, stop=False):
    program = Program()
    first, second, third = streams
    for k, size in enumerate(sizes[: len(sizes) - leave_out]):
        program.copy(f"x {k}", f"there {k}", first, us=20 * size)
        if waits[0]:
            program.wait(second, program.record(first))
        program.kernel(f"there {k}", second, us=15 * size, writes=f"result {k}")
        if waits[1]:
            program.wait(third, program.record(second))
        program.copy_back(f"result {k}", f"out {k}", third, us=22 * size)
        if stop:
            program.synchronize(program.record(third))
    return pieces_report(program, len(sizes))


@wrong("feeding/pieces", "used too early")
def pieces_without_the_first_wait(Program, sizes):
    return pieces(Program, sizes, waits=(False, True))


@wrong("feeding/pieces", "used too early")
def pieces_without_the_second_wait(Program, sizes):
    return pieces(Program, sizes, waits=(True, False))


@wrong("feeding/pieces", "nothing overlaps")
def pieces_on_one_stream(Program, sizes):
    return pieces(Program, sizes, ("in", "in", "in"))


@wrong("feeding/pieces", "nothing overlaps")
def pieces_that_stop_the_host(Program, sizes):
    return pieces(Program, sizes, stop=True)


@wrong("feeding/pieces", "the host waits too long", "let streams wait for events")
def pieces_where_the_host_waits_for_kernels(Program, sizes):
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        done = program.record("compute")
        program.wait("out", done)
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * size)
        program.synchronize(done)
    return pieces_report(program, len(sizes))


@right("feeding/pieces")
def pieces_where_the_host_waits_for_copies(Program, sizes):
    """A copy that the host queues when the one before has ended begins no later for that."""
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.synchronize(program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        program.wait("out", program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * size)
    return pieces_report(program, len(sizes))


@wrong("feeding/pieces", "two in one stream", "give the copies back a stream")
def pieces_on_two_streams(Program, sizes):
    return pieces(Program, sizes, ("in", "compute", "compute"))


@wrong("feeding/pieces", "pieces left out", "copied back once")
def pieces_but_the_last(Program, sizes):
    return pieces(Program, sizes, leave_out=1)


@wrong("feeding/pieces", "wrong result")
def pieces_kernels_when_all_has_come(Program, sizes):
    program, n = Program(), len(sizes)
    for k in range(n):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * sizes[k])
    program.wait("compute", program.record("in"))
    for k in range(n):
        program.kernel(f"there {k}", "compute", us=15 * sizes[k], writes=f"result {k}")
        program.wait("out", program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * sizes[k])
    return pieces_report(program, n)
