"""Tokens that join a cache: each in its place and nothing else, and what is wrong is named."""

import numpy as np
import pytest

from pmpp.kernels.attention import cached
from pmpp.runtime import device

F32 = np.float32


def given(texts=3, groups=2, room=4, size=5):
    kept = [device.to_device(np.zeros((texts, groups, room, size), F32)) for _ in range(2)]
    k, v = 1 + np.arange(2 * texts * groups * size, dtype=F32).reshape(2, texts, groups, size)
    return *kept, k, v, np.int32([1, 4, 3][:texts])


def test_each_token_has_its_place():
    keys, values, k, v, lengths = given()
    across = device.to_device(np.concatenate([k, v], axis=1))  # parts of one array have gaps between the texts
    cached.join(keys, values, across[:, :2], across[:, 2:], lengths)
    for kept, new in ((keys, k), (values, v)):
        wanted = np.zeros(kept.shape, F32)
        for text, length in enumerate(lengths):
            wanted[text, :, length - 1] = new[text]
        np.testing.assert_array_equal(device.to_host(kept), wanted)


@pytest.mark.parametrize("length", [0, 5])
def test_a_token_without_a_place_is_left_out(length):
    keys, values, k, v, _ = given(1)
    cached.join(keys, values, k, v, np.int32([length]))
    assert not device.to_host(keys).any()
    assert not device.to_host(values).any()


def test_what_is_wrong_is_named():
    keys, values, k, v, lengths = given()
    for name, change in {
        "keys": {"keys": device.to_host(keys)},
        "values": {"values": keys},
        "k": {"k": k.astype(np.float64)},
        "v": {"v": v[:, :1]},
        "lengths": {"lengths": lengths[:2]},
        "stream": {"stream": "x"},
    }.items():
        all_given = {"keys": keys, "values": values, "k": k, "v": v, "lengths": lengths} | change
        with pytest.raises((TypeError, ValueError), match=rf"^{name} "):
            cached.join(**all_given)
    with pytest.raises(TypeError, match=r"^keys must be"):
        cached.join(None, values, k, v, lengths)
    with pytest.raises(ValueError, match=r"^keys must"):
        cached.join(given(room=4, size=6)[0], values, k, v, lengths)
