"""Counting a rung: what the interpreter sees of a call, on a machine with a GPU as on one without.

A kernel is counted by ``simt.profile(kernel, grid, block, args)``, which takes a kernel of either backend. A rung is
more than its kernels: it chooses their geometry, may launch several, and may call other rooms. `count` makes the whole
call in the interpreter::

    from pmpp import lab

    counted = lab.count(reduction.shuffle, x)
    counted.counters["global_load_sectors"]      # of all its launches
    counted.reports[-1].grid                     # of the last
    counted.result                               # what the rung returned, as NumPy arrays

Where kernels run in the interpreter, that is an ordinary call whose launches are recorded. Where they run on a GPU, the
rooms of this process are compiled for it. So the call is made in a second Python process, which has the interpreter as
its backend, starts with the first call and ends with this process. Arguments, results and reports travel by pickle.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
import traceback
import typing
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmpp.runtime import device

if typing.TYPE_CHECKING:
    from pmpp import simt

__all__ = ["Counted", "count"]


@dataclass(frozen=True, eq=False)
class Counted:
    """What a call did in the interpreter.

    result    what it returned: device arrays as NumPy arrays, everything else as it was
    reports   a `simt.Report` for each launch, in order
    """

    result: typing.Any
    reports: list[simt.Report]

    @property
    def counters(self) -> Counter[str]:
        """The counters of `pmpp.simt.METRICS`, added up over all launches."""
        total: Counter[str] = Counter()
        for report in self.reports:
            total.update(report.counters)
        return total

    def __repr__(self) -> str:
        launches = ", ".join(f"{report.kernel}{list(report.grid)}" for report in self.reports)
        return f"<Counted: {len(self.reports)} launches ({launches})>"


def count(rung: Callable, *args: typing.Any, trace: bool | simt.Tracing = False, **options: typing.Any) -> Counted:
    """Call a rung in the interpreter, whatever the backend, and return its result and a report for each launch.

    Args:
        rung: a rung, or a function of a module that calls rungs, such as ``convolution_layer.dispatch.convolution``.
        *args, **options: its arguments. The call gets copies: NumPy arrays of NumPy arrays, and of arrays on the device
            arrays on the interpreter's device. ``stream`` is not taken, since the interpreter has no streams.
        trace: as for ``simt.profile``: keep who touched what in ``report.trace``.

    Raises what the call raises, ``simt.OutOfBoundsError`` among it; TypeError for a kernel, for a function that is not
    a name of an importable module (one that a notebook's cell defines), and for a ``stream``.

    >>> import numpy as np
    >>> from pmpp.kernels.reduction import ladder as reduction
    >>> counted = count(reduction.shuffle, np.ones(1 << 14, np.float32))
    >>> counted.result.item(), [report.kernel for report in counted.reports]
    (16384.0, ['fill_kernel', 'shuffle_kernel'])
    >>> counted.counters["global_load_sectors"]
    2048
    """
    module, name = _address(rung)
    if "stream" in options:
        raise TypeError("stream must be left out: a rung is counted in the interpreter, which has no streams")
    request = module, name, _packed(args), {key: _packed(value) for key, value in options.items()}, trace
    if not device.on_gpu():
        return _call(*request)
    outcome, printed = _interpreter(os.getpid()).ask(request)
    print(printed, end="")
    if isinstance(outcome, Exception):
        raise outcome
    return Counted(*outcome)


def _address(rung: typing.Any) -> tuple[str, str]:
    """The module and the name by which another process finds it too."""
    if hasattr(rung, "py_func"):
        raise TypeError(f"rung must be a rung, was the kernel {rung.py_func.__name__}: use simt.profile for a kernel")
    module, name = getattr(rung, "__module__", None), getattr(rung, "__name__", None)
    if callable(rung) and name and module not in (None, "__main__"):
        with contextlib.suppress(ImportError):
            if getattr(importlib.import_module(module), name, None) is rung:
                return module, name
    raise TypeError(f"rung must be a rung or a function that can be imported from its module, was {rung!r}")


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """An argument that lay on the device, here on its way."""

    values: np.ndarray


def _packed(value: typing.Any) -> typing.Any:
    """A copy of an argument, apart from this process's device."""
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if hasattr(value, "copy_to_host") or hasattr(value, "__cuda_array_interface__"):
        return _OnDevice(device.to_host(value))
    return _each(_packed, value)


def _unpacked(value: typing.Any) -> typing.Any:
    """The argument again, on the interpreter's device if it lay on a device."""
    return device.to_device(value.values) if isinstance(value, _OnDevice) else _each(_unpacked, value)


def _on_host(value: typing.Any) -> typing.Any:
    if hasattr(value, "copy_to_host") or hasattr(value, "__cuda_array_interface__"):
        return device.to_host(value)
    return _each(_on_host, value)


def _each(convert: Callable, value: typing.Any) -> typing.Any:
    """``convert`` on all that a tuple or a list holds; anything else as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(convert, value))
    return type(value)(map(convert, value)) if type(value) in (tuple, list) else value


def _call(module: str, name: str, args: tuple, options: dict, trace: typing.Any) -> Counted:
    """Make the call here, where kernels run in the interpreter."""
    from pmpp import simt

    function = getattr(importlib.import_module(module), name)
    with simt.record(collect=False, trace=trace) as reports:
        result = function(*_unpacked(args), **{key: _unpacked(value) for key, value in options.items()})
    return Counted(_on_host(result), reports)


# ------------------------------------------------------------------------------------------------ the second process


class _Process:
    """A Python process in which kernels run in the interpreter. It answers one request after the other."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from pmpp.lab.measure import count; count._serve()"],
            env=os.environ | {"PMPP_BACKEND": "simt", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: tuple) -> tuple[typing.Any, str]:
        """What came of the call, ``(result, reports)`` or an exception, and what it printed."""
        try:
            message = pickle.dumps(request)
        except Exception as error:  # pickle raises several kinds of errors
            raise TypeError(
                f"the arguments must be arrays, numbers and the like; one cannot be sent: {error}"
            ) from None
        with self.lock:
            try:
                self.process.stdin.write(message)
                self.process.stdin.flush()
                return pickle.load(self.process.stdout)
            except BaseException as error:
                _interpreter.cache_clear()  # the next call starts another: this one's answer would be taken for its own
                self.process.kill()
                self.close()
                if not isinstance(error, BrokenPipeError | EOFError):
                    raise
                status = self.process.returncode
                raise RuntimeError(f"the interpreter's process ended with status {status} while it counted") from error

    def close(self) -> None:
        """End the process: it reads until its input ends."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@functools.cache
def _interpreter(pid: int) -> _Process:
    """The second process of this one. (A process made by fork must not share its parent's.)"""
    return _Process()


def _serve() -> None:
    """The second process: answer requests on standard input, until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write between the answers
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                counted = _call(*request)
                outcome: typing.Any = counted.result, counted.reports
            except Exception as error:
                error.add_note(f"in the interpreter's process:\n{''.join(traceback.format_tb(error.__traceback__))}")
                outcome = error
        _Pickler(answers).dump((outcome, printed.getvalue()))
        answers.flush()


class _Pickler(pickle.Pickler):
    """Sends what pickle does not: errors whose ``__init__`` takes other arguments than they keep, and weak references,
    which a trace has to the arrays that it was given. These are left behind."""

    def reducer_override(self, obj: typing.Any) -> typing.Any:
        if isinstance(obj, weakref.ref):
            return _nothing, ()
        if isinstance(obj, Exception):
            return _error, (type(obj), obj.args, vars(obj))
        return NotImplemented


def _nothing() -> None:
    return None


def _error(kind: type[Exception], args: tuple, state: dict) -> Exception:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error
