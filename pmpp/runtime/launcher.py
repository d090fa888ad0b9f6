"""Launches that cost what a library's cost: ``kernel[grid, block, stream, shared](*args)``, prepared once a type.

Numba finds out anew at each launch what every argument is, makes an object of every number that the kernel is given,
and describes the launch to the driver's Python binding. That takes several times as long as the driver itself: see
notebooks/22_launches.ipynb. Here it is done once for arguments of given types. `Plan` keeps the compiled kernel, a
buffer and the addresses in it; a later launch writes its numbers into the buffer and calls the driver.

    the first launch of arguments of given types   Numba's own: it compiles, checks, reports; then a plan is made
    each later one                                 the plan's: `struct` packs the arguments, cuLaunchKernelEx starts it

A launch goes to Numba as well where a plan could not be right: NumPy arrays and records, which Numba copies to the
device and back, kernels with debug=True, with extensions, or whose code depends on the launch's configuration, ints
beyond 64 bits, types that this module does not know. An error of the driver is left to Numba to report: the launch is
repeated there.

`install` puts this behind the kernels of Numba. It imports Numba, and so only `pmpp.runtime.device` imports it, where
kernels run on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import typing
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import devices, driver
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.dispatcher import CUDADispatcher, _LaunchConfiguration
from numba.cuda.errors import normalize_kernel_dimensions

from pmpp.runtime import array, foreign
from pmpp.runtime.array import Array

__all__ = ["Launch", "Plan", "install"]

#: A number's format for `struct`, by its type. A word has 8 bytes; the driver reads as many as the kernel's type has.
FORMATS: dict[type, str] = {
    bool: "?7x",
    int: "q",
    float: "d",
    np.bool_: "?7x",
    np.int8: "b7x",
    np.int16: "h6x",
    np.int32: "i4x",
    np.int64: "q",
    np.uint8: "B7x",
    np.uint16: "H6x",
    np.uint32: "I4x",
    np.uint64: "Q",
    np.float16: "e6x",
    np.float32: "f4x",
    np.float64: "d",
}
COMPLEX = {complex: "d", np.complex64: "f4x", np.complex128: "d"}  # of each part

KEPT = 256  # configurations and plans that a kernel keeps; then it begins anew
STATIC_LIMIT = 48 * 1024  # bytes of shared memory, static and dynamic, that need no permission of the driver
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
NUMBA = object()  # in the place of a plan: a launch of such arguments is Numba's


class Unknown(Exception):
    """An argument that no plan can be made for."""


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig: where a kernel is launched. Given as one, it costs less than as eight arguments."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attributes_count", ctypes.c_uint),
    )


def function_of(kernel: ctypes.c_void_p) -> ctypes.c_void_p:
    """The function behind a kernel of a library in the current context, which the driver need not look up then."""
    function = ctypes.c_void_p()
    return kernel if array.library().cuKernelGetFunction(ctypes.byref(function), kernel) else function


class Slot:
    """A buffer for one launch's arguments, and the address of each in it."""

    __slots__ = ("buffer", "parameters")

    def __init__(self, offsets: range) -> None:
        self.buffer = ctypes.create_string_buffer(max(offsets.stop, 8))
        base = ctypes.addressof(self.buffer)
        self.parameters = (ctypes.c_void_p * max(len(offsets), 1))(*[base + offset for offset in offsets])


class Plan:
    """How a compiled kernel is launched with arguments of given types.

    The driver has read the arguments when its function returns. But it runs without Python's lock, so another thread
    can launch the same kernel meanwhile: each launch takes a slot of its own, and gives it back.
    """

    def __init__(self, kernel: typing.Any, formats: list[str]) -> None:
        self.pack_into = struct.Struct("=" + "".join(formats)).pack_into
        self.offsets = offsets_of(formats)
        self.slots = [Slot(self.offsets)]
        function = kernel._codelibrary.get_cufunc()
        self.kernel = kernel  # keeps what is loaded
        self.function = function_of(ctypes.c_void_p(int(function.handle)))
        self.cooperative = kernel.cooperative
        library = array.library()
        self.call = library.cuLaunchCooperativeKernel if self.cooperative else library.cuLaunchKernelEx
        self.shared = STATIC_LIMIT - kernel.shared_mem_per_block  # what its own arrays leave

    def launch(self, where: Launch, values: list) -> bool:
        """Whether the driver took it; False also for an int beyond 64 bits."""
        if where.sharedmem > self.shared:
            allow_shared(self.kernel, where.sharedmem)
            self.shared = where.sharedmem
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = Slot(self.offsets)
        try:
            self.pack_into(slot.buffer, 0, *values)
            if self.cooperative:
                return self.call(self.function, *where.extents, slot.parameters) == 0
            return self.call(where.configuration, self.function, slot.parameters, None) == 0
        except struct.error:
            return False
        finally:
            self.slots.append(slot)


def offsets_of(formats: list[str]) -> range:
    """Where each parameter begins: each is one word, and the words of an array are parameters of their own."""
    return range(0, sum(struct.calcsize("=" + one) for one in formats), 8)


def allow_shared(kernel: typing.Any, nbytes: int) -> None:
    """Ask the driver to let blocks of a compiled kernel have that much dynamic shared memory on this device.

    A size that the device does not have is refused at the launch, in the driver's words.
    """
    function = kernel._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute(MAX_DYNAMIC_SHARED)
    device = devices.get_context().device.id
    driver.binding.cuKernelSetAttribute(attribute, nbytes, function.handle, driver.binding.CUdevice(device))


class Launch(_LaunchConfiguration):
    """``kernel[grid, block, stream, shared]``: called with the kernel's arguments, it launches it."""

    def __init__(self, kernel: CUDADispatcher, griddim, blockdim, stream=0, sharedmem=0) -> None:
        griddim, blockdim = normalize_kernel_dimensions(griddim, blockdim)
        super().__init__(kernel, griddim, blockdim, stream, sharedmem)
        self.plans, self.several = plans_of(kernel), array.several()
        self.handle = int(self.stream.handle)
        sizes = *self.griddim, *self.blockdim, self.sharedmem
        self.configuration = ctypes.byref(Configuration(*sizes, self.handle))
        self.extents = (*map(ctypes.c_uint, sizes), ctypes.c_void_p(self.handle))

    def __call__(self, *args: typing.Any) -> None:
        try:
            values, forms = describe(args, self.handle)
        except Unknown:
            self.by_numba(args)
            return
        key = (array.device() if self.several else 0, *forms)
        plan = self.plans.get(key)
        if plan is None:
            self.first(args, key)
        elif plan is NUMBA or self.pre_launch_callbacks or not plan.launch(self, values):
            self.by_numba(args)

    def by_numba(self, args: tuple) -> None:
        """Numba's own launch, which also says what is wrong."""
        if self.sharedmem:
            kernel = self.dispatcher.compile(tuple(self.dispatcher.typeof_pyval(arg) for arg in args))
            if self.sharedmem + kernel.shared_mem_per_block > STATIC_LIMIT:
                allow_shared(kernel, self.sharedmem)
        super().__call__(*args)

    def first(self, args: tuple, key: tuple) -> None:
        """Numba's launch of arguments of new types; then the plan for the next ones."""
        for form in key[1:]:
            if isinstance(form, array.Form) and form.device != key[0]:
                where = f"on GPU {key[0]}, the current device"
                raise ValueError(f"an array of GPU {form.device} cannot be given to a kernel {where}")
        # Numba takes what it has compiled for other types if these convert to them, an "A" array for a "C" array. A
        # kernel would then be slow or fast depending on what came first.
        types = tuple(self.dispatcher.typeof_pyval(arg) for arg in args)
        if self.dispatcher.overloads and self.dispatcher._can_compile and types not in self.dispatcher.overloads:
            self.dispatcher.compile(types)
        self.by_numba(args)
        if len(self.plans) >= KEPT:
            self.plans.clear()
        self.plans[key] = plan_of(self.dispatcher, types, key)

    def __getstate__(self) -> dict:
        left_out = ("plans", "several", "configuration", "extents", "handle")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __setstate__(self, state: dict) -> None:
        stream = driver.Stream(state["stream"]) if state["stream"] else 0
        self.__init__(state["dispatcher"], state["griddim"], state["blockdim"], stream, state["sharedmem"])


def plan_of(kernel: CUDADispatcher, types: tuple, key: tuple) -> typing.Any:
    """The plan for arguments of these types, or NUMBA if it compiled none for exactly them."""
    compiled = kernel.overloads.get(types)
    if compiled is None or compiled.debug or kernel.extensions or kernel._launch_config_sensitive:
        return NUMBA
    forms = iter(key[1:])
    return Plan(compiled, formats_of(next(forms), forms))


@dataclass(frozen=True, eq=False)
class Packed:
    """What a tuple of numbers is. `packed_form` keeps one object for all of the same types."""

    nbytes: int


@functools.cache
def packed_form(kind: type, forms: tuple) -> Packed:
    """The one form of tuples of a type that `describe` says this of."""
    rest = iter(forms)
    return Packed(offsets_of(formats_of(next(rest), rest)).stop)


ARRAY, TUPLE, COMPLEX_NUMBER, FOREIGN = range(4)


@functools.lru_cache(4096)
def others(kinds: tuple[type, ...]) -> tuple[tuple[int, int], ...]:
    """The places of arguments that are no plain numbers, and what they are; the last first, as a tuple may be long."""

    def what(kind: type) -> int:
        if kind is Array:
            return ARRAY
        return TUPLE if issubclass(kind, tuple) else COMPLEX_NUMBER if kind in COMPLEX else FOREIGN

    return tuple((place, what(kinds[place])) for place in reversed(range(len(kinds))) if kinds[place] not in FORMATS)


def describe(args: tuple, stream: int) -> tuple[list, list]:
    """What the kernel is given of the arguments, in order, and what they are. Raises Unknown.

    What they are: their types, then the form of each array and of each tuple. The same of a tuple that has arrays.
    """
    kinds = tuple(map(type, args))
    values, forms = list(args), [kinds]
    for place, what in others(kinds):
        arg = args[place]
        if what == ARRAY:
            forms.append(arg.form)
            values[place] = arg.words
        elif what == TUPLE:
            kept = _PACKED.get(id(arg))
            if kept is None:
                values[place : place + 1] = describe_tuple(arg, forms, stream)
            else:  # it keeps the tuple, so no other one has this identity
                forms.append(kept[1])
                values[place] = kept[2]
        elif what == COMPLEX_NUMBER:
            values[place : place + 1] = arg.real, arg.imag
        else:
            view = array.adopted(arg) if isinstance(arg, DeviceNDArray) else foreign.view(arg)
            if view is None:
                raise Unknown
            foreign.begin_after(cuda, foreign.producer(kinds[place]), stream)
            forms.append(view.form)
            values[place] = view.words
    return values, forms


def describe_tuple(arg: tuple, forms: list, stream: int) -> list:
    """What the kernel is given of a tuple; what that is is added to ``forms``.

    The words of numbers alone are packed and kept: a room's plan gives the same tuple to each launch.
    """
    values, theirs = describe(arg, stream)
    if any(type(form) is array.Form for form in theirs):
        forms += theirs
        return values
    rest = iter(theirs)
    try:
        packed = struct.pack("=" + "".join(formats_of(next(rest), rest)), *values)
    except struct.error:  # an int beyond 64 bits
        raise Unknown from None
    form = packed_form(type(arg), tuple(theirs))
    if len(_PACKED) >= TUPLES:
        _PACKED.clear()
    _PACKED[id(arg)] = arg, form, packed
    forms.append(form)
    return [packed]


TUPLES = 4096  # that are kept
_PACKED: dict[int, tuple[tuple, Packed, bytes]] = {}


def formats_of(kinds: tuple[type, ...], forms: typing.Iterator) -> list[str]:
    """The words of arguments as formats of `struct`, from what `describe` said of them."""
    formats = [[FORMATS.get(kind, "")] for kind in kinds]
    for place, what in others(kinds):
        if what == COMPLEX_NUMBER:
            formats[place] = [COMPLEX[kinds[place]]] * 2
        else:
            form = next(forms)
            formats[place] = formats_of(form, forms) if isinstance(form, tuple) else [f"{form.nbytes}s"]
    return [text for part in formats for text in part]


def plans_of(kernel: CUDADispatcher) -> dict:
    return kernel.__dict__.setdefault("_pmpp_plans", {})


# ----------------------------------------------------------------------------------------------------------- installing


def _configured(self: CUDADispatcher, configuration: tuple) -> Launch:
    """``kernel[grid, block, stream, shared]``, made once for each configuration."""
    kept = self.__dict__.setdefault("_pmpp_launches", {})
    try:
        return kept[configuration]
    except KeyError:
        pass
    except TypeError:  # lists of extents
        return Launch(self, *_whole(configuration))
    made = Launch(self, *_whole(configuration))
    if len(kept) >= KEPT:
        kept.clear()
    kept[configuration] = made
    return made


def _whole(configuration: tuple) -> tuple:
    if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
        raise ValueError("must specify at least the griddim and blockdim")
    return configuration


def install() -> None:
    """Put `Launch` behind Numba's kernels, in this process, once."""
    if CUDADispatcher.__getitem__ is _configured:
        return
    CUDADispatcher.__getitem__ = _configured
    compile_anew = CUDADispatcher.recompile

    @functools.wraps(compile_anew)
    def recompile(self: CUDADispatcher) -> None:
        plans_of(self).clear()
        compile_anew(self)

    CUDADispatcher.recompile = recompile
    unload_once()


def unload_once() -> None:
    """Let Numba unload what it has compiled once, and not once for each GPU that has launched it.

    The driver loads a library for all GPUs. To unload it twice, when the process ends, frees memory twice: an abort.
    """
    finalizer_of, loaded = driver._module_finalizer, set()

    @functools.wraps(finalizer_of)
    def of_the_first(context: typing.Any, object_code: typing.Any) -> Callable[[], None]:
        handle = int(object_code.handle)
        if handle in loaded:
            return lambda: None
        unload = finalizer_of(context, object_code)
        loaded.add(handle)

        def once() -> None:
            loaded.discard(handle)  # the driver may give the next library the same
            unload()

        return once

    driver._module_finalizer = of_the_first
