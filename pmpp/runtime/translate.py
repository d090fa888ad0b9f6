"""Numba's errors in the words of this course.

Numba refuses a kernel in a compiler's words, and often far from the line that is to blame.  The interpreter refuses the
same kernels with a sentence and the line.  So where Numba fails to compile or launch one, the error keeps its type and
text and gains a note (PEP 678), which Python prints under it: what the interpreter has to say about the same source,
argument types and launch configuration.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

#: What the driver reports about a launch, and what that means; the interpreter knows nothing of registers.
_DRIVER = {
    "LAUNCH_OUT_OF_RESOURCES": "the launch asks for more than an SM has: registers a thread times threads a block are "
    "at most 65,536. Launch smaller blocks, or limit the registers: @cuda.jit(max_registers=...).",
    "INVALID_VALUE": "the driver rejects the launch configuration: look at the grid, the block and the dynamic shared "
    "memory.",
    "ILLEGAL_ADDRESS": "a thread accessed memory outside its arrays. PMPP_BACKEND=simt runs the same kernel in the "
    "interpreter, which names the line, the thread and the index.",
    "MISALIGNED_ADDRESS": "a 128-bit access did not start at a multiple of 16 bytes. PMPP_BACKEND=simt runs the same "
    "kernel in the interpreter, which names the line and the thread.",
}


def explain(
    error: BaseException,
    py_func: Any,
    args: Sequence[Any],
    grid: Any = 1,
    block: Any = 1,
    sharedmem: int = 0,
) -> str | None:
    """What `error`, raised by Numba for this kernel, means; None where there is nothing to add.

    py_func  the kernel's Python function
    args     its arguments or their Numba types
    grid, block, sharedmem  the launch configuration
    """
    from pmpp import simt

    refused = simt.refusal(py_func, args, grid, block, sharedmem=sharedmem)
    if refused is not None:
        return f"In plain words: {refused}"
    text = str(error)
    return next((f"In plain words: {meaning}" for name, meaning in _DRIVER.items() if name in text), None)


def annotate(error: BaseException, *launch: Any) -> None:
    """Add the explanation to an error, once; a failure to explain changes nothing."""
    if any(note.startswith("In plain words") for note in getattr(error, "__notes__", ())):
        return
    try:
        note = explain(error, *launch)
    except Exception:  # the reader is to see Numba's error, not one about explaining it
        return
    if note:
        error.add_note(note)


def install(dispatcher: Any = None) -> None:
    """Make Numba's kernels annotate the errors of their compilation and launch.  `dispatcher`: their class."""
    if dispatcher is None:
        from numba.cuda.dispatcher import CUDADispatcher as dispatcher
    if getattr(dispatcher, "_pmpp_translates", False):
        return
    dispatcher._pmpp_translates = True
    compile_, call = dispatcher.compile, dispatcher.call

    @functools.wraps(compile_)
    def compile_annotated(self: Any, sig: Any) -> Any:
        try:
            return compile_(self, sig)
        except Exception as error:
            types = getattr(sig, "args", sig)
            annotate(error, self.py_func, types if isinstance(types, (tuple, list)) else ())
            raise

    @functools.wraps(call)
    def call_annotated(self: Any, args: Any, launch_config: Any) -> Any:
        try:
            return call(self, args, launch_config)
        except Exception as error:
            c = launch_config
            annotate(error, self.py_func, args, tuple(c.griddim), tuple(c.blockdim), c.sharedmem)
            raise

    dispatcher.compile, dispatcher.call = compile_annotated, call_annotated
