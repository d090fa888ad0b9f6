"""pmpp: a workbook for learning GPU programming in Python.

Kernels are written against one name, ``from pmpp import cuda``. It is ``numba.cuda`` where a GPU is usable and
``pmpp.simt.cuda``, the interpreter, everywhere else. ``python -m pmpp`` says which one is in use and why.
"""

from __future__ import annotations

import typing

__version__ = "0.1.0"
__all__ = ["__version__", "cuda"]


def __getattr__(name: str) -> typing.Any:
    # Chosen when a kernel first asks: `import pmpp` stays light, and cannot fail for want of a GPU.
    if name == "cuda":
        from pmpp.runtime import device

        globals()["cuda"] = device.backend().cuda
        return globals()["cuda"]
    raise AttributeError(f"module 'pmpp' has no attribute {name!r}")
