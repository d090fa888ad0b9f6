"""What is measured of ``compression``: 8, 4 and 2 bits, the way back, and a bit for each number."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.compression import ladder as room
from pmpp.kernels.compression import restore
from pmpp.kernels.random import bits as random_bits
from pmpp.lab.measure.arrays import chunks, normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

DESIGN = 2**28
SWEEP = [2**k for k in range(12, 29, 4)]
SEED, OFFSET = 9, 8
COLD = 2**25  # from here on nothing stays in a cache from one launch to the next


# ------------------------------------------------------------------------------------------------------------- checks


def codes_of(packed: typing.Any, bits: int) -> typing.Any:
    """Codes, a group in each row, of bytes that have several."""
    shifts = xp().arange(0, 8, bits, dtype=np.uint8)
    return (packed[:, None] >> shifts & np.uint8(2**bits - 1)).reshape(-1, room.GROUP)


def verify(bits: int, random: bool = True) -> Callable:
    """Every code: of ours, that of the same random bits; of others, one that is less than a step away."""

    def check(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        ours = not isinstance(result, tuple) and result.dtype == np.uint32
        if isinstance(result, tuple):
            packed, ranges = result[0].reshape(-1), xp().concatenate([one.reshape(-1, 1) for one in result[1:]], axis=1)
        else:
            packed, end = result.view(np.uint8), x.size * bits // 8
            packed, ranges = packed[:end], packed[end:].view(np.float32).reshape(-1, 2)
        if packed.size != x.size * bits // 8 or ranges.size != 2 * x.size // room.GROUP:
            return float("inf"), 0.0
        found = []
        for part in chunks(x.size):
            groups = slice(part.start // room.GROUP, part.stop // room.GROUP)
            codes = codes_of(packed[part.start * bits // 8 : part.stop * bits // 8], bits).astype(np.int64)
            numbers = x[part].reshape(-1, room.GROUP)
            low, step = ranges[groups, :1], ranges[groups, 1:]
            right = numbers.min(axis=1, keepdims=True)
            span = numbers.max(axis=1, keepdims=True) - right
            found.append(worst(abs(low - right), 0 * low))
            wanted = span * (np.float32(1) / np.float32(2**bits - 1))
            found.append(worst(abs(step - wanted), 0 * step if ours else 2.0**-22 * step))
            if ours:
                places = xp().rint((numbers - low).astype(np.float64) * (room.last_place(2**bits - 1) / span))
                halves = 1 << 15
                if random:
                    words = view(random_bits(numbers.size // 2, seed=SEED, offset=OFFSET + part.start // 2))
                    halves = xp().stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1)
                    halves = halves.reshape(numbers.shape)
                expected = (2 * places.astype(np.int64) + halves) >> 16
                found.append(worst(abs(codes - expected), 0 * codes))
            else:
                found.append(worst(abs(low + codes * step - numbers), (1 + 2.0**-14) * step + 0 * numbers))
        return worst_of(found)

    return check


def verify_back(bits: int) -> Callable:
    """Every element: a product and a sum of float32, in float64, and what one or two roundings leave."""

    def check(result: typing.Any, words: typing.Any) -> tuple[float, float]:
        packed, end, found = words.view(np.uint8), result.size * bits // 8, []
        ranges = packed[end:].view(np.float32).reshape(-1, 2)
        for part in chunks(result.size):
            groups = slice(part.start // room.GROUP, part.stop // room.GROUP)
            codes = codes_of(packed[part.start * bits // 8 : part.stop * bits // 8], bits)
            low, step = (ranges[groups, i : i + 1].astype(np.float64) for i in (0, 1))
            away = codes * step
            error = abs(result[part].reshape(-1, room.GROUP) - (low + away))
            found.append(worst(error, 2.0**-24 * (abs(low + away) + abs(away)) + 2.0**-149))
        return worst_of(found)

    return check


def verify_signs(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Every bit."""
    packed, found = result.view(np.uint8), []
    if packed.size != x.size // 8:
        return float("inf"), 0.0
    for part in chunks(x.size):
        expected = xp().packbits(x[part] > 0, bitorder="little")
        found.append(worst(expected != packed[part.start // 8 : part.stop // 8], 0 * expected))
    return worst_of(found)


def verify_gradient(result: typing.Any, dy: typing.Any, words: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Every element: it is that of dy, or 0."""
    return worst_of(worst(abs(result[part] - dy[part] * (x[part] > 0)), 0 * dy[part]) for part in chunks(dy.size))


# ---------------------------------------------------------------------------------------------------------- libraries


def in_steps(bits: int) -> Callable:
    """The definition as an operation after another of PyTorch: what one writes."""
    each, levels = 8 // bits, 2**bits - 1

    def compress(torch: typing.Any, x: typing.Any) -> tuple:
        groups = x.reshape(-1, room.GROUP)
        low, high = torch.aminmax(groups, dim=1, keepdim=True)
        step = (high - low) / levels
        codes = ((groups - low) / step + torch.rand_like(groups)).floor_().clamp_(0, levels).to(torch.uint8)
        several = codes.reshape(-1, each)
        packed = several[:, 0]
        for k in range(1, each):
            packed = packed | several[:, k] << k * bits
        return packed, low, step

    return compress


def back_in_steps(torch: typing.Any, words: typing.Any, out: typing.Any) -> typing.Any:
    """The way back from 8 bits by PyTorch."""
    codes = words.view(torch.uint8)[: out.numel()].reshape(-1, room.GROUP)
    ranges = words[out.numel() // 4 :].view(torch.float32).reshape(-1, 2)
    return torch.addcmul(ranges[:, :1], codes, ranges[:, 1:], out=out.reshape(-1, room.GROUP)).reshape(-1)


def compress_on_cpu(x: np.ndarray) -> np.ndarray:
    """Compression to 8 bits by NumPy on the CPU."""
    groups = x.reshape(-1, room.GROUP)
    low = groups.min(axis=1, keepdims=True)
    step = (groups.max(axis=1, keepdims=True) - low) / np.float32(255)
    codes = (groups - low) / step + np.random.default_rng(1).random(groups.shape, dtype=np.float32)
    codes = np.minimum(codes, np.float32(255)).astype(np.uint8).reshape(-1)
    return np.concatenate([codes, np.concatenate([low, step], axis=1).view(np.uint8).reshape(-1)])


# ---------------------------------------------------------------------------------------------------------- workloads


def _compress(rung: typing.Any, bits: int, seed: int | None = SEED) -> Callable:
    def call(x: typing.Any) -> typing.Any:
        return rung(x, bits, seed, OFFSET)

    call.__name__ = rung.name
    return call


def _compressed(n: int, bits: int) -> Workload:
    return Workload(
        family=f"{bits} bits",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n, bits),
        make=lambda seed: (normal(n, seed),),
        rungs=tuple(_compress(rung, bits) for rung in room.LADDER),
        libraries={"torch.aminmax and rand_like": in_steps(bits)},
        verify=verify(bits),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy": compress_on_cpu} if bits == 8 and n <= 2**24 else {},
        end_to_end=bits == 8 and n <= 2**24,
        quick=n == DESIGN,
    )


def _nearest(n: int, bits: int) -> Workload:
    """The last rung without random numbers, which tells what they cost."""
    return Workload(
        family=f"{bits} bits, to the nearest",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n, bits),
        make=lambda seed: (normal(n, seed),),
        rungs=(_compress(room.LADDER[-1], bits, None),),
        verify=verify(bits, random=False),
        cache="cold" if n >= COLD else "warm",
    )


def _back(n: int, bits: int) -> Workload:
    def call(words: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return restore.decompress(words, (n,), bits, out=out)

    call.__name__ = "decompress"
    return Workload(
        family=f"the way back, {bits} bits",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=Cost(2 * n, room.cost(n, bits).bytes),
        make=lambda seed: (room.paired(normal(n, seed), bits, SEED, OFFSET),),
        output=lambda: device.empty(n, np.float32),
        rungs=(call,),
        libraries={"torch.addcmul": back_in_steps} if bits == 8 else {},
        verify=verify_back(bits),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
    )


def _signs(n: int) -> Workload:
    return Workload(
        family="signs",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=Cost(n, 4 * n + n // 8),
        make=lambda seed: (normal(n, seed),),
        output=lambda: device.empty(n // 32, np.uint32),
        rungs=(restore.signs,),
        libraries={"cupy.packbits": lambda cupy, x, out: cupy.packbits(x > 0, bitorder="little")},
        verify=verify_signs,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
    )


def _gradient(n: int) -> Workload:
    def masked(dy: typing.Any, words: typing.Any, x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return restore.masked(dy, words, out=out)

    def made(seed: int) -> tuple:
        x = normal(n, seed)
        return normal(n, seed + 1000), restore.signs(x), x

    return Workload(
        family="ReLU's gradient",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=Cost(n, 8 * n + n // 8),
        make=made,
        output=lambda: device.empty(n, np.float32),
        rungs=(masked,),
        libraries={
            "torch.threshold_backward, of x": lambda torch, dy, words, x, out: torch.ops.aten.threshold_backward(
                dy, x, 0
            )
        },
        verify=verify_gradient,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
    )


WORKLOADS = [
    *(_compressed(n, bits) for bits in room.BITS for n in (SWEEP if bits == 8 else (2**12, DESIGN))),
    *(_nearest(n, bits) for bits in room.BITS for n in (2**12, DESIGN)),
    *(_back(n, bits) for bits in room.BITS for n in (2**12, DESIGN)),
    *map(_signs, (2**12, DESIGN)),
    *map(_gradient, (2**12, DESIGN)),
]
