"""What a warp computes of a product of tiles with 2:4 sparsity: c + a @ b, where 16 of 32 numbers of a row are stored.

The metadata lies as that of `mma_sp_f16` for the 16 rows of each warp: see sparse_tensor_cores.py. The 16 products of
a row are added at once, as those of a dense product are. Source: PTX ISA, "wgmma.mma_async.sp".
"""

from __future__ import annotations

import numpy as np

from pmpp.simt.values import tensor_cores
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.sparse_tensor_cores import _fours
from pmpp.simt.values.tensor_cores import HOPPER, ROWS, Adder

#: The numbers that an instruction multiplies.
KINDS = {"wgmma_sp_f16": "float16", "wgmma_sp_bf16": "bfloat16"}
#: The instruction of a warp whose metadata lies in the same way.
METADATA = "mma_sp_f16"
STORED = 16  # numbers of a row of a: half of its columns, and of the rows of b


def operations(columns: int) -> int:
    """Operations of a warp in one product, a multiply-add being two: those of the numbers that are stored of `a`."""
    return 2 * ROWS * columns * STORED


def multiply(
    name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, e: np.ndarray, selector: int, adder: Adder = HOPPER
) -> np.ndarray:
    """c + a @ b of one warp, (16, columns) of float32.

    a and b are the bits of the numbers, (16, 16) and (32, columns) of uint16; e is the metadata, (32,).

    >>> one, e = np.float16(1).view(np.uint16), np.full(32, 0xEEEEEEEE, np.uint32)  # the last two of each four
    >>> a, b = np.full((16, 16), one), np.arange(32, dtype=np.float16).view(np.uint16)[:, None].repeat(64, 1)
    >>> float(multiply("wgmma_sp_f16", a, b, np.zeros((16, 64), np.float32), e, 0)[0, 0])  # 2 + 3 + 6 + 7 + ...
    264.0
    """
    kind = KINDS[name]
    fours = _fours(METADATA, selector, e[None])[0]
    first = 4 * np.arange(2 * STORED // 4, dtype=np.uint32)
    rows = np.stack([first + (fours & np.uint32(3)), first + (fours >> np.uint32(2))], axis=-1)
    rows = as_intp(rows.reshape(ROWS, STORED).astype(np.int64))  # of b, by which each stored number is multiplied
    with np.errstate(all="ignore"):
        stored, every = (tensor_cores._of_bits(kind, x) for x in (a, b))
        return tensor_cores._add(stored[:, None, :], every.T[:, rows].swapaxes(0, 1), c, kind, adder)
