"""Answers to the exercises about halos: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp.parallel import halo
from pmpp.parallel.traffic import Links
from pmpp.runtime import device

# -------------------------------------------------------------------------------------------------- filling a halo


def by_sends(group, cells):
    """Even ranks send first, downwards and then upwards."""
    for down in (True, False):
        first = group.rank % 2 == 0
        peer = group.rank + 1 if first == down else group.rank - 1
        if not 0 <= peer < group.size:
            continue
        border, box = (cells[-2:-1], cells[-1:]) if peer > group.rank else (cells[1:2], cells[:1])
        if first:
            group.send(border, peer)
            group.recv(box, peer)
        else:
            group.recv(box, peer)
            group.send(border, peer)


def by_shifts(group, cells):
    """All send down, and then all send up."""
    above, below = group.rank - 1, group.rank + 1
    if above < 0 and below < group.size:
        group.send(cells[-2:-1], below)
        group.recv(cells[-1:], below)
    elif above >= 0 and below < group.size:
        group.send_recv(cells[-2:-1], below, cells[:1], above)
        group.send_recv(cells[1:2], above, cells[-1:], below)
    elif above >= 0:
        group.recv(cells[:1], above)
        group.send(cells[1:2], above)


def with_tags(group, cells):
    """The tag says in which direction a message goes."""
    pairs = [(group.rank + 1, cells[-2:-1], cells[-1:], 0, 1), (group.rank - 1, cells[1:2], cells[:1], 1, 0)]
    for peer, border, box, mine, theirs in pairs if group.rank % 2 else pairs[::-1]:
        if 0 <= peer < group.size:
            if group.rank % 2:
                group.send(border, peer, tag=mine)
                group.recv(box, peer, tag=theirs)
            else:
                group.recv(box, peer, tag=theirs)
                group.send(border, peer, tag=mine)


def through_other_arrays(group, cells):
    """Into a box, and then into the halo."""
    host = device.to_host(cells)
    for parity in (0, 1):
        peer = group.rank + 1 if group.rank % 2 == parity else group.rank - 1
        if 0 <= peer < group.size:
            box = device.empty((1, 3), np.float32)
            group.send_recv(host[-2:-1] if peer > group.rank else host[1:2], peer, box, peer)
            (cells[-1:] if peer > group.rank else cells[:1]).copy_to_device(box)


def by_numbers(group, cells):
    """Rows by their numbers from the front."""
    n = cells.shape[0]
    for parity in (0, 1):
        down = group.rank % 2 == parity
        peer, mine, place = (group.rank + 1, n - 2, n - 1) if down else (group.rank - 1, 1, 0)
        if -1 < peer < group.size:
            group.send_recv(cells[mine : mine + 1], peer, cells[place : place + 1], peer)


def variant(border=(1, -2), place=(0, -1), ring=False):
    """Pairs exchange rows with these numbers."""

    def row(cells, number):
        number %= cells.shape[0]
        return cells[number : number + 1]

    def answer(group, cells):
        for parity in (0, 1):
            down = group.rank % 2 == parity
            peer = group.rank + (1 if down else -1)
            if ring and group.size % 2 == 0 and group.size > 2:
                peer %= group.size
            if 0 <= peer < group.size:
                box = device.to_device(device.to_host(row(cells, place[down])))
                group.send_recv(device.to_host(row(cells, border[down])), peer, box, peer)
                row(cells, place[down]).copy_to_device(box)

    return answer


sends_its_halo = variant(border=(0, -1))
one_row_too_deep = variant(border=(2, -3))
rows_that_do_not_touch = variant(border=(-2, 1))
into_its_own_rows = variant(place=(1, -2))
around_a_ring = variant(ring=True)


def all_send_first(group, cells):
    for peer, border in ((group.rank - 1, cells[1:2]), (group.rank + 1, cells[-2:-1])):
        if 0 <= peer < group.size:
            group.send(border, peer)
    for peer, box in ((group.rank - 1, cells[:1]), (group.rank + 1, cells[-1:])):
        if 0 <= peer < group.size:
            group.recv(box, peer)


def in_a_chain(group, cells):
    above, below = group.rank - 1, group.rank + 1
    if above >= 0:
        group.recv(cells[:1], above)
        group.send(cells[1:2], above)
    if below < group.size:
        group.send(cells[-2:-1], below)
        group.recv(cells[-1:], below)


def downwards_alone(group, cells):
    if group.rank + 1 < group.size and group.rank % 2 == 0:
        group.send(cells[-2:-1], group.rank + 1)
    if group.rank:
        group.recv(cells[:1], group.rank - 1)
    if group.rank + 1 < group.size and group.rank % 2:
        group.send(cells[-2:-1], group.rank + 1)


def the_last_rank_goes_beyond(group, cells):
    group.send(cells[-2:-1], group.rank + 1)


def the_first_from_all(group, cells):
    """Everybody is given rank 0's border."""
    border = group.broadcast(device.to_host(cells)[-2:-1] if group.rank == 0 else None)
    if group.rank:
        cells[:1].copy_to_device(device.to_host(border))
    if group.rank + 1 < group.size:
        by = device.empty((1, 3), np.float32)
        group.recv(by, group.rank + 1)
        cells[-1:].copy_to_device(by)
    if group.rank:
        group.send(cells[1:2], group.rank - 1)


def does_nothing(group, cells):
    pass


# ------------------------------------------------------------------------------------------------- how wide a halo


def from_the_module(rows, columns, cell, latency, bandwidth, most):
    """As the chapter's model, but for the two cells that this has at the ends of a row."""
    links = Links(latency, bandwidth)
    time = [
        (sum((rows + 2 * i) * columns for i in range(k)) * cell + 2 * links.seconds(4 * k * columns)) / k
        for k in range(1, most + 1)
    ]
    assert halo.seconds(2 * rows, columns, (2, 1), links, cell) >= time[0]
    return time.index(min(time)) + 1


def by_calculus(rows, columns, cell, latency, bandwidth, most):
    """The time is columns cell (rows + k - 1) + 2 latency / k + a constant: least near a square root."""
    best = (2 * latency / (columns * cell)) ** 0.5
    near = [k for k in (int(best), int(best) + 1) if 1 <= k <= most] or [1 if best < 1 else most]
    return min(near, key=lambda k: columns * cell * k + 2 * latency / k)


def by_numpy(rows, columns, cell, latency, bandwidth, most):
    k = np.arange(1, most + 1)
    return k[np.argmin(columns * cell * (rows + k - 1) + 2 * latency / k + 8 * columns / bandwidth)]


def until_it_grows(rows, columns, cell, latency, bandwidth, most):
    def total(k):
        return columns * cell * (k * rows + k * (k - 1)) / k + 2 * (latency / k + 4 * columns / bandwidth)

    k = 1
    while k < most and total(k + 1) < total(k):
        k += 1
    return k


def sorted_pairs(rows, columns, cell, latency, bandwidth, most):
    pairs = []
    for k in range(1, most + 1):
        seconds = 2 * latency + 8 * k * columns / bandwidth
        for left in range(k):
            seconds += cell * columns * (rows + 2 * left)
        pairs.append((seconds / k, k))
    return sorted(pairs)[0][1]


def least(time):
    def answer(rows, columns, cell, latency, bandwidth, most):
        return min(range(1, most + 1), key=lambda k: time(k, rows, columns, cell, latency, 4 * columns / bandwidth))

    return answer


all_together = least(lambda k, r, c, cell, a, row: cell * c * (k * r + k * (k - 1)) + 2 * (a + k * row))
free_halo = least(lambda k, r, c, cell, a, row: cell * r * c + 2 * a / k + 2 * row)
always_the_widest = least(lambda k, r, c, cell, a, row: cell * c * (r + 2 * k - 2) + 2 * a / k + 2 * row)
latency_each_step = least(lambda k, r, c, cell, a, row: cell * c * (r + k - 1) + 2 * (a + row))
one_row_more = least(lambda k, r, c, cell, a, row: (cell * c * ((k + 1) * r + (k + 1) * k) + 2 * a) / k)
one_row_a_message = least(lambda k, r, c, cell, a, row: (cell * c * k * (r + k - 1) + 2 * (a + row)) / k)


def as_wide_as_allowed(rows, columns, cell, latency, bandwidth, most):
    return most


def a_square_root(rows, columns, cell, latency, bandwidth, most):
    return (2 * latency / (columns * cell)) ** 0.5


def no_answer(rows, columns, cell, latency, bandwidth, most):
    pass


def half_as_wide(rows, columns, cell, latency, bandwidth, most):
    return max(1, by_numpy(rows, columns, cell, latency, bandwidth, most) // 2)


# ------------------------------------------------------------------------------------------------- finding a deadlock


def by_popping(programs):
    going = True
    while going:
        going = False
        for a, calls in enumerate(programs):
            for b, others in enumerate(programs):
                if calls and others and calls[0] == ("send", b) and others[0] == ("recv", a):
                    calls.pop(0)
                    others.pop(0)
                    going = True
    return {rank for rank, calls in enumerate(programs) if calls}


def from_the_receives(programs):
    """A receive that finds its send."""
    at = dict.fromkeys(range(len(programs)), 0)
    now = lambda rank: (*programs[rank], None)[at[rank]]  # noqa: E731
    while True:
        met = [(a, now(a)[1]) for a in at if now(a) and now(a)[0] == "recv" and now(now(a)[1]) == ("send", a)]
        if not met:
            return [a for a in at if now(a)]
        for rank in met[0]:
            at[rank] += 1


def recursive(programs):
    for a, calls in enumerate(programs):
        if calls and calls[0][0] == "send":
            b = calls[0][1]
            if programs[b] and programs[b][0] == ("recv", a):
                rest = [list(one) for one in programs]
                rest[a], rest[b] = rest[a][1:], rest[b][1:]
                return recursive(rest)
    return [rank for rank, calls in enumerate(programs) if calls]


def in_rounds(programs):
    """As many rounds as there are calls."""
    at = np.zeros(len(programs), int)
    for _ in range(sum(map(len, programs))):
        for a, calls in enumerate(programs):
            kind, b = calls[at[a]] if at[a] < len(calls) else ("end", 0)
            if kind == "send" and programs[b][at[b] : at[b] + 1] == [("recv", a)]:
                at[a] += 1
                at[b] += 1
    return np.flatnonzero(at < [len(calls) for calls in programs])


def downwards(programs):
    return sorted(by_popping(programs), reverse=True)


def sends_never_wait(programs):
    at, sent, going = [0] * len(programs), [], True
    while going:
        going = False
        for rank, calls in enumerate(programs):
            if at[rank] < len(calls):
                kind, peer = calls[at[rank]]
                if kind == "send":
                    sent.append((rank, peer))
                elif (peer, rank) in sent:
                    sent.remove((peer, rank))
                else:
                    continue
                at[rank] += 1
                going = True
    return [rank for rank, calls in enumerate(programs) if at[rank] < len(calls)]


def those_that_end(programs):
    left = recursive(programs)
    return [rank for rank in range(len(programs)) if rank not in left]


def a_circle_alone(programs):
    """Without those that wait for a rank of the circle."""
    left = recursive(programs)
    return [1, 2] if len(left) == 3 and len(programs) == 4 else left


def one_sweep(programs):
    for a, calls in enumerate(programs):
        if calls and calls[0][0] == "send":
            b = calls[0][1]
            if programs[b] and programs[b][0] == ("recv", a):
                calls.pop(0)
                programs[b].pop(0)
    return [rank for rank, calls in enumerate(programs) if calls]


def more_sends_than_receives(programs):
    """It counts, and knows nothing of the order."""
    kinds = [call[0] for calls in programs for call in calls]
    return list(range(len(programs))) if kinds.count("send") != kinds.count("recv") else []


def all_of_them(programs):
    return list(range(len(programs)))


def yes_or_no(programs):
    return bool(recursive(programs))


def says_nothing(programs):
    recursive(programs)


ALSO_RIGHT = (
    *[("halo_exchange/exchange", one) for one in (by_sends, by_shifts, with_tags, through_other_arrays, by_numbers)],
    *[("halo_exchange/width", one) for one in (from_the_module, by_calculus, by_numpy, until_it_grows, sorted_pairs)],
    *[("halo_exchange/stuck", one) for one in (by_popping, from_the_receives, recursive, in_rounds, downwards)],
)

WRONG = (
    ("halo_exchange/exchange", all_send_first, "deadlock", "with 2 ranks of 4 rows rank 0 sends to 1"),
    ("halo_exchange/exchange", sends_its_halo, "the halo was sent", "send a row of its own"),
    ("halo_exchange/exchange", one_row_too_deep, "not the border", "which is row"),
    ("halo_exchange/exchange", rows_that_do_not_touch, "the border on the other side", "the rows that touch"),
    ("halo_exchange/exchange", into_its_own_rows, "own cells changed", "had 4 rows of its own"),
    ("halo_exchange/exchange", around_a_ring, "the ends changed", "with 6 ranks.*nobody is there"),
    ("halo_exchange/exchange", in_a_chain, "one after another", "10 messages follow one another"),
    ("halo_exchange/exchange", downwards_alone, "not filled", "the last row of rank 0 must be"),
    ("halo_exchange/exchange", the_first_from_all, "wrong neighbour", "which is a row of rank 0"),
    ("halo_exchange/exchange", does_nothing, "not filled", "the last row of rank 0"),
    ("halo_exchange/width", all_together, "not per step", "divide by k"),
    ("halo_exchange/width", free_halo, "nothing more to compute", "a halo costs work"),
    ("halo_exchange/width", always_the_widest, "all steps as the first", "a row less on each side"),
    ("halo_exchange/width", latency_each_step, "not per step|a message a step", "."),
    ("halo_exchange/width", one_row_more, "a row too many", "the rank's own rows"),
    ("halo_exchange/width", one_row_a_message, "one row a message", "messages of k rows"),
    ("halo_exchange/width", as_wide_as_allowed, "nothing more to compute", "."),
    ("halo_exchange/width", a_square_root, "no width", "an integer from 1 to 64"),
    ("halo_exchange/width", half_as_wide, "wrong result", "takes least"),
    ("halo_exchange/width", no_answer, "nothing returned", "it returned None"),
    ("halo_exchange/stuck", sends_never_wait, "sends that do not wait", "a send waits until"),
    ("halo_exchange/stuck", those_that_end, "those that end", "two that both send first"),
    ("halo_exchange/stuck", a_circle_alone, "the circle alone", "who waits for a rank of the circle"),
    ("halo_exchange/stuck", one_sweep, "one turn only", "go on until nothing happens"),
    ("halo_exchange/stuck", more_sends_than_receives, "sends that do not wait", "."),
    ("halo_exchange/stuck", all_of_them, "wrong result", "two that both send first"),
    ("halo_exchange/stuck", yes_or_no, "no list", "was True"),
    ("halo_exchange/stuck", says_nothing, "nothing returned", "it returned None"),
)
