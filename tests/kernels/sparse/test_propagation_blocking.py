"""Products in tiles of matrices that are larger than those of `test_formats`: more warps, more slices, more rounds."""

import numpy as np
import pytest

from pmpp.kernels.sparse import formats, propagation_blocking
from pmpp.kernels.sparse import ladder as room
from pmpp.runtime import device
from tests.support import judge


def has_no_fault(lengths, width, **sizes):
    """Whether the product in tiles is right and without a fault, for a matrix with rows of these lengths."""
    rng = np.random.default_rng(7)
    given = *room.rows_of(lengths, width, rng), rng.standard_normal(width, dtype=np.float32)

    def by_tiles(values, columns, starts, x):
        return formats.multiply(formats.to_tiled(values, columns, starts, x.size, **sizes), x)

    def right(result):
        return judge.right(result, room.reference(*given), room.tolerance(*given), np.dtype(np.float32))

    return judge.faults(by_tiles, given, right) == []


@pytest.mark.parametrize("lengths", [[10, 4106, 0, 3000, 40, 1], [9, 4127, 2, 2], [8192], [1, 8190, 1, 5]], ids=str)
def test_rows_of_many_warps(lengths):
    """What a thread adds up may belong to a row that ends warps later, in any run of a warp."""
    assert has_no_fault(lengths, 200)


@pytest.mark.parametrize("slices", [32, 33, 70])
def test_many_slices(slices):
    """A warp reads where 32 tiles begin at a time."""
    assert has_no_fault([9] * 150, 4 * slices, width_of_slice=4, piece=1024)


def test_a_block_multiplies_its_share_in_several_rounds(monkeypatch):
    shares_of = propagation_blocking.shares_of
    monkeypatch.setattr(propagation_blocking, "shares_of", lambda slices, _: shares_of(slices, 1))
    stored = propagation_blocking.MULTIPLIERS * propagation_blocking.HELD + 5000
    made = formats.to_tiled(*room.rows_of([stored], 300, np.random.default_rng(1)), 300)
    assert np.diff(device.to_host(made.shares)).max() > propagation_blocking.AT_ONCE * propagation_blocking.MULTIPLIERS
    assert has_no_fault([stored], 300)
