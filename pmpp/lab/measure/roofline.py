"""The roofline: how fast a kernel can be on a GPU, from two ceilings and two counts.

A kernel must move some bytes to and from device memory and do some arithmetic. The GPU has a ceiling for each: its
memory *bandwidth* (byte/s) and its rate of fused multiply-adds (FLOP/s, a multiply-add counts 2). Whichever takes
longer is the bound, because the two overlap.

- *Arithmetic intensity* is FLOP done for each byte moved.
- At intensity I a kernel can reach min(fma rate, I x bandwidth): a slope, then a flat roof.
- The *ridge point* is the intensity where they meet, fma rate / bandwidth. Left of it a kernel is memory-bound, and
  only moving fewer bytes helps. Right of it, it is compute-bound.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; PMPP 4e section 5.1.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pmpp.runtime.rung import Cost

__all__ = ["Bound", "Ceilings", "attainable", "bound", "ceilings", "measure_ceilings", "share"]


@dataclass(frozen=True)
class Ceilings:
    """What one GPU can do at best.

    Attributes:
        bandwidth: byte/s of a large device-to-device copy, bytes read and bytes written both counted. A kernel that
            reads more than it writes can be some per cent faster: the memory turns less from reading to writing.
        fma_f32: FLOP/s of float32 multiply-adds in registers; each counts 2. A kernel of additions alone can reach
            half of it, because an addition takes the same slot and counts 1.
        source: where the figures come from, in words.
        empty_kernel: seconds that a kernel without work takes on the GPU: no launch is shorter.
        launch: seconds of host time to launch it from Python.
        tensor: operations/s of the tensor cores by the type of their operands, as far as they were measured; see
            `pmpp.lab.measure.tensor_ceilings`.
    """

    bandwidth: float
    fma_f32: float
    source: str
    empty_kernel: float
    launch: float
    tensor: Mapping[str, float] = field(default_factory=dict, hash=False)

    def on_tensor_cores(self, kind: str) -> Ceilings:
        """The same with the rate of tensor cores that multiply operands of this type, in the place of ``fma_f32``.

        Raises pmpp.lab.measure.record.RecordError if that rate was not measured.

        >>> h200 = Ceilings(4e12, 60e12, "for example", 2e-6, 15e-6, {"float16": 800e12})
        >>> h200.on_tensor_cores("float16").ridge
        200.0
        """
        if kind not in self.tensor:
            from pmpp.lab.measure.record import RecordError

            known = ", ".join(self.tensor) or "none"
            raise RecordError(f"the rate of tensor cores was not measured for {kind}; it was for: {known}")
        return replace(self, fma_f32=self.tensor[kind])

    @property
    def ridge(self) -> float:
        """The ridge point, FLOP/byte."""
        return self.fma_f32 / self.bandwidth


@dataclass(frozen=True)
class Bound:
    """The least time for a cost: ``seconds`` is that of the longer ``side``, ``"memory"`` or ``"compute"``."""

    seconds: float
    side: str
    memory_seconds: float
    compute_seconds: float


def bound(cost: Cost, ceilings: Ceilings) -> Bound:
    """The least time in which a kernel of this cost can finish, and which side sets it.

    >>> h200 = Ceilings(4e12, 60e12, "for example", 2e-6, 15e-6)
    >>> bound(Cost(flops=10**9, bytes=12 * 10**9), h200)
    Bound(seconds=0.003, side='memory', memory_seconds=0.003, compute_seconds=1.6666666666666667e-05)
    """
    memory = cost.bytes / ceilings.bandwidth
    compute = cost.flops / ceilings.fma_f32
    return Bound(max(memory, compute), "compute" if compute > memory else "memory", memory, compute)


def share(cost: Cost, seconds: float, ceilings: Ceilings) -> float:
    """The share of the roof that a measured time reaches: the bound over the time; 1.0 is the roof.

    Raises ValueError if ``seconds`` is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, not {seconds!r}")
    return bound(cost, ceilings).seconds / seconds


def attainable(intensity: float, ceilings: Ceilings) -> float:
    """FLOP/s that a kernel of this arithmetic intensity (FLOP/byte) can reach at best: the height of the roof there."""
    return min(ceilings.fma_f32, intensity * ceilings.bandwidth)


def ceilings(room: str | None = None) -> Ceilings:
    """The ceilings to compare with: measured now (once a session) on this GPU, else recorded ones.

    room    without a GPU: those of the run that measured this room; None for the newest run

    Raises pmpp.lab.measure.record.RecordError if there is neither a GPU nor a record.
    """
    from pmpp.lab.measure import record
    from pmpp.runtime import device

    return _measured() if device.on_gpu() else record.load(room=room).ceilings(room)


@functools.lru_cache(maxsize=1)
def _measured() -> Ceilings:
    return measure_ceilings()


CHAINS = 8  # independent chains a thread: an FMA's result is ready after 4 cycles, and a warp may issue every cycle
UNROLLED = 16  # multiply-adds of each chain in one turn of the loop
FMA_BLOCKS_PER_SM, FMA_THREADS = 2, 1024


def fma_chains(start, scale, shift, turns, out):
    """Do 2 x CHAINS x UNROLLED x turns FLOP a thread in registers, and store the sum of the chains.

    Every chain is a -> a * scale + shift. Each waits for itself alone, so eight keep the pipeline full, and the 128
    multiply-adds of a turn are written out so that the loop's own instructions hide behind them. float32 throughout.
    """
    i = cuda.grid(1)  # noqa: F821  (measure_ceilings puts the backend's module into this function's globals)
    a = start[i]
    b, c, d, e, f, g, h = a + shift, a - shift, a + scale, a - scale, -a, scale - a, shift - a
    for _ in range(turns):
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
        a, b, c, d = a * scale + shift, b * scale + shift, c * scale + shift, d * scale + shift
        e, f, g, h = e * scale + shift, f * scale + shift, g * scale + shift, h * scale + shift
    out[i] = a + b + c + d + e + f + g + h


def fma_chains_result(start: typing.Any, scale: float, shift: float, steps: int) -> typing.Any:
    """What ``fma_chains`` stores, in closed form and float64: a chain's fixed point is shift / (1 - scale)."""
    a = start.astype("float64")
    first = (a, a + shift, a - shift, a + scale, a - scale, -a, scale - a, shift - a)
    fixed = shift / (1 - scale)
    return sum((chain - fixed) * scale**steps + fixed for chain in first)


def measure_ceilings(*, max_seconds: float = 1.0) -> Ceilings:
    """Measure this GPU's ceilings. Takes some seconds, and memory for two copies of 2 GiB, or of 1/16 of it.

    Raises RuntimeError without a GPU, and pmpp.lab.measure.timing.WrongResult if the kernel did not compute what it
    should.
    """
    import numpy as np

    from pmpp.lab.measure import tensor_ceilings, timing
    from pmpp.runtime import device

    if not device.on_gpu():
        raise RuntimeError(
            "ceilings can be measured only on a GPU; without one use the recorded ones: roofline.ceilings()"
        )
    cuda = device.backend().cuda
    gpu = cuda.get_current_device()
    timer = timing.gpu_timer()

    count = min(2**31, int(cuda.current_context().get_memory_info().total) // 16) // 4
    source = cuda.to_device(np.random.default_rng(0).standard_normal(2**20, dtype=np.float32))
    x, y = cuda.device_array(count, np.float32), cuda.device_array(count, np.float32)
    for lo in range(0, count - 2**20 + 1, 2**20):
        x[lo : lo + 2**20].copy_to_device(source)
    copy = timing.measure(lambda x, y: y.copy_to_device(x), [(x, y), (y, x)], timer=timer, max_seconds=max_seconds)
    del x, y

    kernel = cuda.jit(_with_cuda(fma_chains, cuda))
    blocks = gpu.MULTIPROCESSOR_COUNT * FMA_BLOCKS_PER_SM
    threads = blocks * FMA_THREADS
    # So close to 1 that a chain is still under way after the last step: the result shows that every step was done.
    turns, scale, shift = 4096, np.float32(1 - 2**-17), np.float32(2**-17)
    start = np.random.default_rng(1).standard_normal(threads, dtype=np.float32)
    sets = [(cuda.to_device(start), cuda.device_array(threads, np.float32))]
    expected = fma_chains_result(start, float(scale), float(shift), UNROLLED * turns)

    def check(result: typing.Any, start: typing.Any, out: typing.Any) -> tuple[float, float]:
        # Half an ulp of the largest value a step, in the worst case all in one direction.
        largest = np.abs(start.copy_to_host()).max() + 1
        tolerance = CHAINS * UNROLLED * turns * np.finfo(np.float32).eps / 2 * largest
        return float(np.abs(out.copy_to_host() - expected).max()), float(tolerance)

    def poison(start: typing.Any, out: typing.Any) -> None:
        out.copy_to_device(np.full(threads, np.nan, np.float32))

    fma = timing.measure(
        lambda start, out: kernel[blocks, FMA_THREADS](start, scale, shift, turns, out),
        sets, timer=timer, check=check, poison=poison, max_seconds=max_seconds,
    )  # fmt: skip

    @cuda.jit
    def nothing():
        pass

    def launch() -> None:
        nothing[1, 32]()

    empty = timing.measure(launch, [()], timer=timer, batch=50, max_seconds=max_seconds)
    how = f"a copy of {count * 4 / 2**30:.3g} GiB, and unrolled float32 multiply-adds"
    return Ceilings(
        bandwidth=2 * 4 * count / copy.median,
        fma_f32=2 * CHAINS * UNROLLED * turns * threads / fma.median,
        source=f"measured on {device.limits()['name']}: {how}",
        empty_kernel=empty.median,
        launch=typing.cast(float, empty.call),
        tensor=tensor_ceilings.measure(timer, max_seconds / 4),
    )


def _with_cuda(function: typing.Any, cuda: typing.Any) -> typing.Any:
    import types

    return types.FunctionType(function.__code__, {**function.__globals__, "cuda": cuda}, function.__name__)
