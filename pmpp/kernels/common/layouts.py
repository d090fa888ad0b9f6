"""Where the channels of a batch of images lie: what ``layout=`` of a plain function may be."""

from __future__ import annotations

import typing

__all__ = ["channels_last"]


def channels_last(layout: typing.Any) -> bool:
    """Whether a layout is that with channels last. Raises ValueError for anything but "NCHW" and "NHWC".

    >>> channels_last("NHWC"), channels_last("NCHW")
    (True, False)
    """
    if not isinstance(layout, str) or layout not in ("NCHW", "NHWC"):
        raise ValueError(f"layout must be 'NCHW' or 'NHWC', was {layout!r}")
    return layout == "NHWC"
