"""Random numbers: known answers, the same sequence however it is asked for, accuracy, and distributions."""

import math

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels import random as room
from pmpp.kernels.random import initialise, on_host
from pmpp.kernels.random.generator import normals, philox
from pmpp.runtime import device
from tests.kernels.random.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_distribution = pytest.mark.parametrize("distribution", room.DISTRIBUTIONS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32, U32, U64 = np.float32, np.uint32, np.uint64


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), arguments[0].dtype)


def faults(draw):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        found = judge.faults(draw, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


# -------------------------------------------------------------------------------------------------------- known answers

#: Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, and what comes out.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return tuple(int(word, 16) for word in text.split())


@cuda.jit
def philox_kernel(counters, streams, keys, out):
    i = cuda.grid(1)
    if i < keys.size:
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = philox(counters[i], streams[i], keys[i])


def test_the_answers_that_the_inventors_publish():
    pairs = [(words(c), words(k)) for c, k, _ in KNOWN]
    arrays = [np.array([x[0] | x[1] << 32 for x in both], U64) for both in zip(*pairs, strict=True)]
    streams = np.array([c[2] | c[3] << 32 for c, _ in pairs], U64)
    out = device.to_device(np.zeros((3, 4), U32))
    philox_kernel[1, 32](*map(device.to_device, (arrays[0], streams, arrays[1])), out)
    assert out.copy_to_host().tolist() == [list(words(answer)) for *_, answer in KNOWN]
    assert [room.ladder._rounds(c, k) for c, k in pairs] == [words(answer) for *_, answer in KNOWN]
    for c, k, answer in KNOWN:
        low, high, lower, upper = words(c)
        seed = sum(word << 32 * i for i, word in enumerate(words(k)))
        many = on_host.philox_words(np.full(2, low | high << 32, U64), lower | upper << 32, seed)
        assert [word.tolist() for word in many] == [[word] * 2 for word in words(answer)]


def test_ten_products_of_32_bits_twice(ptx):
    """The compiler must not make products of 64 bits of them."""
    for distribution in room.DISTRIBUTIONS:
        like = np.zeros(8, room.DISTRIBUTIONS[distribution])
        p = room.arguments(like, distribution)
        text = ptx(room.vectorised_kernel(distribution), p.sequence, p.affine, like, p.whole)
        assert text.count("mul.hi.u32") == 20
        assert "mul.lo.s64" not in text
        assert ("st.global.v4.u32" if distribution == "bits" else "st.global.v4.f32") in text


# ------------------------------------------------------------------------------------------------------ one sequence


@each_rung
@each_distribution
def test_a_part_of_the_sequence_is_the_same_wherever_it_begins(rung, distribution):
    like = np.zeros(200, room.DISTRIBUTIONS[distribution])
    whole = rung(like, distribution, 9, 0, 3.0 if distribution != "bits" else 1, 0).copy_to_host()
    for begin, end in ((0, 50), (1, 9), (6, 200), (199, 200), (64, 64)):
        scale = 3.0 if distribution != "bits" else 1
        part = rung(like[begin:end], distribution, 9, begin, scale, 0).copy_to_host()
        np.testing.assert_array_equal(part, whole[begin:end])


@each_distribution
def test_all_rungs_give_the_same_bits(distribution):
    like = np.zeros((3, 1001), room.DISTRIBUTIONS[distribution])
    found = {rung(like, distribution, 2**40 + 3, 12).copy_to_host().tobytes() for rung in room.LADDER}
    assert len(found) == 1


@each_rung
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_an_output_between_boundaries(rung, offset):
    out = misaligned(np.zeros(1030, F32), offset)
    observe(rung, np.zeros(1030, F32), "uniform", 5, out=out)
    assert right(out.copy_to_host(), np.zeros(1030, F32), "uniform", 5)


def test_plain_functions_and_seeds():
    a, b = (room.uniform((20, 5), seed=seed).copy_to_host() for seed in (1, 2))
    assert a.shape == (20, 5)
    assert not np.any(a == b)
    np.testing.assert_array_equal(room.bits(100, seed=1).copy_to_host() >> 8, (a.reshape(-1) * 2**24).astype(U32))
    high = room.uniform(100, seed=1, offset=2**62).copy_to_host()
    assert not np.any(high == a.reshape(-1))
    between = room.uniform(100, -3, 5, seed=1).copy_to_host()
    np.testing.assert_allclose(between, -3 + 8 * a.reshape(-1), rtol=1e-6, atol=1e-6)
    shifted = room.normal(100, 2.0, 0.5, seed=1).copy_to_host()
    np.testing.assert_allclose(shifted, 2 + 0.5 * room.normal(100, seed=1).copy_to_host(), rtol=1e-6)


#: What a GPU must give to the last bit, too. Made by the interpreter.
SAID = {"uniform": "3f63e806 3f650a0e 3f15f222 3f3615aa", "normal": "3ec2c3de be97b1be be7f370f bf807dbd"}


@pytest.mark.parametrize("distribution", SAID)
def test_the_same_bits_on_every_backend(distribution):
    result = room.vectorised(np.zeros(4, F32), distribution, 1).copy_to_host()
    assert tuple(result.view(U32).tolist()) == words(SAID[distribution])


# ----------------------------------------------------------------------------------------------------------- accuracy


@cuda.jit
def normals_kernel(distances, angles, out):
    i = cuda.grid(1)
    if i < distances.size:
        out[i, 0], out[i, 1] = normals(distances[i], angles[i])


def exact_normals(distances, angles):
    root = np.sqrt(-2 * np.log(((distances >> 8) + 1.0) * 2.0**-24))
    quarter = np.floor((angles >> 8) / 2.0**22 + 0.5)
    turn = 2 * np.pi * ((angles >> 8) * 2.0**-24 - quarter / 4)
    whole = 1j ** (quarter % 4).astype(int)
    point = root * (np.cos(turn) + 1j * np.sin(turn)) * np.round(whole.real + 1j * whole.imag)
    return np.stack([point.real, point.imag], axis=1)


@pytest.mark.parametrize("part", ["any", "near 1", "tiny", "axes and diagonals"])
def test_normal_numbers_are_right_to_two_ulp(part):
    """Random pairs, and those where a logarithm is nearly 0, or large, and where a sine or cosine is."""
    n = 2**16
    rng = np.random.default_rng(3)
    distances, angles = rng.integers(0, 2**32, (2, n), dtype=U32)
    if part == "near 1":
        distances = (2**32 - 1 - 256 * np.arange(n)).astype(U32)
    if part == "tiny":
        distances = (256 * np.arange(n)).astype(U32)
    if part == "axes and diagonals":
        eighths = (np.arange(n, dtype=np.int64) % 8) * 2**29
        angles = ((eighths + 256 * (np.arange(n) // 8 - n // 16)) % 2**32).astype(U32)
    out = device.to_device(np.zeros((n, 2), F32))
    normals_kernel[n // 256, 256](device.to_device(distances), device.to_device(angles), out)
    exact = exact_normals(distances, angles)
    error = np.abs(out.copy_to_host() - exact) / np.spacing(np.abs(exact).astype(F32))
    assert error.max() < 1.5
    if device.on_gpu():
        return
    assert error.max() > 0.5, "this measures something"


# ------------------------------------------------------------------------------------------------------- distributions


@pytest.fixture(scope="module")
def sample():
    """2^18 numbers of each kind."""
    n = 2**18
    return {name: getattr(room, name)(n, seed=2026).copy_to_host() for name in ("uniform", "normal")}


def chi_square(counts, expected):
    """How far counts are from what is expected, in standard deviations of the chi-square distribution."""
    freedom = counts.size - 1
    return (np.sum((counts - expected) ** 2 / expected) - freedom) / math.sqrt(2 * freedom)


def test_uniform_numbers_fill_their_range_evenly(sample):
    """With a fixed seed nothing is left to chance; a value beyond 5 standard deviations would say that it is wrong."""
    x = sample["uniform"].astype(np.float64)
    assert 0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert abs(chi_square(np.bincount((x * 1024).astype(int), minlength=1024), x.size / 1024)) < 5
    assert abs(x.mean() - 0.5) < 5 * math.sqrt(1 / 12 / x.size)
    assert abs(x.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / x.size)
    pairs = (x[::2] * 32).astype(int) * 32 + (x[1::2] * 32).astype(int)
    assert abs(chi_square(np.bincount(pairs, minlength=1024), pairs.size / 1024)) < 5, "neighbours are independent"
    assert abs(np.corrcoef(x[:-4], x[4:])[0, 1]) < 5 / math.sqrt(x.size), "and so are neighbouring counters"


def test_normal_numbers_have_the_right_shape(sample):
    z = sample["normal"].astype(np.float64)
    edges = np.linspace(-4, 4, 65)
    share = np.diff([0.5 * math.erfc(-e / math.sqrt(2)) for e in (-np.inf, *edges, np.inf)])
    counts = np.bincount(np.digitize(z, edges), minlength=66)
    assert abs(chi_square(counts, share * z.size)) < 5
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(z**power) - moment) < 5 * math.sqrt(spread / z.size)
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 5 / math.sqrt(z.size / 2), "the two of a pair are independent"
    assert abs(np.corrcoef(z[::2] ** 2, z[1::2] ** 2)[0, 1]) < 5 / math.sqrt(z.size / 2)
    assert np.abs(z).max() <= math.sqrt(48 * math.log(2)) + 1e-6


# ------------------------------------------------------------------------------------------------------------- weights


def test_fans_and_gains():
    assert initialise.fans((10, 20)) == (20, 10)
    assert initialise.fans((64, 3, 7, 7)) == (147, 3136)
    expected = {"linear": 1, "sigmoid": 1, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}
    assert {name: initialise.gain_of(name) for name in expected} == expected
    assert initialise.gain_of("leaky_relu", math.sqrt(5)) == pytest.approx(math.sqrt(1 / 3))


BOUNDS = {  # the largest for (40, 30, 3, 3): fans of 270 and 360
    "xavier_uniform": ({"gain": 2.0}, 2 * math.sqrt(6 / 630)),
    "kaiming_uniform": ({"a": math.sqrt(5)}, 1 / math.sqrt(270)),
    "kaiming_uniform, way back": ({"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(6 / 360)),
}
SPREADS = {
    "xavier_normal": ({}, math.sqrt(2 / 630)),
    "kaiming_normal": ({"nonlinearity": "relu"}, math.sqrt(2 / 270)),
    "kaiming_normal, way back": ({"mode": "fan_out", "nonlinearity": "tanh"}, 5 / 3 / math.sqrt(360)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_uniform_weights(name):
    options, bound = BOUNDS[name]
    w = getattr(room, name.partition(",")[0])((40, 30, 3, 3), **options, seed=4).copy_to_host()
    assert w.shape == (40, 30, 3, 3)
    expected = room.reference(w, "uniform", 4, 0, 2 * bound, -bound)
    np.testing.assert_allclose(w, expected, atol=4 * 2.0**-24 * bound)
    assert 0.99 * bound < np.abs(w).max() <= np.float32(bound)


@pytest.mark.parametrize("name", SPREADS)
def test_normal_weights(name):
    options, std = SPREADS[name]
    w = getattr(room, name.partition(",")[0])((40, 30, 3, 3), **options, seed=4, offset=8).copy_to_host()
    np.testing.assert_allclose(w, std * room.normal(w.shape, seed=4, offset=8).copy_to_host(), rtol=1e-6)


def test_the_bounds_are_pytorchs():
    torch = pytest.importorskip("torch")
    for name, (options, _) in (BOUNDS | SPREADS).items():
        name = name.partition(",")[0]
        theirs = getattr(torch.nn.init, f"{name}_")(torch.empty(200, 150, 3, 3), **options).numpy()
        ours = getattr(room, name)((200, 150, 3, 3), **options, seed=1).copy_to_host()
        assert abs(ours.std() / theirs.std() - 1) < 0.02
        if "uniform" in name:
            np.testing.assert_allclose(np.abs(ours).max(), np.abs(theirs).max(), rtol=1e-3)


# ------------------------------------------------------------------------------------------------------------ bad input

LIKE = np.zeros(3, F32)
BAD = {
    "a distribution": ((LIKE, "gamma"), ValueError, "distribution must be one of uniform, normal, bits, was 'gamma'"),
    "a dtype": ((LIKE, "bits"), TypeError, "like must be uint32 with distribution='bits', was float32"),
    "a seed": ((LIKE, "normal", -1), ValueError, f"seed must be from 0 to {2**64 - 1}, was -1"),
    "an offset": ((LIKE, "normal", 1, 2**63), ValueError, "offset must be from 0 to"),
    "a scale of several": ((LIKE.view(U32), "bits", 1, 0, LIKE), TypeError, "scale must be a number, was array"),
    "scaled bits": ((LIKE.view(U32), "bits", 1, 0, 2.0), ValueError, "scale and shift must be 1 and 0 for bits"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, said = BAD[name]
    with pytest.raises(error, match=said):
        rung(*arguments)


def test_bad_shapes_and_numbers():
    with pytest.raises(TypeError, match=r"shape must be an integer or a tuple of integers, was \(2, 1.5\)"):
        room.uniform((2, 1.5), seed=1)
    with pytest.raises(ValueError, match="shape must have fewer than 2\\^60 elements"):
        room.uniform((2**31, 2**31), seed=1)
    with pytest.raises(ValueError, match="shape must have fewer than 2\\^60 elements"):
        room.bits((0, 2**62), seed=1)
    with pytest.raises(TypeError, match="a must be a number, was 'x'"):
        initialise.gain_of("leaky_relu", "x")
    with pytest.raises(ValueError, match="shape must have no negative extent, was -1"):
        room.normal(-1, seed=1)
    with pytest.raises(TypeError, match=r"shape must be a tuple of 2 integers or more, was \(5,\)"):
        room.xavier_normal((5,), seed=1)
    with pytest.raises(ValueError, match="high must be at least low=1"):
        room.uniform(3, 1, 0, seed=1)
    with pytest.raises(ValueError, match=r"high must be at most 3.403e\+38 above low=-3e\+38, was 3e\+38"):
        room.uniform(3, -3e38, 3e38, seed=1)
    for spread in (room.xavier_uniform, room.xavier_normal):
        for gain in (3e38, 1e-45):
            with pytest.raises(ValueError, match=r"gain must give weights that float32 has, was [13]"):
                spread((300, 300) if gain < 1 else (1, 1), gain=gain, seed=1)
    with pytest.raises(ValueError, match=r"a must give weights that float32 has, was 3e\+38"):
        room.kaiming_normal((0, 10**16), a=3e38, seed=1)
    with pytest.raises(ValueError, match="mode must be fan_in or fan_out, was 'fan'"):
        room.kaiming_normal((2, 3), mode="fan", seed=1)
    with pytest.raises(ValueError, match=r"nonlinearity must be one of linear, .*, was 'gelu'"):
        room.kaiming_normal((2, 3), nonlinearity="gelu", seed=1)
    with pytest.raises(ValueError, match="std must not be negative"):
        room.normal(3, 0.0, -1.0, seed=1)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@each_distribution
def test_counters(distribution):
    """4,096 numbers are 512 sectors: stored at once, or four times a quarter of each."""
    like = np.zeros(4096, room.DISTRIBUTIONS[distribution])
    stored = {}
    for rung in room.LADDER:
        _, reports = watch(rung, like, distribution)
        assert total(reports, "flops_f64") == 0
        assert total(reports, "global_load_requests") == 0
        stored[rung.name] = tuple(total(reports, f"global_store_{what}") for what in ("requests", "sectors"))
    assert stored == {"one_each": (128, 512), "four_each": (128, 2048), "vectorised": (32, 512)}
