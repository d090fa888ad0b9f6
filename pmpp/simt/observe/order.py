"""What orders two accesses: barriers, and signals with their fences.

A thread releases what it knows by a fence and then an atomic: its own accesses before the fence, those of its block
before a barrier that came before the fence, and those of lanes that it met at a `syncwarp` before it.  It acquires by
an atomic, or by reading what others updated atomically and then a fence.  Who has not acquired by itself has to meet,
at a barrier, somebody who has.  (PTX ISA, "Memory consistency model": release and acquire patterns, causality order.)

More lenient than the model are two things that programs rely on, the threadfence reduction of the CUDA C++ programming
guide among them: an atomic needs no fence behind it to acquire, and whoever signals after a barrier signals for those
who had fenced before it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable

import numpy as np

from pmpp.simt.machine.lanes import WARP, Lanes
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.quick import all_of, any_of


class Clock:
    """Time within a launch, and when each block, warp or the grid last synchronised."""

    def __init__(self, blocks: int, warps: int, cluster: int = 1) -> None:
        self.now = 1
        self.warps, self.width = warps, warps * WARP
        self.grid_barrier = 0
        self.cluster = cluster  # blocks of one
        self.cluster_barrier = np.zeros(blocks, np.int64)  # by the cluster of each block
        self.block_barrier = np.zeros(blocks, np.int64)
        self.last_atomic = np.zeros(blocks, np.int64)  # by a thread of each block
        self.lane_barrier: np.ndarray | None = None  # when each lane last did a `syncwarp`, once one did
        # When each two lanes of a warp last did one together, once some did without the others.
        self.meetings: weakref.WeakKeyDictionary[Lanes, np.ndarray] = weakref.WeakKeyDictionary()
        self.here: Lanes | None = None  # those whose accesses are being looked at
        self.device: Handover | None = None  # by fences between blocks, once there is one
        self.inside: Handover | None = None  # by fences within blocks
        self.arrivals: Arrivals | None = None  # by mbarriers, once somebody arrived at one

    def tick(self) -> int:
        """Advance time by one access."""
        self.now += 1
        return self.now

    # -- barriers ----------------------------------------------------------------------------------------------------

    def meet_as_a_grid(self) -> None:
        """A barrier of the whole grid."""
        self.grid_barrier = self.tick()
        self.block_barrier[:] = self.cluster_barrier[:] = self.now

    def meet_as_blocks(self, blocks: np.ndarray) -> None:
        """These blocks have each passed a barrier."""
        self.block_barrier[blocks] = self.tick()
        for each in self.handovers():
            each.tell_block(blocks)
        if self.arrivals is not None:
            self.arrivals.tell_block(blocks)

    def meet_as_clusters(self, blocks: np.ndarray) -> None:
        """These blocks, whole clusters, have each passed a barrier of their cluster."""
        self.meet_as_blocks(blocks)
        self.cluster_barrier[blocks] = self.now
        if self.device is not None and self.cluster > 1:
            self.device.tell_clusters(np.unique(blocks // self.cluster))

    def meet_as_warps(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        """These lanes of these blocks, whole warps of those that still run, have done a `syncwarp`."""
        if self.lane_barrier is None:
            self.lane_barrier = np.zeros((self.block_barrier.size, self.width), np.int64)
        self.lane_barrier[rows, lanes] = self.tick()
        if self.handovers():
            who = rows * self.width + lanes
            for each in self.handovers():
                each.tell_warps(who)

    def meet_in_groups(self, lanes: Lanes, together: np.ndarray) -> None:
        """These blocks have done a `syncwarp`, in each warp those lanes two by two for which `together` holds."""
        if lanes not in self.meetings:
            last = np.zeros((lanes.blocks, lanes.width), np.int64)
            if self.lane_barrier is not None:
                last = self.lane_barrier[lanes.first : lanes.first + lanes.blocks]
            last = last.reshape(lanes.blocks, lanes.warps, WARP)
            self.meetings[lanes] = np.minimum(last[:, :, :, None], last[:, :, None, :])
        self.meetings[lanes][together] = self.tick()
        for each in self.handovers():
            each.tell_groups(lanes, together)

    def met(self, blocks: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | int:
        """When lanes a and b of these blocks, two of one warp each, last did a `syncwarp` together."""
        if self.here in self.meetings:
            return self.meetings[self.here][blocks - self.here.first, a // WARP, a % WARP, b % WARP]
        return (
            0 if self.lane_barrier is None else np.minimum(self.lane_barrier[blocks, a], self.lane_barrier[blocks, b])
        )

    # -- signals -----------------------------------------------------------------------------------------------------

    def handovers(self) -> list[Handover]:
        """Those in use: most kernels have no fence."""
        return [each for each in (self.device, self.inside) if each is not None]

    def fence(self, who: np.ndarray, *, block: bool) -> None:
        """These threads have passed a fence, one within their block or one between blocks, which is both."""
        self.tick()
        if block and self.inside is None:
            self.inside = Handover(self)
        elif not block and self.device is None:
            self.device = Handover(self, Flags.of(self))
        for each in (self.inside,) if block else self.handovers():
            each.on_fence(who)

    def signal(self, who: np.ndarray, flags: Hashable, cells: np.ndarray) -> None:
        """An atomic by these threads, on these cells of global memory or on others."""
        for each in self.handovers():
            each.on_atomic(who, flags, cells)

    def signal_alone(self, who: int, flags: Hashable, cell: int) -> None:
        """The same of one thread."""
        for each in self.handovers():
            each.on_atomic_alone(who, flags, cell)

    def look(self, who: np.ndarray, flags: Hashable, cells: np.ndarray) -> None:
        """A plain read by these threads of what others have updated by atomics."""
        for each in self.handovers():
            each.on_look(who, flags, cells)

    def unordered(self, who: np.ndarray, then: np.ndarray, me: np.ndarray | np.int64) -> np.ndarray:
        """Whether the access by thread `who` at time `then` may run at the same time as one by `me` now."""
        width = self.width
        mine, theirs = me // width, who // width
        inside = then >= self.block_barrier[mine]
        across = then >= self._across(mine, theirs)
        if self.lane_barrier is not None or self.meetings:
            a, b = me % width, who % width
            inside &= (a // WARP != b // WARP) | (then >= self.met(mine, a, b))
        if self.inside is not None:
            inside &= ~self.inside.ordered(who, then, me)
        if self.arrivals is not None:
            inside &= ~self.arrivals.ordered(who, then, me)
        bad = np.where(mine == theirs, inside, across)
        if self.device is not None and any_of(bad):
            bad &= ~self.device.ordered(who, then, me)
        return bad

    def _across(self, mine: np.ndarray | int, theirs: np.ndarray | int) -> np.ndarray | int:
        """When two blocks each last met at a barrier."""
        if self.cluster == 1:
            return self.grid_barrier
        return np.where(mine // self.cluster == theirs // self.cluster, self.cluster_barrier[mine], self.grid_barrier)

    def is_unordered(self, who: int, then: int, me: int) -> bool:
        """The same for two single threads."""
        width = self.width
        mine, a, b = me // width, me % width, who % width
        if mine != who // width:
            bad = then >= self._across(mine, who // width)
        else:
            bad = then >= self.block_barrier.item(mine)
            if bad and a // WARP == b // WARP and (self.lane_barrier is not None or self.meetings):
                bad = then >= self.met(mine, a, b)
            if bad and self.inside is not None:
                bad = not self.inside.is_ordered(who, then, me)
            if bad and self.arrivals is not None:
                bad = not self.arrivals.ordered(who, then, me)
        if bad and self.device is not None:
            bad = not self.device.is_ordered(who, then, me)
        return bool(bad)

    def reason(self, who: int, then: int, me: int) -> tuple[str, int]:
        """Why nothing orders an access by thread `who` at time `then` before one by `me` now: the end of a sentence.

        In it, {other} stands for a third thread, which comes second.
        """
        same = who // self.width == me // self.width
        found, other = "", 0
        for each in self.handovers():
            if same or each is self.device:
                found, other = each.missing(who, then, me) if not found else (found, other)
        atomics = self.last_atomic[who // self.width] > then and (self.handovers() if same else True)
        if not found and atomics and self.last_atomic[me // self.width] > then:
            found = "an atomic in between orders them only with a fence before it"
        together = self.cluster > 1 and who // self.width // self.cluster == me // self.width // self.cluster
        apart = "no cluster_sync() in between" if together else "nothing that orders the two blocks"
        text = "no barrier in between" if same else apart
        return f"{text}: {found}" if found else text, other


class Arrivals:
    """What warps of a block know of one another by mbarriers.

    Who arrives tells what its warp has done until then, and what it knows of others; who has waited knows that of all
    who arrived.  `known[block, a, b]`: until when warp a knows what warp b did.  Lanes of a warp count as one.
    """

    def __init__(self, blocks: int, warps: int) -> None:
        self.warps = warps
        self.known = np.zeros((blocks, warps, warps), np.int64)
        self.told: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}  # of each mbarrier: in this phase, and before

    def arrive(self, who: np.ndarray, key: Hashable, now: int) -> None:
        """These threads tell an mbarrier; if `now` is 0, not what they did, and only what they know of others."""
        blocks = len(self.known)
        if key not in self.told:
            self.told[key] = np.zeros((blocks, self.warps), np.int64), np.zeros((blocks, self.warps), np.int64)
        telling = self.told[key][0]
        for warp in np.unique(who // WARP).tolist():
            block, place = divmod(warp, self.warps)
            np.maximum(telling[block], self.known[block, place], out=telling[block])
            telling[block, place] = max(telling[block, place], now)

    def complete(self, blocks: np.ndarray, key: Hashable) -> None:
        """A phase has ended: who waits for it may know."""
        if key in self.told:
            telling, told = self.told[key]
            told[blocks] = telling[blocks]

    def learn(self, who: np.ndarray, key: Hashable) -> None:
        """These threads have waited."""
        if key in self.told:
            told = self.told[key][1]
            for warp in np.unique(who // WARP).tolist():
                block, place = divmod(warp, self.warps)
                np.maximum(self.known[block, place], told[block], out=self.known[block, place])

    def tell_block(self, blocks: np.ndarray) -> None:
        """At a barrier of the block all learn what one of them knows."""
        self.known[blocks] = self.known[blocks].max(axis=1, keepdims=True)

    def ordered(self, who: np.ndarray, then: np.ndarray, me: np.ndarray) -> np.ndarray:
        """Whether what thread `who` did at `then` is known to thread `me`, of threads of one block each."""
        mine = me // WARP
        return self.known[mine // self.warps, mine % self.warps, who // WARP % self.warps] >= then


class Flags:
    """What each thread has learnt of each block, by the elements through which blocks signal.

    `known[a, b]`: thread a knows what block b had published until then, and `looked[a, b]`: it will, after a fence.
    `said` has the same of each signalling element: what who looks at it learns.  They are kept for small launches with
    few such elements; otherwise any look at a signal learns of everything that was published before.
    """

    SIZE, AT_ONCE, SAID = 1 << 20, 256, 1 << 20

    def __init__(self, blocks: int, width: int) -> None:
        self.blocks, self.width = blocks, width
        self.known = np.zeros((blocks * width, blocks), np.int64)
        self.looked: np.ndarray | None = None
        self.said: dict[Hashable, np.ndarray] = {}

    @classmethod
    def of(cls, clock: Clock) -> Flags | None:
        """For a launch, if it is small enough, and has blocks that can signal to one another."""
        blocks = clock.block_barrier.size
        return cls(blocks, clock.width) if blocks > 1 and blocks * blocks * clock.width <= cls.SIZE else None

    def seen(self, who: np.ndarray, array: Hashable, cells: np.ndarray, now: int, released: np.ndarray | None) -> bool:
        """Threads have looked at cells of an array, by atomics if blocks may have `released` something by them, else
        by plain reads.  False: it became too much.

        Those of one statement count as one after the other, each having seen the others.
        """
        order = np.argsort(cells, kind="stable")
        cells, who = cells[order], who[order]
        edges = np.flatnonzero(cells[1:] != cells[:-1]) + 1
        if edges.size >= self.AT_ONCE or len(self.said) * self.blocks > self.SAID:
            return False
        if released is None and self.looked is None:
            self.looked = np.zeros_like(self.known)
        learnt = self.known if released is not None else self.looked
        for first, end in itertools.pairwise((0, *edges.tolist(), who.size)):
            key, these = (array, int(cells[first])), who[first:end]
            if released is not None:
                sources = these // self.width
                sources = sources[released[sources]]
                if sources.size:
                    row = self.said.setdefault(key, np.zeros(self.blocks, np.int64))
                    np.maximum(row, self.known[these].max(axis=0), out=row)
                    row[sources] = now
            if key in self.said:
                learnt[these] = np.maximum(learnt[these], self.said[key])
        return True

    def fence(self, who: np.ndarray) -> None:
        """What these threads have looked at they know now."""
        if self.looked is not None:
            self.known[who] = np.maximum(self.known[who], self.looked[who])

    def told(self) -> list[np.ndarray]:
        """What threads tell one another when they meet."""
        return [self.known] if self.looked is None else [self.known, self.looked]

    def tell_block(self, blocks: np.ndarray) -> None:
        """Threads that met at a barrier know what one of them knows."""
        for each in self.told():
            rows = each.reshape(self.blocks, self.width, self.blocks)
            rows[blocks] = rows[blocks].max(axis=1, keepdims=True)

    def tell_clusters(self, clusters: np.ndarray, size: int) -> None:
        """The same for all threads of these clusters of so many blocks."""
        for each in self.told():
            rows = each.reshape(self.blocks // size, size * self.width, self.blocks)
            rows[clusters] = rows[clusters].max(axis=1, keepdims=True)

    def met(self, who: np.ndarray | int, blocks: np.ndarray | int, then: np.ndarray | int, size: int) -> None:
        """These threads, of these blocks, know what their clusters of so many blocks did before they met then."""
        for k in range(size):
            each = blocks // size * size + k
            self.known[who, each] = np.maximum(self.known[who, each], then)

    def tell_groups(self, lanes: Lanes, together: np.ndarray) -> None:
        """The same for lanes of a warp, two by two."""
        begin = lanes.first * self.width
        for each in self.told():
            here = each[begin : begin + lanes.blocks * self.width].reshape(lanes.blocks, lanes.warps, WARP, self.blocks)
            before = here.copy()
            for k in range(WARP):
                np.maximum(here, np.where(together[..., k, None], before[:, :, k, None, :], 0), out=here)


class History:
    """What threads, or whole blocks, have published: their accesses up to `upto`, by a signal given at `at`.

    Each publication is kept, as far as `SIZE` numbers go: a thread may have learnt of one and not of a later one.
    """

    SIZE, FEW = 1 << 20, 4

    def __init__(self, size: int) -> None:
        self.upto, self.at = np.zeros((1, size), np.int64), np.zeros((1, size), np.int64)
        self.latest, self.count = np.zeros(size, np.int64), np.zeros(size, np.int32)
        self.any = False  # nobody has published anything yet

    def publish(self, who: np.ndarray, upto: np.ndarray, now: int) -> None:
        """These, no one twice, have published what they did up to then, if they had not yet."""
        new = upto > self.latest[who]
        who, upto = who[new], upto[new]
        if not who.size:
            return
        self.any = True
        slots = len(self.upto)
        if slots * 2 * self.latest.size <= self.SIZE and any_of(self.count[who] >= slots):
            self.upto, self.at = (np.concatenate([each, np.zeros_like(each)]) for each in (self.upto, self.at))
            slots *= 2
        slot = as_intp(self.count[who] % slots)
        self.upto[slot, who], self.at[slot, who] = upto, now
        self.latest[who] = upto
        self.count[who] += 1

    def publish_one(self, who: int, upto: int, now: int) -> None:
        """The same of one of them."""
        if upto <= self.latest.item(who):
            return
        slots, count = len(self.upto), self.count.item(who)
        if count >= slots and slots * 2 * self.latest.size <= self.SIZE:
            self.publish(np.array([who], np.int64), np.array([upto], np.int64), now)
            return
        self.any = True
        self.upto[count % slots, who], self.at[count % slots, who] = upto, now
        self.latest[who] = upto
        self.count[who] = count + 1

    def learnt(self, who: np.ndarray, then: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Whether what they did at `then` was published, by a signal given no later than `known`."""
        if not self.any:
            return np.False_
        if len(self.upto) == 1:
            return (self.upto[0].take(as_intp(who)) >= then) & (self.at[0].take(as_intp(who)) <= known)
        return np.logical_or.reduce((self.upto[:, who] >= then) & (self.at[:, who] <= known))

    def has_learnt(self, who: int, then: int, known: int) -> bool:
        """The same of one of them."""
        if self.latest.item(who) < then:
            return False
        if len(self.upto) <= self.FEW:
            slots = range(len(self.upto))
            return any(self.upto.item(k, who) >= then and self.at.item(k, who) <= known for k in slots)
        return any_of((self.upto[:, who] >= then) & (self.at[:, who] <= known))

    def since(self, who: int, then: int) -> int | None:
        """When what one of them did at `then` was published first."""
        at = self.at[self.upto[:, who] >= then, who]
        return int(at.min()) if at.size else None


class Handover:
    """Who has published what, and who has learnt of it, thread by thread, by fences of one scope.

    `acquired` is when a thread last learnt, `looked` when it last read a signal without a fence yet.
    """

    def __init__(self, clock: Clock, flags: Flags | None = None) -> None:
        self.clock, self.flags = clock, flags
        self.blocks, self.width = clock.block_barrier.size, clock.width
        size = self.blocks * self.width
        self.fence, self.acquired = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.looked: np.ndarray | None = None
        self.block_then = np.zeros(size, np.int64)  # when a thread's block had last met, at the thread's fence
        self.cluster_then = np.zeros(size if clock.cluster > 1 else 0, np.int64)  # the same of its cluster
        self.warp_then: np.ndarray | None = None  # the same of its warp
        self.met_then: weakref.WeakKeyDictionary[Lanes, np.ndarray] = weakref.WeakKeyDictionary()  # of any two lanes
        self.by_thread, self.by_block = History(size), History(self.blocks)
        self.fencing = np.zeros(self.blocks, np.bool_)  # blocks with a fence so far
        self.news = np.zeros(self.blocks, np.bool_)  # blocks in which a thread knows more than when they last met
        self.several = np.zeros(self.blocks, np.bool_)  # those in which it was not always the same thread
        self.only = np.zeros(self.blocks, np.int64)  # who it was, in the others
        # What fences have covered of whole blocks and warps, and what of that their blocks knew when they last met.
        self.block_cover, self.block_covered = np.zeros((2, self.blocks), np.int64)
        self.cluster_cover, self.cluster_covered = np.zeros((2, self.blocks), np.int64)
        self.warp_cover, self.warp_covered = np.zeros((2, size // WARP), np.int64)

    # -- what threads do ---------------------------------------------------------------------------------------------

    def on_fence(self, who: np.ndarray) -> None:
        """Earlier accesses come before later signals, and earlier looks before later reads."""
        rows = who // self.width
        if who.size == 1:
            rows, who = rows.item(), who.item()
            self.several[rows] |= self.fencing[rows] and self.only[rows] != who
            self._fenced(who, rows)
            return
        self.several[rows[self.fencing[rows] & (self.only[rows] != who)]] = True
        self._fenced(who, rows)
        self.several[rows[self.only[rows] != who]] = True

    def _fenced(self, who: np.ndarray | int, rows: np.ndarray | int) -> None:
        """These threads, or one, of these blocks have passed a fence."""
        clock = self.clock
        self.news[rows] = self.fencing[rows] = True
        self.only[rows] = who
        self.fence[who] = clock.now
        self.block_then[who] = self.block_cover[rows] = clock.block_barrier[rows]
        if clock.cluster > 1:
            self.cluster_then[who] = self.cluster_cover[rows] = met = clock.cluster_barrier[rows]
            if self.flags is not None:
                self.flags.met(who, rows, met, clock.cluster)
        if self.looked is not None:
            self.acquired[who] = np.maximum(self.acquired[who], self.looked[who])
        if self.flags is not None:
            self.flags.fence(who)
        if clock.lane_barrier is not None:
            if self.warp_then is None:
                self.warp_then = np.zeros_like(self.fence)
            self.warp_then[who] = met = clock.lane_barrier.reshape(-1)[who]
            np.maximum.at(self.warp_cover, who // WARP, met)
        lanes = clock.here
        if lanes in clock.meetings:
            met = clock.meetings[lanes].reshape(-1, WARP)
            then = self.met_then.setdefault(lanes, np.zeros_like(met))
            then[who - lanes.first * self.width] = met[who - lanes.first * self.width]

    def on_atomic(self, who: np.ndarray, array: Hashable, cells: np.ndarray) -> None:
        """An atomic after a fence publishes what the fence covered; any atomic may learn what others published."""
        rows = who // self.width
        self.news[rows] = True
        fencing = self.fencing[rows]
        if any_of(fencing):
            self._release(who[fencing] if not fencing.all() else who)
        self._learn(who, array, cells, self.fencing)
        self.acquired[who] = self.clock.now

    def on_atomic_alone(self, who: int, array: Hashable, cell: int) -> None:
        """The same of one thread."""
        row = who // self.width
        if not self._has_nobody_met(row) or (self.flags is not None and array is not None):
            self.on_atomic(np.array([who], np.int64), array, np.array([cell], np.int64))
            return
        self.news[row] = True
        if self.fencing.item(row):
            self.by_thread.publish_one(who, self.fence.item(who), self.clock.now)
        self.acquired[who] = self.clock.now

    def on_look(self, who: np.ndarray, array: Hashable, cells: np.ndarray) -> None:
        """A plain read of a signal: nothing is learnt before the next fence."""
        self.news[who // self.width] = True
        self._learn(who, array, cells, None)
        if self.looked is None:
            self.looked = np.zeros_like(self.acquired)
        self.looked[who] = self.clock.now

    def _told(self, *, fences: bool = False) -> list[np.ndarray]:
        """What threads tell one another when they meet, as lanes of a warp also what their fences covered."""
        arrays = self.acquired, self.looked, *((self.block_then, self.warp_then) if fences else ())
        return [each for each in arrays if each is not None]

    def _learn(self, who: np.ndarray, array: Hashable, cells: np.ndarray, released: np.ndarray | None) -> None:
        kept = self.flags is None or array is None or self.flags.seen(who, array, cells, self.clock.now, released)
        self.flags = self.flags if kept else None

    def tell_block(self, blocks: np.ndarray) -> None:
        """Threads that met at a barrier know what one of them knows."""
        blocks = blocks[self.news[blocks]]
        if not blocks.size:
            return
        self.news[blocks] = False
        for each in self._told():
            rows = each.reshape(self.blocks, self.width)
            rows[blocks] = rows[blocks].max(axis=1, keepdims=True)
        self.block_covered[blocks] = self.block_cover[blocks]
        self.cluster_covered[blocks] = self.cluster_cover[blocks]
        if self.warp_then is not None:
            self.warp_covered.reshape(self.blocks, -1)[blocks] = self.warp_cover.reshape(self.blocks, -1)[blocks]
        if self.flags is not None:
            self.flags.tell_block(blocks)

    def tell_clusters(self, clusters: np.ndarray) -> None:
        """The same for all threads of these clusters."""
        size = self.clock.cluster
        for each in self._told():
            rows = each.reshape(-1, size * self.width)
            rows[clusters] = rows[clusters].max(axis=1, keepdims=True)
        if self.flags is not None:
            self.flags.tell_clusters(clusters, size)

    def tell_warps(self, who: np.ndarray) -> None:
        """The same for whole warps."""
        for each in self._told(fences=True):
            best = np.zeros(each.size // WARP, np.int64)
            np.maximum.at(best, who // WARP, each[who])
            each[who] = best[who // WARP]
        if self.flags is not None:
            warps, each = np.unique(who // WARP, return_inverse=True)
            for rows in self.flags.told():
                best = np.zeros((warps.size, self.blocks), np.int64)
                np.maximum.at(best, each, rows[who])
                rows[who] = best[each]

    def tell_groups(self, lanes: Lanes, together: np.ndarray) -> None:
        """The same for lanes of a warp, two by two."""
        begin = lanes.first * self.width
        for each in self._told(fences=True):
            here = each[begin : begin + lanes.blocks * self.width].reshape(lanes.blocks, lanes.warps, WARP)
            here[...] = np.maximum(here, np.where(together, here[:, :, None, :], 0).max(axis=3))
        if self.flags is not None:
            self.flags.tell_groups(lanes, together)

    # -- what they publish -------------------------------------------------------------------------------------------

    def _has_nobody_met(self, block: int) -> bool:
        """Whether no threads of a block have met, or learnt from one another within it: each publishes its own."""
        clock = self.clock
        alone = clock.lane_barrier is None and not clock.meetings and clock.inside in (None, self)
        return alone and clock.block_barrier.item(block) == 0

    def _release(self, who: np.ndarray) -> None:
        """An atomic by these threads publishes what each of them has fenced, and what others had before they met."""
        clock, width = self.clock, self.width
        blocks, row = _each_once(who // width)
        covered = self.block_covered[blocks]
        np.maximum.at(covered, row, self.block_then[who])  # what the block did before it met, before who fenced
        self.by_block.publish(blocks, covered, clock.now)
        if clock.cluster > 1:
            self._of_clusters(blocks, row, who)
        whole = self.several[blocks]
        if self is clock.device and clock.inside is not None:
            whole |= clock.inside.fencing[blocks]
        if clock.lane_barrier is None and not clock.meetings and not all_of(whole):
            alone = ~whole[row]
            self.by_thread.publish(who[alone], self.fence[who[alone]], clock.now)
            other = self.only[blocks[~whole]]  # who had fenced, and then met those who signal
            self.by_thread.publish(other, np.minimum(self.fence[other], clock.block_barrier[blocks[~whole]]), clock.now)
            if not any_of(whole):
                return
            who = who[~alone]
            blocks, row = _each_once(who // width)
        fence = self.fence.reshape(self.blocks, width)[blocks]
        upto = np.minimum(fence, clock.block_barrier[blocks, None])
        self._of_warps(upto, fence, blocks, row, who)
        self._handed_on(upto, blocks, row, who)
        flat = upto.reshape(-1)
        own = row * width + who % width
        flat[own] = np.maximum(flat[own], self.fence[who])
        self.by_thread.publish(
            (blocks[:, None] * width + np.arange(width, dtype=np.int64)).reshape(-1), flat, clock.now
        )

    def _of_clusters(self, blocks: np.ndarray, row: np.ndarray, who: np.ndarray) -> None:
        """What clusters did before they met, before who fenced, is published with a signal by one of their blocks.

        Where it is known who has learnt of whom, those know it who know of a block until then (`Flags.met`).
        """
        covered, size = self.cluster_covered[blocks], self.clock.cluster
        np.maximum.at(covered, row, self.cluster_then[who])
        clusters, row = _each_once(blocks // size)
        upto = np.zeros(clusters.size, np.int64)
        np.maximum.at(upto, row, covered)
        for cluster, met in zip(clusters.tolist(), upto.tolist(), strict=True):
            members = np.arange(cluster * size, (cluster + 1) * size, dtype=np.int64)
            told = self.clock.now if self.flags is None else met
            self.by_block.publish(members, np.full(size, met, np.int64), told)

    def _of_warps(
        self, upto: np.ndarray, fence: np.ndarray, blocks: np.ndarray, row: np.ndarray, who: np.ndarray
    ) -> None:
        """What lanes of one warp publish for one another: add it to `upto`, whose rows are blocks."""
        clock, width, lanes = self.clock, self.width, self.clock.here
        warp = row * clock.warps + who % width // WARP
        rows, own = upto.reshape(-1, WARP), fence.reshape(-1, WARP)
        if lanes in clock.meetings:
            place = who - lanes.first * width
            met = clock.meetings[lanes].reshape(-1, WARP)[place]
            np.maximum.at(rows, warp, np.minimum(met, own[warp]))
            if lanes in self.met_then:
                np.maximum.at(rows, warp, self.met_then[lanes][place])
        if clock.lane_barrier is not None:  # whole warps: all lanes that still ran met at one time
            last = clock.lane_barrier[blocks].reshape(-1, WARP)
            now, then = np.zeros(len(rows), np.int64), self.warp_covered.reshape(self.blocks, -1)[blocks].reshape(-1)
            np.maximum.at(now, warp, clock.lane_barrier.reshape(-1)[who])
            if self.warp_then is not None:
                np.maximum.at(then, warp, self.warp_then[who])
            fenced = np.maximum(then[:, None], np.minimum(now[:, None], own))
            np.maximum(rows, np.minimum(last, fenced), out=rows)

    def _handed_on(self, upto: np.ndarray, blocks: np.ndarray, row: np.ndarray, who: np.ndarray) -> None:
        """What threads had learnt within their block before they fenced is published with their own."""
        inner = self.clock.inside
        if inner is None or inner is self:
            return
        learnt = np.zeros(blocks.size, np.int64)
        known = inner.acquired[who]
        np.maximum.at(learnt, row, np.where(known <= self.fence[who], known, 0))
        shape = self.blocks, self.width
        for theirs, at in zip(inner.by_thread.upto, inner.by_thread.at, strict=True):
            known = at.reshape(shape)[blocks] <= learnt[:, None]
            np.maximum(upto, np.where(known, theirs.reshape(shape)[blocks], 0), out=upto)
        for theirs, at in zip(inner.by_block.upto, inner.by_block.at, strict=True):
            np.maximum(upto, np.where(at[blocks] <= learnt, theirs[blocks], 0)[:, None], out=upto)

    # -- questions ---------------------------------------------------------------------------------------------------

    def ordered(self, theirs: np.ndarray, then: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Whether what threads `theirs` did at `then` has been handed over to threads `mine`."""
        theirs, mine = as_intp(theirs), as_intp(mine)
        block, known = theirs // self.width, self.acquired[mine]
        if self.flags is not None:
            known = np.where(mine // self.width == block, known, self.flags.known[mine, block])
        return self.by_thread.learnt(theirs, then, known) | self.by_block.learnt(block, then, known)

    def is_ordered(self, theirs: int, then: int, mine: int) -> bool:
        """The same of two single threads."""
        block, known = theirs // self.width, self.acquired.item(mine)
        if self.flags is not None and mine // self.width != block:
            known = self.flags.known.item(mine, block)
        return self.by_thread.has_learnt(theirs, then, known) or self.by_block.has_learnt(block, then, known)

    def missing(self, theirs: int, then: int, mine: int) -> tuple[str, int]:
        """What is missing for that, of two single threads, and a third one that matters."""
        width = self.width
        given = self.by_thread.since(theirs, then), self.by_block.since(theirs // width, then)
        first = min((at for at in given if at is not None), default=None)
        if first is None:
            return self._not_published(theirs, then, mine)
        near = np.arange(mine // width * width, mine // width * width + width, dtype=np.int64)
        knows = self.ordered(np.full(width, theirs), np.full(width, then), near) & (near // WARP != theirs // WARP)
        if any_of(knows):
            return "{other} has seen the signal, and this thread has not met it at a barrier since", int(near[knows][0])
        if self.acquired[mine] >= first:
            return "this thread has looked at a signal, and not at the one that was given for this", mine
        if self.looked is not None and self.looked[mine] >= first:
            return "this thread has read the signal by a plain load, and passed no fence after that", mine
        return "a signal was given, and no thread of this block has looked at it since", mine

    def _not_published(self, theirs: int, then: int, mine: int) -> tuple[str, int]:
        size = WARP if theirs // self.width == mine // self.width else self.width  # who may have signalled for them
        near = np.arange(theirs // size * size, theirs // size * size + size, dtype=np.int64)
        fences, last = self.fence[near], self.clock.last_atomic[theirs // self.width]
        fenced = fences > then
        met = fenced & ((self.block_then[near] >= then) | (near == theirs))
        if any_of(fenced) and not any_of(met):
            return "{other} fenced, and had not met that thread at a barrier before", int(near[fenced][0])
        if last > then and not any_of(met & (fences <= last)):
            return "no fence came between it and the signal", theirs
        return ("{other} fenced it, and gave no signal after that", int(near[met][0])) if any_of(met) else ("", theirs)


def _each_once(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """These numbers, each once, and where in that each of them is.  A thread by itself needs no sorting."""
    if numbers.size == 1:
        return numbers, np.zeros(1, np.int64)
    return np.unique(numbers, return_inverse=True)
