"""What every test shares: the backend, hypothesis' profile, and a compiler to PTX that needs no GPU.

The tests run on whichever backend `pmpp.runtime.device` chooses: `make test` asks for the interpreter with every launch
checked, `make test-gpu` for the GPU.
"""

import os

os.environ.setdefault("PMPP_CHECK", "1")  # a plain `pytest` checks every launch, too
os.environ.setdefault("MPLBACKEND", "agg")  # no windows

import gc
import sys

import hypothesis
import numpy as np
import pytest

from pmpp.runtime import device
from tests.support.budget import Budget
from tests.support.compiled import Spy, compile_ptx

# With it jsonschema could check addresses, of which notebooks have none; and whoever imports nbformat imports it, which
# takes 2.4 s of CPU time in each process. JupyterLab brings it along.
sys.modules.setdefault("rfc3987_syntax", None)

# The same examples on every run: a red build is a reason to read the change, not to run it again.
hypothesis.settings.register_profile("pmpp", max_examples=25, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("pmpp")


def pytest_configure(config):
    config.pluginmanager.register(Budget(), "budget of a room")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without the search for circular garbage: it takes a fifth of the time in which 20,000 tests are collected.

    They stay to the end, so they need not be searched later either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not device.on_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        native = item.get_closest_marker("native")
        if native and sys.platform == "emscripten":
            item.add_marker(pytest.mark.skip(reason=f"needs {native.args[0]}, which a browser has not"))


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)


@pytest.fixture(scope="session")
def ptx():
    """``ptx(kernel, *arguments, cc=OLDEST, opt=True) -> str``: what Numba's compiler makes of a kernel.

    ``kernel`` is a function or a kernel of either backend. The arguments are Numba types, or values of the kind that a
    launch is given (arrays of either backend, NumPy arrays, numbers, tuples), of which only the types matter.
    ``opt=False`` leaves the optimiser out, for a test that asks only whether a kernel compiles.
    """
    pytest.importorskip("numba_cuda", reason='the compiler to PTX is not installed: pip install -e ".[ptx]"')
    return compile_ptx


@pytest.fixture
def spy(monkeypatch):
    """``spy(kernel) -> Spy``: put one in place of a kernel, in every module of a subject that has it as a global."""

    def place(kernel):
        placed = Spy(kernel)
        for module in [module for name, module in sys.modules.items() if name.startswith("pmpp.kernels.")]:
            for name, value in list(vars(module).items()):
                if value is kernel:
                    monkeypatch.setattr(module, name, placed)
        return placed

    return place
