"""The two bindings of NCCL: which one is taken, and that both are asked for the same."""

import importlib.util
import json

import pytest

from pmpp.parallel import nccl, on_gpus, run
from pmpp.parallel.group import Group
from pmpp.runtime import device
from tests.parallel import everything
from tests.parallel.test_on_gpus import HANG, Module, StandIn, interpreter_only, needs_two


class Unique:
    """An identifier, as nccl4py has it."""

    def __init__(self, data=Module.identifier):
        self.data = data

    def __bytes__(self):
        return self.data

    @classmethod
    def from_buffer(cls, data):
        return cls(data)


class Bindings:
    """``nccl.bindings.nccl``, with its order of arguments, over the stand-in of CuPy's module."""

    UniqueId = Unique

    def __init__(self, module):
        self.module = module
        self.group_start, self.group_end = module.groupStart, module.groupEnd

    def get_unique_id(self):
        return Unique()

    def comm_init_rank(self, size, unique, rank):
        return self.module.NcclCommunicator(size, bytes(unique), rank)

    def comm_user_rank(self, comm):
        return comm.rank_id()

    def comm_count(self, comm):
        return comm.size()

    def all_reduce(self, source, target, count, dtype, op, comm, stream):
        comm.allReduce(source, target, count, dtype, op, stream)

    def reduce(self, source, target, count, dtype, op, root, comm, stream):
        comm.reduce(source, target, count, dtype, op, root, stream)

    def broadcast(self, source, target, count, dtype, root, comm, stream):
        comm.broadcast(source, target, count, dtype, root, stream)

    def all_gather(self, source, target, count, dtype, comm, stream):
        comm.allGather(source, target, count, dtype, stream)

    def reduce_scatter(self, source, target, count, dtype, op, comm, stream):
        comm.reduceScatter(source, target, count, dtype, op, stream)

    def send(self, source, count, dtype, peer, comm, stream):
        comm.send(source, count, dtype, peer, stream)

    def recv(self, target, count, dtype, peer, comm, stream):
        comm.recv(target, count, dtype, peer, stream)


class OverBindings(StandIn):
    """The transport, with nccl4py's names between."""

    def join(self, host, name):
        self._nccl.bindings.module.host = host
        on_gpus.OverNccl.join(self, host, name)


def with_nccl4py(host):
    return Group(OverBindings(host, nccl.Nccl4py(Bindings(Module()))), host.rank, host.members)


@interpreter_only
@pytest.mark.native("threads")
@pytest.mark.parametrize("size", [1, 2])
def test_every_call_asks_nccl4py_for_the_right_thing(size, unchecked):
    found = everything.by_ranks(size, lambda host: everything.results(with_nccl4py(host)))
    assert found == everything.on_gpus(everything.by_ranks(size))


def missing(*names):
    """An import that knows nothing of these packages."""

    def load(name, package=None):
        if name.split(".")[0] in names:
            raise ImportError(f"no {name}")
        return name

    return load


@pytest.mark.parametrize(
    "lacks, chosen, taken",
    [
        ((), {}, "cupy.cuda.nccl"),
        (("cupy",), {}, "nccl.bindings.nccl"),
        ((), {nccl.CHOICE: "nccl4py"}, "nccl.bindings.nccl"),
        ((), {nccl.CHOICE: "cupy"}, "cupy.cuda.nccl"),
        ((), {nccl.CHOICE: ""}, "cupy.cuda.nccl"),
    ],
)
def test_which_binding_is_taken(lacks, chosen, taken, monkeypatch):
    monkeypatch.setattr(nccl.importlib, "import_module", missing(*lacks))
    monkeypatch.setattr(nccl, "Nccl4py", lambda bindings: bindings)
    assert nccl.binding(chosen) == taken


def test_where_none_is_installed_it_is_said_of_each(monkeypatch):
    monkeypatch.setattr(nccl.importlib, "import_module", missing("cupy", "nccl"))
    with pytest.raises(ImportError, match=r"cupy: no cupy\.cuda\.nccl; nccl4py: no nccl\.bindings\.nccl"):
        nccl.binding({})
    with pytest.raises(ImportError, match=r"^nccl4py: no nccl"):
        nccl.binding({nccl.CHOICE: "nccl4py"})
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    with pytest.raises(RuntimeError, match=r"backend 'peer' needs NCCL, and no binding of it could be imported \(cupy"):
        on_gpus.library("peer")


def test_another_binding_is_refused():
    with pytest.raises(ValueError, match="PMPP_NCCL must be 'cupy' or 'nccl4py', was 'mpi'"):
        nccl.binding({nccl.CHOICE: "mpi"})


HAS_NCCL4PY = importlib.util.find_spec("nccl") is not None


@pytest.mark.skipif(not HAS_NCCL4PY, reason="needs nccl4py")
def test_nccl4py_has_the_functions_that_are_asked_for():
    bindings = importlib.import_module("nccl.bindings.nccl")
    names = [name for name in vars(Bindings) if not name.startswith("_")]
    assert [name for name in names if not hasattr(bindings, name)] == []


@pytest.mark.gpu
@needs_two
@pytest.mark.skipif(not HAS_NCCL4PY, reason="needs nccl4py")
def test_every_call_on_two_gpus_by_nccl4py(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(nccl.CHOICE, "nccl4py")
    monkeypatch.setenv("PMPP_CHECK", "")
    arguments = ["-n", "2", "--backend", "nccl", "--timeout", str(HANG), "-m", "tests.parallel.everything"]
    assert run.main([*arguments, str(tmp_path)]) == 0, capsys.readouterr()
    wanted = everything.on_gpus(everything.by_ranks(2))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) == wanted[rank]
