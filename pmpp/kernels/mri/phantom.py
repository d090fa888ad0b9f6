"""A body of ellipses, the path of a scan, and what a scanner would measure of it."""

from __future__ import annotations

import numpy as np

__all__ = ["phantom", "spiral", "voxels_of"]

# Of each ellipse: brightness, half axes along x and y, its middle, and by how much it is turned (degrees). They are
# those of the head by L. Shepp and B. Logan (1974), with the contrast that is usual for pictures.
ELLIPSES = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, -18.0),
    (-0.2, 0.16, 0.41, -0.22, 0.0, 18.0),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
    (0.1, 0.023, 0.023, 0.0, -0.606, 0.0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
)


def voxels_of(shape: tuple[int, int, int]) -> np.ndarray:
    """The middles x, y, z of the voxels of a box whose edges go from -1/2 to 1/2: (nz ny nx, 3) float32.

    >>> voxels_of((1, 1, 2))
    array([[-0.25,  0.  ,  0.  ],
           [ 0.25,  0.  ,  0.  ]], dtype=float32)
    """
    z, y, x = np.indices(shape).reshape(3, -1)
    return np.stack([(i + 0.5) / n - 0.5 for i, n in zip((x, y, z), reversed(shape), strict=True)], axis=1).astype(
        np.float32
    )


def phantom(side: int) -> np.ndarray:
    """A section of a head, of ellipses: (side, side) float32 from 0 to 1, the front above."""
    places = 2 * voxels_of((1, side, side)).astype(np.float64)
    x, y = places[:, 0], -places[:, 1]
    image = np.zeros(side * side)
    for brightness, a, b, x0, y0, degrees in ELLIPSES:
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        along, across = c * (x - x0) + s * (y - y0), c * (y - y0) - s * (x - x0)
        image[(along / a) ** 2 + (across / b) ** 2 <= 1] += brightness
    return np.clip(image, 0, 1).reshape(side, side).astype(np.float32)  # sums of tenths are hardly ever exactly 0


def spiral(samples: int, reach: float) -> np.ndarray:
    """Samples along a spiral from the middle to ``reach``, in the plane kz = 0: (samples, 3) float32.

    Each round goes one further out, as far as frequencies may lie apart for a body of length 1. All rounds have as many
    samples, so these lie closer together in the middle.

    >>> spiral(3, 1.5).round(2) + 0
    array([[ 0.  ,  0.25,  0.  ],
           [ 0.  , -0.75,  0.  ],
           [ 0.  ,  1.25,  0.  ]], dtype=float32)
    """
    far = reach * (np.arange(samples) + 0.5) / max(samples, 1)
    angle = 2 * np.pi * far
    return np.stack([far * np.cos(angle), far * np.sin(angle), 0 * far], axis=1).astype(np.float32)
