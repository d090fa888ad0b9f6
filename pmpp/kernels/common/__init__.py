"""What a chapter teaches once and every later kernel uses: counting blocks, the mask of a full warp, limits."""

from pmpp.kernels.common.grid import FULL_WARP, SHARED_LIMIT, blocks, round_up

__all__ = ["FULL_WARP", "SHARED_LIMIT", "blocks", "round_up"]
