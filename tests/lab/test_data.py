"""Real inputs: shapes, dtypes, and that a caller may write into them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pmpp.lab.teach import data


def test_photographs_are_two_of_one_size():
    first, second = data.photographs()
    for picture in (first, second):
        assert picture.shape == (427, 640, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 20
    assert (first != second).any()


def test_photograph():
    picture = data.photograph()
    assert picture.shape == (600, 512, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 20


def test_digits():
    images, labels = data.digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 16)
    assert labels.dtype == np.int64
    assert set(labels) == set(range(10))


@pytest.mark.parametrize("make", [data.photographs, data.photograph, data.digits])
def test_arrays_are_the_callers_own(make):
    first, again = make(), make()
    first, again = (value if isinstance(value, tuple) else (value,) for value in (first, again))
    for one, other in zip(first, again, strict=True):
        assert one.flags.writeable
        assert one.flags.c_contiguous
        one.flat[0] = 3
        before = other.copy()
        one.flat[1:] = 3
        assert (other == before).all()


@pytest.mark.parametrize("make", [data.photographs, data.photograph, data.digits])
def test_source_and_licence_are_said(make):
    text = inspect.getdoc(make)
    assert "Source:" in text
    assert "CC BY" in text or "public\ndomain" in text or "public domain" in text
