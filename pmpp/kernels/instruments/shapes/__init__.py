"""What is measured of drawn shapes: of each room what its caller calls, the rivals, and a check of every output.

A module a room, each with a `workload` of a shape. `pmpp.lab.measure.shapes` draws the shapes and measures; it finds
this package by its name. Our side is the room's plain function, with what a caller would write. A shape that it
refuses is recorded as refused, in its words, so nothing here makes a shape suit a room.
"""

from pmpp.kernels.instruments.shapes import (
    activation,
    convolution_layer,
    fft,
    matmul,
    normalisation,
    pooling,
    reduction,
    scan,
    softmax,
    warpgroups,
)
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape

ROOMS = {
    "matmul": matmul,
    "fft": fft,
    "reduction": reduction,
    "convolution_layer": convolution_layer,
    "softmax": softmax,
    "normalisation": normalisation,
    "pooling": pooling,
    "scan": scan,
    "activation": activation,
    "warpgroups": warpgroups,
}


def workload(shape: Shape) -> Workload:
    """What is measured of a shape: the room's plain function, the rivals, inputs and a check in float64.

    Raises TypeError for anything but a `Shape`.

    >>> from pmpp.lab.measure.shapes.drawing import drawn
    >>> made = workload(drawn(["fft"])[0])
    >>> made.label, list(made.libraries)
    ('FFT, powers of two 4194304x16', ['torch.fft', 'cupy.cufft'])
    """
    if not isinstance(shape, Shape):
        raise TypeError(f"shape must be a Shape, as `drawn` makes them, was {type(shape).__name__}")
    return ROOMS[shape.room].workload(shape)
