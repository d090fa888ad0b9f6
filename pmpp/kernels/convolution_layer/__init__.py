"""Convolution layers: images of many channels, many filters, and six algorithms for the same result.

Six rooms share one definition and one `arguments`, in `pmpp.kernels.convolution_layer.definition`: `direct` adds up as
the definition does, `im2col` writes a matrix and multiplies it, `implicit` multiplies it without writing it, `winograd`
saves multiplications, and `by_fft` multiplies spectra. They are taught in notebooks/62_direct_convolution.ipynb and the
chapters after it. `depthwise` is for layers whose groups have few channels, down to one: it is taught in
notebooks/71_depthwise_convolution.ipynb. `implicit_channels_last` and `depthwise_channels_last`, in the chapters of
their namesakes, have images and filters in another order in memory. `convolution` computes a layer by the algorithm
that is likely to be the fastest for it.

Two rooms more, `input_gradients` and `weight_gradients`, are what training needs of a layer. `input_gradient`,
`weight_gradient` and `bias_gradient` pass a loss's gradient back from a layer's output. `channels_last_gradients` has
the first two of them for images and filters with channels last.

`pmpp.kernels.convolution_layer.mixed` has a layer and its gradients for float16 and bfloat16, on tensor cores: for
training in mixed precision.
"""

from pmpp.kernels.common.layouts import channels_last
from pmpp.kernels.convolution_layer import (
    by_fft,
    channels_last_gradients,
    definition,
    depthwise,
    depthwise_channels_last,
    direct,
    dispatch,
    im2col,
    implicit,
    implicit_channels_last,
    input_gradients,
    weight_gradients,
    winograd,
)
from pmpp.kernels.convolution_layer.bias_gradients import bias_gradient
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.input_gradients import few_channels as input_gradient
from pmpp.kernels.convolution_layer.weight_gradients import strips as weight_gradient


def convolution(
    x,
    w,
    bias=None,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    relu=False,
    *,
    algorithm="auto",
    workspace_limit=None,
    layout="NCHW",
    out=None,
    stream=0,
):
    """Compute a convolution layer; arguments, result and errors as in `dispatch.convolution`.

    layout: "NCHW", or "NHWC" for images (N, H, W, C), filters (K, R, S, C / groups) and results (N, P, Q, K), as in
        `implicit_channels_last`. Then ``algorithm`` must be "auto", "implicit" or "depthwise"; "auto" is "depthwise"
        where each channel has one or two filters of its own. The gradients are those of `channels_last_gradients`.

    >>> import numpy as np
    >>> x, w = np.ones((1, 3, 3, 2), np.float32), np.ones((1, 2, 2, 2), np.float32)
    >>> convolution(x, w, layout="NHWC").copy_to_host().ravel()
    array([8., 8., 8., 8.], dtype=float32)
    """
    options = bias, stride, padding, dilation, groups, relu
    if not channels_last(layout):
        more = {"algorithm": algorithm, "workspace_limit": workspace_limit, "out": out, "stream": stream}
        return dispatch.convolution(x, w, *options, **more)
    if not isinstance(algorithm, str) or algorithm not in ("auto", "implicit", "depthwise"):
        wanted = "'auto', 'implicit' or 'depthwise' for layout='NHWC'"
        raise ValueError(f"algorithm must be {wanted}, was {algorithm!r}")
    dispatch.check_limit(workspace_limit)
    p = implicit_channels_last.arguments(x, w, *options, out=out, stream=stream)
    few = p.layer.c == p.layer.groups and p.layer.k <= 2 * p.layer.groups
    if algorithm == "depthwise" or (algorithm == "auto" and few):
        return depthwise_channels_last.sliding.run(p)
    fits = workspace_limit is None or implicit_channels_last.workspace_bytes(p.layer) <= workspace_limit
    rung = implicit_channels_last.divided if fits else implicit_channels_last.vectorised
    return rung.run(p)


__all__ = [
    "Layer",
    "bias_gradient",
    "by_fft",
    "channels_last_gradients",
    "convolution",
    "definition",
    "depthwise",
    "depthwise_channels_last",
    "direct",
    "dispatch",
    "im2col",
    "implicit",
    "implicit_channels_last",
    "input_gradient",
    "input_gradients",
    "weight_gradient",
    "weight_gradients",
    "winograd",
]
