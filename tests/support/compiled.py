"""Kernels compiled to PTX without a GPU, what launches there are, and spies that see them.

What was compiled is kept in ``.pytest_cache/ptx``, under a digest of all that PTX depends on: see `digest`.
"""

import collections
import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import os
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import numpy as np

from pmpp import simt
from pmpp.runtime import (
    addresses,
    bfloat16,
    device,
    dots,
    hopper,
    hopper_columns,
    hopper_maps,
    hopper_registers,
    hopper_sparse,
    matrix,
    matrix_f64_f8,
    sparse_matrix,
    system,
    vector,
)

#: Modules that give a kernel intrinsics.
INTRINSICS = (
    vector,
    matrix,
    matrix_f64_f8,
    sparse_matrix,
    dots,
    hopper,
    hopper_columns,
    hopper_maps,
    hopper_registers,
    hopper_sparse,
    system,
)

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "ptx"

#: The oldest architecture that CUDA 13 compiles for. Every later GPU runs PTX that was made for it.
OLDEST = (7, 5)


def compile_ptx(kernel, *arguments, cc=OLDEST, opt=True):
    return _compiled(kernel, tuple(numba_type(argument) for argument in arguments), cc, opt)


@functools.cache
def _compiled(kernel, signature, cc, opt):
    """PTX out of the cache, or compiled and put there: whole or not at all, whoever else is writing."""
    from numba import cuda

    options = {"fastmath": True} if options_of(kernel).get("fastmath") else {}
    options |= {} if opt else {"opt": False}
    kept = CACHE / f"{digest(kernel, signature, cc, options)}.ptx"
    with contextlib.suppress(FileNotFoundError):
        return kept.read_text(encoding="utf-8")
    bfloat16.install()
    # Numba asks the device which architecture a device function is for.
    device_of = "numba.cuda.dispatcher.get_current_device"
    with mock.patch(device_of, return_value=mock.Mock(compute_capability=cc)), flags_compared_fast():
        function = _for_numba(getattr(kernel, "py_func", kernel), _twins(cc))
        text = cuda.compile_ptx(function, signature, cc=cc, **options)[0]
    CACHE.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=CACHE)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(path, kept)
    return text


@contextlib.contextmanager
def flags_compared_fast():
    """Numba keeps what it compiles under the compiler's flags, among others, and compares them at every look-up.

    Its own comparison reads all options of both. Flags with the same options set are equal: then these are enough.
    All flags of a class have one hash, that of the options' names, so it is computed once.
    """
    from numba.cuda.core.targetconfig import TargetConfig

    compare, of_names = TargetConfig.__eq__, functools.cache(lambda kind: hash(tuple(sorted(kind.options))))

    def same(flags, other):
        return (type(flags) is type(other) and flags._values == other._values) or compare(flags, other)

    with (
        mock.patch.object(TargetConfig, "__eq__", same),
        mock.patch.object(TargetConfig, "__hash__", lambda flags: of_names(type(flags))),
    ):
        yield


def options_of(thing):
    """What ``cuda.jit`` was given, of a kernel or a device function of either backend."""
    return getattr(thing, "targetoptions", None) or getattr(thing, "options", None) or {}


def digest(kernel, signature, cc, options):
    """Of the kernel's code and constants, of all that it calls, of its types, and of the compiler.

    Line numbers and comments are no part of it: the PTX does not have them.
    """
    seen = {}
    said = [repr(part) for part in (_said(kernel, seen), signature, cc, sorted(options.items()), compiler_versions())]
    return hashlib.sha256("\n".join([*said, _digest_of_the_toolchain()]).encode()).hexdigest()


@functools.cache
def _digest_of_the_toolchain():
    """Of what stands between a kernel and Numba: the intrinsics, and the translation in this file."""
    files = [*(module.__file__ for module in (*INTRINSICS, addresses, bfloat16)), __file__]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


@functools.cache
def compiler_versions():
    """The versions of all that makes PTX, and the files of NVIDIA's compiler and of its library of functions.

    A package need not have brought these files, so a version of one is no answer: one that was replaced has another
    name, length or date.
    """
    from numba.cuda.cudadrv import libs

    names = ("numba-cuda", "numba", "llvmlite", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    files = [Path(path).resolve() for path in (libs.get_cudalib("nvvm"), libs.get_libdevice())]
    dated = {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    return versions, dated, sys.version


def _said(thing, seen):
    """A thing that a kernel uses, as text that tells it from others; functions with all that they use."""
    function = getattr(thing, "py_func", thing)
    if isinstance(function, types.FunctionType):
        if function in seen:
            return f"function {seen[function]}"
        seen[function] = len(seen)
        names = names_of(function)
        parts = [_code_said(function.__code__), repr(function.__defaults__), repr(sorted(options_of(thing).items()))]
        outer = function.__globals__
        used = {name: outer[name] for name in sorted(names & outer.keys())}
        for name, module in list(used.items()):
            if isinstance(module, types.ModuleType) and module.__name__.startswith("pmpp.kernels"):
                used |= {f"{name}.{inner}": vars(module)[inner] for inner in sorted(names & vars(module).keys())}
        parts += [f"{name}: {_said(value, seen)}" for name, value in used.items()]
        parts += [_said(cell.cell_contents, seen) for cell in function.__closure__ or ()]
        return "\n".join(parts)
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype} {thing.shape} {thing.tobytes()!r}"
    if isinstance(thing, tuple):
        return f"{type(thing).__name__}({', '.join(_said(item, seen) for item in thing)})"
    if type(thing).__name__ == "DeviceName":
        return f"cuda.{thing._path}"
    if isinstance(thing, type) or callable(thing):
        return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__name__)}"
    return f"{type(thing).__name__} {thing!r}"


def _code_said(code):
    constants = (_code_said(one) if inspect.iscode(one) else repr(one) for one in code.co_consts)
    return f"{code.co_code!r} {code.co_names} {code.co_varnames} {code.co_freevars} ({', '.join(constants)})"


def names_of(function):
    """The global names and attributes that a function's code mentions, those of functions inside it too."""
    names, pending = set(), [function.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


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
    names = names_of(function)
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
    for module in INTRINSICS:
        if name in module.NAMES:
            return module.numba_intrinsics()[name]
    if name == "array_at":
        return addresses.numba_intrinsics()[name]
    if type(thing).__name__ == "DeviceName":
        return functools.reduce(getattr, thing._path.split("."), cuda)
    if hasattr(thing, "py_func"):
        if thing not in made:
            options = {name: True for name in ("forceinline",) if options_of(thing).get(name)}
            made[thing] = cuda.jit(device=True, **options)(_for_numba(thing.py_func, made))
        return made[thing]
    return thing


def launches_of(calls):
    """The types of every launch that some calls make, by kernel. Nothing is computed, as nobody looks at the results.

    ``calls``: functions without arguments. No rung reads a result before it returns.
    """
    found = collections.defaultdict(dict)

    def note(configured, *arguments):
        kernel = getattr(configured, "kernel", None) or configured.dispatcher
        found[kernel].setdefault(tuple(map(numba_type, arguments)))

    if device.on_gpu():
        from pmpp.runtime.launcher import Launch as Configured
    else:
        Configured = simt.cuda.Configured
    with mock.patch.object(Configured, "__call__", note):
        for call in calls:
            call()
    return {kernel: list(signatures) for kernel, signatures in found.items()}


def reached_by(kernel, found=None):
    """The Python functions that a kernel is made of: its own, and those of the device functions that it calls."""
    found = set() if found is None else found
    function = getattr(kernel, "py_func", kernel)
    if function not in found:
        found.add(function)
        names, outer = names_of(function), function.__globals__
        things = [outer[name] for name in names & outer.keys()]
        things += [cell.cell_contents for cell in function.__closure__ or ()]
        for module in [thing for thing in things if isinstance(thing, types.ModuleType)]:
            things += [vars(module)[name] for name in names & vars(module).keys()]
        for thing in things:
            if isinstance(getattr(thing, "py_func", None), types.FunctionType):
                reached_by(thing, found)
    return found


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
