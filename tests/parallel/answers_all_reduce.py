"""Answers to the exercises of chapter 99: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp.kernels import elementwise
from pmpp.parallel.all_reduce import doubling, ring, seconds
from pmpp.parallel.exercises.all_reduce import in_boxes
from pmpp.parallel.traffic import Links
from pmpp.runtime import device

# ------------------------------------------------------------------------------------------------ around a ring


def beside(group):
    return (group.rank + 1) % group.size, (group.rank - 1) % group.size


def all_send_first(group, x):
    right, left = beside(group)
    group.send(x, right)
    return group.recv(device.empty(3, np.float32), left)


def all_receive_first(group, x):
    right, left = beside(group)
    box = group.recv(device.empty(3, np.float32), left)
    group.send(x, right)
    return box


def one_receives_first(group, x):
    right, left = beside(group)
    box = device.empty(3, np.float32)
    if group.size == 1:
        return x
    if group.rank == 0:
        group.recv(box, left)
        group.send(x, right)
    else:
        group.send(x, right)
        group.recv(box, left)
    return box


def with_itself(group, x):
    right, left = beside(group)
    box = device.empty(3, np.float32)
    for sends in (group.rank % 2 == 0, group.rank % 2 == 1):
        if sends:
            group.send(x, right)
        else:
            group.recv(box, left)
    return box


def to_the_left(group, x):
    right, left = beside(group)
    box = device.empty(3, np.float32)
    if group.size == 1:
        return x
    for sends in (group.rank % 2 == 0, group.rank % 2 == 1):
        if sends:
            group.send(x, left)
        else:
            group.recv(box, right)
    return box


def by_all_gather(group, x):
    return group.all_gather(x)[beside(group)[1]]


def returns_nothing(group, x):
    all_right(group, x)


def into_itself(group, x):
    right, left = beside(group)
    if group.size == 1:
        return x
    if group.rank % 2:
        before = device.to_device(device.to_host(x))
        group.recv(x, left)
        group.send(before, right)
    else:
        group.send(x, right)
        group.recv(x, left)
    return x


def without_the_last(group, x):
    right, left = group.rank + 1, group.rank - 1
    box = device.to_device(device.to_host(x))
    for sends in (group.rank % 2 == 0, group.rank % 2 == 1):
        if sends and right < group.size:
            group.send(x, right)
        if not sends and left >= 0:
            group.recv(box, left)
    return box


def all_right(group, x):
    """By the larger number: the last of an odd number of ranks goes twice."""
    right, left = beside(group)
    box = device.empty(3, np.float32)
    order = [(group.send, x, right), (group.recv, box, left)]
    for call, array, peer in order if group.rank % 2 == 0 else order[::-1]:
        if group.size > 1:
            call(array, peer)
    return box if group.size > 1 else x


def even_ones_receive_first(group, x):
    if group.size == 1:
        return device.to_device(device.to_host(x))
    right, left = beside(group)
    box = device.to_device(np.zeros(3, np.float32))
    if group.rank % 2 == 0:
        group.recv(box, source=left, tag=4)
    group.send(x, to=right, tag=4)
    if group.rank % 2:
        group.recv(box, source=left, tag=4)
    return box


def both_at_once(group, x):
    right, left = beside(group)
    return group.send_recv(x, right, device.empty(x.shape, x.dtype), left)


# ------------------------------------------------------------------------------------------------ a step of the ring


def step_of(sent, summed, *, to=1, add=True, whole=False):
    """A step with which piece is sent and which summed, by rank and step."""

    def answer(group, pieces, step):
        size = group.size
        right, left = (group.rank + to) % size, (group.rank - to) % size
        k, j = sent(group.rank, step) % size, summed(group.rank, step) % size
        box = device.empty(pieces[j].shape, np.float32)
        group.send_recv(pieces[k], right, box, left)
        if add:
            elementwise.add(pieces[j], box, out=pieces[j])
        else:
            pieces[j].copy_to_device(device.to_host(box))

    return answer


its_own_every_time = step_of(lambda rank, step: rank, lambda rank, step: rank - 1)
not_added = step_of(lambda rank, step: rank - step, lambda rank, step: rank - step - 1, add=False)
begins_with_the_next = step_of(lambda rank, step: rank + 1 - step, lambda rank, step: rank - step)
the_other_way = step_of(lambda rank, step: rank + step, lambda rank, step: rank + step + 1, to=-1)
lengths_that_differ = step_of(lambda rank, step: rank - step, lambda rank, step: rank - step)


def sends_first(group, pieces, step):
    right, left = beside(group)
    sent, summed = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
    group.send(sent, right)
    box = group.recv(device.empty(summed.shape, np.float32), left)
    elementwise.add(summed, box, out=summed)


def in_two_goes(group, pieces, step):
    right, left = beside(group)
    sent, summed = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
    box = device.empty(summed.shape, np.float32)
    for sends in (group.rank % 2 == 0, group.rank % 2 == 1):
        if sends:
            group.send(sent, right)
        else:
            group.recv(box, left)
    elementwise.add(summed, box, out=summed)


def all_pieces_in_each_step(group, pieces, step):
    """Sends everything, and adds what belongs to the step."""
    right, left = beside(group)
    boxes = [device.empty(piece.shape, np.float32) for piece in pieces]
    for piece, box in zip(pieces, boxes, strict=True):
        group.send_recv(piece, right, box, left)
    k = (group.rank - step - 1) % group.size
    elementwise.add(pieces[k], boxes[k], out=pieces[k])


def nothing(group, pieces, step):
    pass


def by_all_reduce(group, pieces, step):
    if step == 0:
        for piece in pieces:
            group.all_reduce(piece, out=piece)


def adds_twice(group, pieces, step):
    right, left = beside(group)
    sent, summed = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
    box = device.empty(summed.shape, np.float32)
    group.send_recv(sent, right, box, left)
    elementwise.add(summed, box, out=summed)
    elementwise.add(summed, box, out=summed)


def into_a_list(group, pieces, step):
    """Puts new arrays into the list."""
    p = len(pieces)
    k = (group.rank + 2 * p - step - 1) % p
    box = device.to_device(np.zeros(pieces[k].size, np.float32))
    group.send_recv(pieces[(k + 1) % p], to=(group.rank + 1) % p, out=box, source=(group.rank + p - 1) % p, tag=step)
    pieces[k] = elementwise.add(box, pieces[k])


# ------------------------------------------------------------------------------------------------ the choice


def times(size, nbytes, latency, bandwidth):
    links = Links(latency, bandwidth)
    return {one.__name__: seconds(one, size, nbytes, links) for one in (doubling, ring)}


def by_the_model(size, nbytes, latency, bandwidth):
    found = times(size, nbytes, latency, bandwidth)
    return min(found, key=found.get)


def by_the_border(size, nbytes, latency, bandwidth):
    steps = math.log2(size)
    saved = steps - 2 * (size - 1) / size
    return "ring" if nbytes * saved > (2 * (size - 1) - steps) * latency * bandwidth else "doubling"


def always_ring(size, nbytes, latency, bandwidth):
    return "ring"


def always_doubling(size, nbytes, latency, bandwidth):
    return "doubling"


def one_border_for_all(size, nbytes, latency, bandwidth):
    return "ring" if nbytes > 100_000 else "doubling"


def without_the_second_half(size, nbytes, latency, bandwidth):
    short = (size - 1) * (latency + nbytes / size / bandwidth)
    return "ring" if short < math.log2(size) * (latency + nbytes / bandwidth) else "doubling"


def the_border_of_eight_ranks(size, nbytes, latency, bandwidth):
    """Right for two ranks, where doubling is never slower, and for eight."""
    return "ring" if size > 2 and nbytes > 11 * latency * bandwidth / 1.25 else "doubling"


def the_longer_one(size, nbytes, latency, bandwidth):
    found = times(size, nbytes, latency, bandwidth)
    return max(found, key=found.get)


def a_function(size, nbytes, latency, bandwidth):
    return ring


def no_answer(size, nbytes, latency, bandwidth):
    times(size, nbytes, latency, bandwidth)


# ------------------------------------------------------------------------------------------------ signals


def others_of(group):
    return [rank for rank in range(group.size) if rank != group.rank]


def summed(group, window, x, first):
    rows = device.to_host(window.rows(first, group.size))
    return device.to_host(x)[0] + sum(rows[peer] for peer in others_of(group))


def all_writes_first(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.write(x, peer, at=half + group.rank)
    for peer in others_of(group):
        window.signal(peer)
    for peer in reversed(others_of(group)):
        window.wait(peer)
    return np.float32([summed(group, window, x, half)])


def one_half_and_a_receipt(group, window, x, number):
    """Whoever has read says so, and is written to again only then."""
    for peer in others_of(group):
        if number:
            window.wait(peer)
        window.write(x, peer, at=group.rank)
        window.signal(peer)
    for peer in others_of(group):
        window.wait(peer)
    total = summed(group, window, x, 0)
    for peer in others_of(group):
        window.signal(peer)
    return float(total)


def one_half_for_all_rounds(group, window, x, number):
    for peer in others_of(group):
        window.write(x, peer, at=group.rank)
        window.signal(peer)
    for peer in others_of(group):
        window.wait(peer)
    return summed(group, window, x, 0)


def without_signals(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.write(x, peer, at=half + group.rank)
    return summed(group, window, x, half)


def signals_before_it_writes(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.signal(peer)
        window.write(x, peer, at=half + group.rank)
    for peer in others_of(group):
        window.wait(peer)
    return summed(group, window, x, half)


def waits_for_one(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.write(x, peer, at=half + group.rank)
        window.signal(peer)
    if group.size > 1:
        window.wait((group.rank + 1) % group.size)
    return summed(group, window, x, half)


def waits_before_it_signals(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.write(x, peer, at=half + group.rank)
        window.wait(peer)
        window.signal(peer)
    return summed(group, window, x, half)


def without_its_own(group, window, x, number):
    return in_boxes(group, window, x, number) - float(device.to_host(x)[0])


def all_into_one_row(group, window, x, number):
    half = number % 2 * group.size
    for peer in others_of(group):
        window.write(x, peer, at=half)
        window.signal(peer)
    for peer in others_of(group):
        window.wait(peer)
    return summed(group, window, x, half)


def by_messages(group, window, x, number):
    return group.all_reduce(x)


def says_nothing(group, window, x, number):
    in_boxes(group, window, x, number)


def fills_the_half(group, window, x, number):
    half = number % 2 * group.size
    window.write(x, group.rank, at=half + group.rank)  # a way through its own memory costs as much
    return in_boxes(group, window, x, number)


ALSO_RIGHT = (
    ("all_reduce/pass_right", all_right),
    ("all_reduce/pass_right", even_ones_receive_first),
    ("all_reduce/ring_step", into_a_list),
    ("all_reduce/choose", by_the_model),
    ("all_reduce/choose", by_the_border),
    ("all_reduce/in_boxes", all_writes_first),
    ("all_reduce/in_boxes", one_half_and_a_receipt),
)

WRONG = (
    ("all_reduce/pass_right", all_send_first, "deadlock", "rank 0 sends to 1 at .* each waits for the other"),
    ("all_reduce/pass_right", all_receive_first, "deadlock", "rank 0 receives from 1"),
    ("all_reduce/pass_right", with_itself, "deadlock", "with 1 rank .*waits for itself"),
    ("all_reduce/pass_right", one_receives_first, "one after another", "with 4 ranks 4 messages follow"),
    ("all_reduce/pass_right", to_the_left, "wrong neighbour", "rank 0 must return what rank 3 had"),
    ("all_reduce/pass_right", without_the_last, "wrong neighbour", "rank 0 must return what rank 1 had"),
    ("all_reduce/pass_right", by_all_gather, "another call", "it calls all_gather"),
    ("all_reduce/pass_right", both_at_once, "another call", "it calls send_recv"),
    ("all_reduce/pass_right", returns_nothing, "nothing returned", "rank 0 returned None"),
    ("all_reduce/pass_right", into_itself, "x changes", "own array has changed"),
    ("all_reduce/ring_step", sends_first, "deadlock", "each waits for the other"),
    ("all_reduce/ring_step", its_own_every_time, "parts missing", "to be sent in the next"),
    ("all_reduce/ring_step", nothing, "not started", "no rank has sent anything"),
    ("all_reduce/ring_step", not_added, "not added", "one part alone"),
    ("all_reduce/ring_step", adds_twice, "added twice", "twice or more"),
    ("all_reduce/ring_step", begins_with_the_next, "another piece", "in step 0 rank r sends piece r"),
    ("all_reduce/ring_step", the_other_way, "another piece", "and should have that of piece 1"),
    ("all_reduce/ring_step", lengths_that_differ, "calls do not meet", "shapes do not fit"),
    ("all_reduce/ring_step", in_two_goes, "one after another", "send_recv"),
    ("all_reduce/ring_step", all_pieces_in_each_step, "too many bytes", "send one piece in a step"),
    ("all_reduce/ring_step", by_all_reduce, "too many bytes", "a rank sends 12 bytes"),
    ("all_reduce/choose", always_ring, "too many messages", "2 ranks, 1 bytes.* and the answer is ring: it has more"),
    ("all_reduce/choose", always_doubling, "too many bytes", "4 ranks, 1,048,576 bytes"),
    ("all_reduce/choose", one_border_for_all, "too many messages", "2 ranks, 1,048,576 bytes"),
    ("all_reduce/choose", without_the_second_half, "too many messages", "2 ranks, 1 bytes"),
    ("all_reduce/choose", the_border_of_eight_ranks, "the border", "compare the two times"),
    ("all_reduce/choose", the_longer_one, "too many messages", "2 us a message"),
    ("all_reduce/choose", a_function, "no name", "must be .doubling. or .ring."),
    ("all_reduce/choose", no_answer, "nothing returned", "returned None"),
    ("all_reduce/in_boxes", one_half_for_all_rounds, "no signal between", "writes row 0 at .*answers_all_reduce.py"),
    ("all_reduce/in_boxes", without_signals, "no signal between", "rank 1 writes row 1"),
    ("all_reduce/in_boxes", signals_before_it_writes, "no signal between", "with 2 ranks no signal says which comes"),
    ("all_reduce/in_boxes", waits_for_one, "no signal between", "with 3 ranks no signal says which comes first"),
    ("all_reduce/in_boxes", waits_before_it_signals, "deadlock", "each waits for the other"),
    ("all_reduce/in_boxes", without_its_own, "wrong sum", "rank 0 must return 11 in round 0, was 10"),
    ("all_reduce/in_boxes", all_into_one_row, "wrong sum", "rank 0 must return 11 in round 0, was 1"),
    ("all_reduce/in_boxes", by_messages, "another call", "it calls all_reduce"),
    ("all_reduce/in_boxes", says_nothing, "nothing returned", "returned None"),
    (
        "all_reduce/in_boxes",
        fills_the_half,
        "too many bytes",
        "with 2 ranks 64 bytes are written in 4 rounds, where 32",
    ),
)
