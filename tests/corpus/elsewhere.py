"""Device functions for kernels of other files: a hazard in here is reported on the line that calls."""

from pmpp import cuda


@cuda.jit(device=True)
def put(array, i, value):
    array[i] = value


@cuda.jit(device=True)
def get(array, i):
    return array[i]
