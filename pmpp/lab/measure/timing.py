"""Honest timing: what was computed is checked, what is not the kernel's is kept out, and the spread is known.

- *Right first.* A contender is checked before it is timed, and the output of its last timed sample is checked again: it
  was poisoned with NaN before, so an element that is not written shows.
- *Kernel time.* The host takes longer to make a call than many kernels take to run. So each sample queues its
  launches behind a delay kernel: when the GPU reaches the first event everything is queued, and the two events enclose
  GPU time alone. That the queue was complete is itself checked in each sample.
- *Short kernels* are launched several times between the events, and the time is divided.
- *Caches.* Cold: launches rotate over input sets that together are at least twice the L2 cache, or the cache is
  overwritten before each sample. Warm: one input set, used once just before.
- *Rivals* take turns, sample by sample, so that clocks and temperature are the same for all.
- *Enough repeats*: until the 95 % interval of the median is narrower than asked for, or the time is used up.

Host time is kept apart: ``Timing.call`` is the time a call takes to return, and ``measure_host`` times what ends on the
host, transfers included.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Contender",
    "GpuTimer",
    "Rule",
    "Sample",
    "Timing",
    "WrongResult",
    "gpu_timer",
    "measure",
    "measure_host",
    "measure_together",
    "median_interval",
]

CONFIDENCE = 0.95
SHORT = 200e-6  # seconds: below this a sample is a batch of launches, since events resolve and cost about a microsecond
LONG = 0.05  # seconds: who takes longer is warm after one call
MOST_LAUNCHES = 50  # in a batch; the queue of launches holds about a thousand


class WrongResult(RuntimeError):
    """A contender computed something else than it should. It gets no time."""


@dataclass(frozen=True)
class Timing:
    """What was measured, in seconds.

    Attributes:
        median, low, high: the median of the samples, and the 95 % confidence interval of the median.
        repeats: samples. batch: launches a sample. settled: whether the interval became as narrow as was asked for.
        method: how, in words.
        call: host time until a call returned, or None where that is the whole time.
        error, tolerance: the worst element of the last timed output, or None if nothing was checked.
    """

    median: float
    low: float
    high: float
    repeats: int
    batch: int = 1
    settled: bool = True
    method: str = ""
    call: float | None = None
    error: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Sample:
    """Seconds a call on the GPU and on the host, and whether everything was queued before the GPU began."""

    seconds: float
    host: float
    queued: bool


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """A confidence interval for the median, from order statistics: it assumes no distribution.

    Each sample is below the true median with probability 1/2, so the number below is binomial, and the interval between
    the k-th smallest and the k-th largest covers the median with probability 1 - 2 P(fewer than k below). With fewer
    than 6 samples no interval reaches 95 %: the smallest and the largest are returned.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if not n:
        raise ValueError("there are no samples")
    if n > 200:  # the binomial is normal by now, and its terms are long to add up
        k = int((n - statistics.NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n)) / 2)
    else:
        below, k = 0.0, 0
        while k < (n + 1) // 2:
            below += math.comb(n, k) / 2**n  # P(at most k of n are below)
            if 2 * below > 1 - confidence:
                break
            k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


@dataclass(frozen=True)
class Rule:
    """When to stop: the interval is narrower than ``spread`` of the median, or the time is used up.

    Looking after every sample stops a little early on lucky streaks, so the interval is slightly optimistic;
    ``min_repeats`` keeps that small. A slow contender gets ``at_least`` samples whatever the time. Samples of one
    moment can agree with each other and not with the next moment's, so a fast one is given ``min_seconds``.
    """

    spread: float = 0.01
    min_repeats: int = 12
    max_repeats: int = 300
    max_seconds: float = 1.0
    at_least: int = 3
    min_seconds: float = 0.0

    def settled(self, samples: Sequence[float]) -> bool:
        if len(samples) < self.min_repeats:
            return False
        low, high = median_interval(samples)
        return high - low <= self.spread * statistics.median(samples)

    def stop(self, samples: Sequence[float], spent: float) -> bool:
        """Whether ``samples`` are enough, ``spent`` seconds after the first began."""
        if len(samples) >= self.max_repeats or (spent >= self.min_seconds and self.settled(samples)):
            return True
        return spent >= self.max_seconds and len(samples) >= self.at_least


# ---------------------------------------------------------------------------------------------------- the GPU's clock


class GpuTimer:
    """Times calls that enqueue work on the default stream of a GPU, with CUDA events."""

    MOST_DELAY = 0.05  # seconds: who needs longer to enqueue a batch is waiting for the GPU, not working

    def __init__(self, cuda: typing.Any) -> None:
        self.cuda = cuda
        self.l2_bytes = int(cuda.get_current_device().L2_CACHE_SIZE)
        self._flush: typing.Any = None
        self._start, self._end = cuda.event(), cuda.event()

        @cuda.jit
        def delay(turns):
            for _ in range(turns):
                cuda.nanosleep(1000)

        self._delay = delay
        delay[1, 1](1)  # compile
        turns = 2000
        self._turn = self.sample([lambda: delay[1, 1](turns)], delay=0).seconds / turns

    def synchronize(self) -> None:
        self.cuda.synchronize()

    def sample(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        before: Callable[[], object] | None = None,
        flush: bool = False,
        delay: float = 100e-6,
    ) -> Sample:
        """Run ``calls`` once between two events: after ``before``, a flush of the L2 cache, and ``delay`` seconds."""
        self.synchronize()
        if before is not None:
            before()
        if flush:
            self._overwrite_l2()
        if delay:
            self._delay[1, 1](math.ceil(delay / self._turn))
        self._start.record()
        began = time.perf_counter()
        for call in calls:
            call()
        host = time.perf_counter() - began
        self._end.record()
        queued = not self._start.query()
        self._end.synchronize()
        seconds = self.cuda.event_elapsed_time(self._start, self._end) / 1e3
        return Sample(seconds / len(calls), host / len(calls), queued)

    def _overwrite_l2(self) -> None:
        import numpy as np

        if self._flush is None:
            self._flush = self.cuda.device_array(2 * self.l2_bytes, np.uint8)
        from numba.cuda.cudadrv import driver

        driver.device_memset(self._flush, 1, self._flush.nbytes)


# -------------------------------------------------------------------------------------------------------- contenders


@dataclass
class Contender:
    """One way to do the work.

    Attributes:
        fn: called with one of ``arg_sets``; enqueues its work and returns its result.
        check: ``check(result, *args) -> (error, tolerance)``; an error over its tolerance, or NaN, is wrong.
        poison: ``poison(*args)`` makes unwritten output recognisable.
        probe: further checks before timing, on inputs of its own; raises WrongResult.
        cache: ``"cold"`` or ``"warm"``. set_bytes: what one call reads and writes, to tell whether rotation is enough.
        batch: launches a sample, or None to choose.
    """

    fn: Callable[..., typing.Any]
    arg_sets: Sequence[tuple]
    check: Callable[..., tuple[float, float]] | None = None
    poison: Callable[..., object] | None = None
    probe: Callable[[], object] | None = None
    cache: str = "cold"
    set_bytes: int = 0
    batch: int | None = None
    _cursor: int = field(default=0, repr=False)
    _result: typing.Any = field(default=None, repr=False)
    _args: tuple = field(default=(), repr=False)

    def call(self) -> None:
        """Run on the next input set."""
        self._args = self.arg_sets[self._cursor % len(self.arg_sets)]
        if self.cache == "cold":
            self._cursor += 1
        self._result = None  # first, so that its memory can be used again
        self._result = self.fn(*self._args)

    def verify(self) -> tuple[float | None, float | None]:
        """Check the result of the last call. Raises WrongResult."""
        if self.check is None:
            return None, None
        error, tolerance = self.check(self._result, *self._args)
        if not error <= tolerance:  # NaN is wrong too
            raise WrongResult(f"the result is off by {error:.3g}, and {tolerance:.3g} is allowed")
        return error, tolerance

    def poison_all(self) -> None:
        self._result = None  # its memory is what a pool hands out next: let the poison have it
        if self.poison is not None:
            for args in self.arg_sets:
                self.poison(*args)


class _Heat:
    """A contender while it is being timed."""

    def __init__(self, contender: Contender, timer: GpuTimer, rule: Rule, clock: Callable[[], float]) -> None:
        self.contender, self.timer, self.rule, self.clock = contender, timer, rule, clock
        self.samples: list[float] = []
        self.host: list[float] = []
        self.spent = 0.0
        self.queued = True
        self.delay = 200e-6
        rotated = len(contender.arg_sets) * contender.set_bytes
        self.flush = contender.cache == "cold" and bool(contender.set_bytes) and rotated < 2 * timer.l2_bytes
        self.batch = 1

    def prepare(self) -> None:
        """Verify, compile, warm up, and choose how many launches make a sample."""
        contender = self.contender
        if contender.probe is not None:
            contender.probe()
        contender.poison_all()
        contender.call()
        self.timer.synchronize()
        contender.verify()
        for _ in range(min(2, len(contender.arg_sets)) + 1):
            began = self.clock()
            contender.call()
            self.timer.synchronize()
            if self.clock() - began > LONG:
                break
        first = self._sample()
        if contender.batch is not None:
            self.batch = contender.batch
        elif not self.flush and first.seconds < SHORT:
            self.batch = max(1, min(MOST_LAUNCHES, math.ceil(SHORT / max(first.seconds, 1e-6))))

    def _sample(self) -> Sample:
        before = self.contender.call if self.contender.cache == "warm" else None
        longest = getattr(self.timer, "MOST_DELAY", 0.05)
        while True:
            sample = self.timer.sample(
                [self.contender.call] * self.batch, before=before, flush=self.flush, delay=self.delay
            )
            if sample.queued or not self.queued:
                break
            if self.delay >= longest:
                self.queued = False  # it waits for the GPU itself: its host time is part of its time
                break
            self.delay = min(2 * max(self.delay, sample.host * self.batch), longest)
        return sample

    def step(self) -> None:
        began = self.clock()
        sample = self._sample()
        self.samples.append(sample.seconds)
        self.host.append(sample.host)
        self.spent += self.clock() - began

    @property
    def done(self) -> bool:
        return self.rule.stop(self.samples, self.spent)

    def finish(self) -> Timing:
        """One more sample, poisoned before and checked after."""
        self.contender.poison_all()
        self.step()
        self.timer.synchronize()
        error, tolerance = self.contender.verify()
        low, high = median_interval(self.samples)
        return Timing(
            statistics.median(self.samples),
            low,
            high,
            len(self.samples),
            self.batch,
            self.rule.settled(self.samples),
            self.method,
            statistics.median(self.host),
            error,
            tolerance,
        )

    @property
    def method(self) -> str:
        launches = f"{self.batch} launches a sample" if self.batch > 1 else "one launch a sample"
        queue = "queued behind a delay kernel" if self.queued else "host time included because it waits for the GPU"
        if self.contender.cache == "warm":
            cache = "one input set, warm"
        elif self.flush:
            cache = "L2 overwritten before"
        else:
            cache = f"rotated over {len(self.contender.arg_sets)} input sets"
        return f"CUDA events, {queue}, {launches}, {cache}"


def measure_together(
    contenders: Mapping[str, Contender],
    *,
    timer: GpuTimer,
    rule: Rule | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing | Exception]:
    """Time rivals in turns. Who fails (WrongResult, a launch error) gets its exception instead of a time."""
    rule = rule or Rule()
    heats = {name: _Heat(contender, timer, rule, clock) for name, contender in contenders.items()}
    outcome: dict[str, Timing | Exception] = {}

    def attempt(name: str, action: Callable[[], Timing | None]) -> None:
        try:
            timing = action()
        except Exception as error:
            outcome[name] = error
        else:
            if timing is not None:
                outcome[name] = timing

    for name, heat in heats.items():
        attempt(name, heat.prepare)
    while running := [name for name in heats if name not in outcome]:
        for name in running:
            attempt(name, heats[name].finish if heats[name].done else heats[name].step)
    return {name: outcome[name] for name in contenders}


def measure(
    fn: Callable[..., typing.Any],
    arg_sets: Sequence[tuple],
    *,
    timer: GpuTimer | None = None,
    check: Callable[..., tuple[float, float]] | None = None,
    poison: Callable[..., object] | None = None,
    cache: str = "cold",
    set_bytes: int = 0,
    batch: int | None = None,
    spread: float = 0.01,
    min_repeats: int = 12,
    max_repeats: int = 300,
    max_seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time ``fn`` on the GPU, checked before and after. Kernel time; ``Timing.call`` has the host's.

    Args:
        fn: called with one of ``arg_sets`` (device arrays), in turn unless ``cache="warm"``; must enqueue, not wait.
        check: ``check(result, *args) -> (error, tolerance)``. poison: ``poison(*args)`` overwrites the outputs.
        set_bytes: bytes that a call reads and writes; if the sets together are under twice the L2 cache, it is
            overwritten before each sample.
        spread: stop when the interval of the median is this fraction of it, or after ``max_seconds``.

    Raises WrongResult if a check fails, and RuntimeError without a GPU.
    """
    contender = Contender(fn, arg_sets, check, poison, None, cache, set_bytes, batch)
    rule = Rule(spread, min_repeats, max_repeats, max_seconds)
    outcome = measure_together({"": contender}, timer=timer or gpu_timer(), rule=rule, clock=clock)[""]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@functools.cache
def gpu_timer() -> GpuTimer:
    """The timer of this process. Raises RuntimeError without a GPU."""
    from pmpp.runtime import device

    if not device.on_gpu():
        raise RuntimeError("timing needs a GPU: the interpreter counts what a kernel does, it does not time it")
    return GpuTimer(device.backend().cuda)


def measure_host(
    fn: Callable[[], typing.Any],
    *,
    check: Callable[[typing.Any], tuple[float, float]] | None = None,
    finish: Callable[[], object] | None = None,
    spread: float = 0.03,
    min_repeats: int = 7,
    max_repeats: int = 5000,
    max_seconds: float = 1.0,
    min_seconds: float = 0.2,
    at_least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    method: str = "host clock",
) -> Timing:
    """Time ``fn`` by the host's clock, from the call until ``finish`` (a device's synchronize) has returned.

    One call warms up, and the last call's result is checked. Raises WrongResult if that check fails.
    """
    # Transfers were seen to take 0.08 ms for a while and 1.06 ms for another while: hence min_seconds.
    rule = Rule(spread, min_repeats, max_repeats, max_seconds, at_least, min_seconds=min(min_seconds, max_seconds))
    fn()
    samples: list[float] = []
    began = clock()
    while True:
        start = clock()
        result = fn()
        if finish is not None:
            finish()
        samples.append(clock() - start)
        if rule.stop(samples, clock() - began):
            break
        result = None  # first, so that its memory can be used again
    error = tolerance = None
    if check is not None:
        error, tolerance = check(result)
        if not error <= tolerance:
            raise WrongResult(f"the result is off by {error:.3g}, and {tolerance:.3g} is allowed")
    low, high = median_interval(samples)
    return Timing(
        statistics.median(samples), low, high, len(samples), 1, rule.settled(samples), method, None, error, tolerance
    )
