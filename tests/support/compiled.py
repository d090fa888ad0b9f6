"""Kernels compiled to PTX without a GPU, and spies that see what a kernel is launched with."""

import functools
import inspect
import types
from unittest import mock

import numpy as np

from pmpp.runtime import device, vector

#: The oldest architecture that CUDA 13 compiles for. Every later GPU runs PTX that was made for it.
OLDEST = (7, 5)


def compile_ptx(kernel, *arguments, cc=OLDEST):
    return _compiled(kernel, tuple(numba_type(argument) for argument in arguments), cc)


@functools.cache  # a room's rungs share kernels
def _compiled(kernel, signature, cc):
    from numba import cuda

    options = getattr(kernel, "targetoptions", None) or getattr(kernel, "options", None) or {}
    options = {"fastmath": True} if options.get("fastmath") else {}
    # Numba asks the device which architecture a device function is for.
    device_of = "numba.cuda.dispatcher.get_current_device"
    with mock.patch(device_of, return_value=mock.Mock(compute_capability=cc)):
        function = _for_numba(getattr(kernel, "py_func", kernel), _twins(cc))
        return cuda.compile_ptx(function, signature, cc=cc, **options)[0]


@functools.cache
def _twins(cc):
    """What `_for_numba` made for an architecture: a device function is compiled once for all kernels that call it."""
    return {}


def numba_type(value):
    """The Numba type of an argument, as at a launch."""
    from numba.cuda import types as nt
    from numba.cuda.np.numpy_support import from_dtype

    if isinstance(value, nt.Type):
        return value
    if isinstance(value, tuple):
        return nt.BaseTuple.from_types([numba_type(item) for item in value], type(value))
    if isinstance(value, bool | np.bool_):
        return nt.boolean
    if isinstance(value, int):
        return nt.int64
    if isinstance(value, float):
        return nt.float64
    if getattr(value, "ndim", 0) == 0:
        return from_dtype(value.dtype)
    c_order = device._contiguous(value.shape, value.strides, value.dtype.itemsize)
    f_order = device._contiguous(value.shape[::-1], value.strides[::-1], value.dtype.itemsize)
    return nt.Array(from_dtype(value.dtype), value.ndim, "C" if c_order else "F" if f_order else "A")


def _for_numba(function, made):
    """A copy of a function whose globals and closure hold Numba's things where they held the interpreter's.

    ``made``: copies by function, and Numba's device functions by the interpreter's.
    """
    if function in made:
        return made[function]
    names = set()
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
    cells = tuple(types.CellType() for _ in function.__closure__ or ())  # filled below: functions may name each other
    scope = {"__builtins__": __builtins__, "__name__": function.__module__}
    twin = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    twin.__kwdefaults__, twin.__module__ = function.__kwdefaults__, function.__module__
    twin.__qualname__ = function.__qualname__
    made[function] = twin
    outer = function.__globals__
    scope.update({name: _thing_for_numba(outer[name], made) for name in names & outer.keys()})
    for mine, theirs in zip(cells, function.__closure__ or (), strict=True):
        mine.cell_contents = _thing_for_numba(theirs.cell_contents, made)
    return twin


def _thing_for_numba(thing, made):
    from numba import cuda

    if isinstance(thing, types.ModuleType):
        return cuda if thing.__name__.startswith("pmpp.simt") else thing
    name = getattr(thing, "__name__", "")
    if name in ("load128", "store128"):
        return dict(zip(("load128", "store128"), vector.numba_intrinsics(), strict=True))[name]
    if type(thing).__name__ == "DeviceName":
        return functools.reduce(getattr, thing._path.split("."), cuda)
    if hasattr(thing, "py_func"):
        if thing not in made:
            made[thing] = cuda.jit(device=True)(_for_numba(thing.py_func, made))
        return made[thing]
    return thing


class Spy:
    """Stands where a kernel stood, launches it, and keeps the arguments of every launch in ``launches``.

    In the place of a function that makes kernels, it spies on what is made, and keeps these spies in ``made``.
    """

    def __init__(self, kernel):
        self.kernel, self.launches, self.made = kernel, [], []

    def __call__(self, *arguments):
        self.made.append(Spy(self.kernel(*arguments)))
        return self.made[-1]

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def __getitem__(self, configuration):
        return functools.partial(self._launch, self.kernel[configuration])

    def _launch(self, configured, *arguments):
        self.launches.append(arguments)
        return configured(*arguments)
