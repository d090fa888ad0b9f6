"""What a chapter teaches once and every later kernel uses: counting blocks, limits, sums over a warp or a block.

Kernels for several GPUs are in `peers`, and `ranks` launches them for all ranks at once.
"""

from pmpp.kernels.common.grid import FULL_WARP, SHARED_LIMIT, blocks, round_up
from pmpp.kernels.common.reductions import (
    block_max,
    block_sum,
    max_across_warps,
    sum_across_warps,
    warp_max,
    warp_sum,
)

__all__ = [
    "FULL_WARP",
    "SHARED_LIMIT",
    "block_max",
    "block_sum",
    "blocks",
    "max_across_warps",
    "round_up",
    "sum_across_warps",
    "warp_max",
    "warp_sum",
]
