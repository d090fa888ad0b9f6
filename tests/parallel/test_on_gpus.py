"""Ranks with a GPU each: what is asked of NCCL, by a stand-in that any machine has, and runs on two GPUs and more."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.parallel import environment, on_gpus, peers, run
from pmpp.parallel.data import DataParallel
from pmpp.parallel.group import Group, Transport
from pmpp.parallel.on_gpus import OverNccl
from pmpp.parallel.switchboard import Mismatch
from pmpp.runtime import device
from pmpp.simt.host.arrays import storage_at
from tests.parallel import everything, long_arrays

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="the stand-in reads the interpreter's memory")
HANG = 120  # seconds after which a run is ended
# Of nccl.h, ncclDataType_t; a bool travels as ncclUint8.
KINDS = {1: np.bool_, 2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64}
OPS = ("sum", "prod", "max", "min", "mean")  # ncclRedOp_t, from 0


# -------------------------------------------------------------------------------------------------- a stand-in for NCCL


def memory(address, count, kind):
    """The elements at an address of the interpreter, to be read and written."""
    storage, start = storage_at(address)
    storage.written()
    flat, width = storage.values.reshape(-1).view(np.uint8), np.dtype(kind).itemsize
    return flat[start : start + count * width].view(kind)


class Communicator:
    """The methods of CuPy's NcclCommunicator, with their arguments in its order, over messages of a host group."""

    def __init__(self, module, host):
        self.module, self.host = module, host

    def rank_id(self):
        return self.host.rank

    def size(self):
        return self.host.size

    def allReduce(self, source, target, count, kind, op, stream):
        found = self.host.all_reduce(memory(source, count, KINDS[kind]).copy(), OPS[op])
        memory(target, count, KINDS[kind])[:] = device.to_host(found)

    def reduce(self, source, target, count, kind, op, root, stream):
        found = self.host.reduce(memory(source, count, KINDS[kind]).copy(), root, OPS[op])
        if self.host.rank == root:
            memory(target, count, KINDS[kind])[:] = device.to_host(found)

    def broadcast(self, source, target, count, kind, root, stream):
        found = self.host.broadcast(memory(source, count, KINDS[kind]).copy(), root)
        memory(target, count, KINDS[kind])[:] = device.to_host(found)

    def allGather(self, source, target, count, kind, stream):
        found = device.to_host(self.host.all_gather(memory(source, count, KINDS[kind]).copy()))
        memory(target, count * self.size(), KINDS[kind])[:] = found.reshape(-1)

    def reduceScatter(self, source, target, count, kind, op, stream):
        rows = memory(source, count * self.size(), KINDS[kind]).reshape(self.size(), count).copy()
        memory(target, count, KINDS[kind])[:] = device.to_host(self.host.reduce_scatter(rows, OPS[op]))

    def send(self, source, count, kind, peer, stream):
        data = memory(source, count, KINDS[kind]).copy()
        if self.module.group is not None:
            self.module.group.append(("send", self, peer, data))
        else:
            self.host.send(data, peer)

    def recv(self, target, count, kind, peer, stream):
        data = memory(target, count, KINDS[kind])
        if self.module.group is not None:
            self.module.group.append(("recv", self, peer, data))
        else:
            data[:] = device.to_host(self.host.recv(device.empty(count, KINDS[kind]), peer))


class Module:
    """CuPy's module of NCCL, of one rank."""

    host = group = None
    identifier = bytes(range(128))

    def get_unique_id(self):
        return self.identifier

    def NcclCommunicator(self, size, identifier, rank):
        assert (size, identifier, rank) == (self.host.size, self.get_unique_id(), self.host.rank)
        return Communicator(self, self.host)

    def groupStart(self):
        self.group = []

    def groupEnd(self):
        """Send and receive at once: what goes s places further on meets what comes from s places before."""
        calls, self.group = self.group, None
        ends = {"send": {}, "recv": {}}
        for name, communicator, peer, data in calls:
            rank, size = communicator.rank_id(), communicator.size()
            ends[name][(peer - rank if name == "send" else rank - peer) % size] = communicator, peer, data
        for places in sorted({*ends["send"], *ends["recv"]}):
            (communicator, to, data), (_, source, box) = ends["send"][places], ends["recv"][places]
            if places == 0:
                box[:] = data
            else:
                arrived = device.empty(box.shape, box.dtype)
                box[:] = device.to_host(communicator.host.send_recv(data, to, arrived, source))


class StandIn(OverNccl):
    """The transport, with the stand-in."""

    def join(self, host, name):
        self._nccl.host = host
        super().join(host, name)


def with_stand_in(host):
    """The group of a rank of `parallel.ranks`, as `on_gpus.group` makes it of processes."""
    return Group(StandIn(host, Module()), host.rank, host.members)


@interpreter_only
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("checked", ["", "1"])
def test_every_call_asks_nccl_for_the_right_thing(size, checked, monkeypatch, unchecked):
    monkeypatch.setenv("PMPP_CHECK", checked)
    found = everything.by_ranks(size, lambda host: everything.results(with_stand_in(host)))
    assert found == everything.on_gpus(everything.by_ranks(size))


@interpreter_only
def test_calls_that_do_not_fit_are_named_where_calls_are_checked(monkeypatch):
    def differ(host):
        group = with_stand_in(host)
        return group.all_reduce(np.zeros(3 + group.rank)) if group.rank else group.all_gather(np.zeros(3))

    monkeypatch.setenv("PMPP_CHECK", "1")
    with pytest.raises(Mismatch, match=r"rank 0 .*all_gather.*test_on_gpus.py:\d+"):
        parallel.ranks(2, differ)


@interpreter_only
def test_the_identifier_may_be_a_tuple(monkeypatch, unchecked):
    monkeypatch.setattr(Module, "identifier", tuple(range(-64, 64)))
    found = parallel.ranks(2, lambda host: with_stand_in(host).all_reduce(np.ones(2)).copy_to_host().tolist())
    assert found == [[2.0, 2.0]] * 2


@interpreter_only
def test_only_the_root_knows_the_shape(unchecked):
    def shapeless(host):
        group = with_stand_in(host)
        group.broadcast(np.zeros(3) if group.rank == 0 else None)

    with pytest.raises(TypeError, match="x or out must be an array on backend 'nccl', were None"):
        parallel.ranks(2, shapeless)


@interpreter_only
def test_a_call_says_where_it_stands_only_if_somebody_asks(monkeypatch):
    def where(host):
        return with_stand_in(host)._request("barrier").where

    monkeypatch.setenv("PMPP_CHECK", "1")
    assert re.search(r"test_on_gpus.py:\d+", parallel.ranks(1, where)[0])
    monkeypatch.setenv("PMPP_CHECK", "0")
    assert parallel.ranks(1, where) == [""]


class Carried(Transport):
    """Notes what it is to carry."""

    direct, named = True, False

    def __init__(self):
        self.calls = []

    def carry(self, request, sent, out, stream):
        self.calls.append((request, sent, out))
        return out


class Layout:
    """As that of an array on a GPU: one object for all arrays of a shape and dtype."""

    nbytes = 32


@interpreter_only
def test_what_was_found_right_before_is_not_checked_again(monkeypatch):
    whole = device.to_device(np.zeros(24, np.float32))
    x, out, across = whole[:8], whole[8:16], whole[12:20]
    layout = Layout()
    for array in (x, out, across):
        array.form, array.layout, array.pointer = None, layout, device.address(array)
    transport, looked = Carried(), []
    group = Group(transport, 0, (0, 1))
    look = device.as_input
    monkeypatch.setattr(
        device, "as_input", lambda name, *args, **more: looked.append(name) or look(name, *args, **more)
    )
    group.all_reduce(x, out=out)
    assert looked
    looked.clear()
    group.all_reduce(x, out=out)
    group.all_reduce(out, out=x)
    assert not looked
    group.all_reduce(x, "max", out=out)  # another operation
    assert looked
    looked.clear()
    foreign = whole[:8]
    foreign.layout = layout  # PyTorch's arrays have another thing of that name
    group.all_reduce(foreign, out=out)
    assert looked
    first, second, third, fourth, _ = transport.calls
    assert first[0]._replace(number=0) == second[0]._replace(number=0) == third[0]._replace(number=0)
    assert (third[1], third[2], fourth[0].op) == (out, x, "max")
    with pytest.raises(ValueError, match="out must be x itself or share no memory with it"):
        group.all_reduce(out, out=across)


# ------------------------------------------------------------------------------------------------------- who is refused


def test_another_backend_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="backend must be 'nccl' or 'peer', was 'gloo'"):
        parallel.init("gloo")
    monkeypatch.setenv(environment.CHOICE, "gloo")
    with pytest.raises(ValueError, match="PMPP_GROUP must be 'nccl' or 'peer', was 'gloo'"):
        parallel.init()


@interpreter_only
@pytest.mark.parametrize("backend", environment.BACKENDS)
def test_without_a_gpu_it_is_said_why(backend, monkeypatch):
    with pytest.raises(RuntimeError, match=f"backend '{backend}' needs a GPU for each rank; kernels run in the interp"):
        parallel.init(backend)
    monkeypatch.setenv(environment.CHOICE, backend)
    with pytest.raises(RuntimeError, match="needs a GPU for each rank"):
        parallel.init()


def test_ranks_in_one_process_stay_there(monkeypatch):
    monkeypatch.setenv(environment.CHOICE, "nccl")
    assert parallel.ranks(2, lambda group: parallel.init() is group) == [True, True]
    with pytest.raises(RuntimeError, match="needs a process for each rank"):
        parallel.ranks(2, lambda group: parallel.init("peer"))


class Gpus:
    """A module with as many GPUs."""

    def __init__(self, count):
        self.gpus, self.chosen = range(count), None

    def select_device(self, number):
        self.chosen = number


@pytest.mark.parametrize(
    "given, rank, chosen",
    [
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, 5, 1),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, 3, 3),
        ({}, 0, 0),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_on_the_machine(given, rank, chosen, monkeypatch):
    gpus = Gpus(4)
    monkeypatch.setattr(on_gpus, "place", lambda: environment.place(given))
    monkeypatch.setattr(on_gpus.device, "backend", lambda: type("Backend", (), {"cuda": gpus}))
    host = type("Host", (), {"rank": rank})
    assert on_gpus.choose_gpu(host, "nccl") == gpus.chosen == chosen
    gpus.gpus = range(chosen)
    with pytest.raises(RuntimeError, match=f"this machine shows {chosen}: rank {rank} would use GPU {chosen}"):
        on_gpus.choose_gpu(host, "nccl")


# ------------------------------------------------------------------------------------------------------ on several GPUs


GPUS = len(device.backend().cuda.gpus) if device.on_gpu() else 0
needs_two = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
more = [pytest.param(ranks, marks=pytest.mark.skipif(ranks > GPUS, reason=f"needs {ranks} GPUs")) for ranks in (3, 4)]
numbers_of_ranks = pytest.mark.parametrize("ranks", [pytest.param(2, marks=needs_two), *more])


def rounded(name):
    """Whether a call adds or multiplies floats: of more than two ranks, each algorithm has its own order.

    Integers are compared to the bit all the same, and `long_arrays` compares sums of floats with NumPy's.
    """
    added = name.startswith(("all_reduce", "reduce")) and any(f" {op} float" in name for op in ("sum", "prod", "mean"))
    return added or name == "in place"


@pytest.mark.gpu
@numbers_of_ranks
@pytest.mark.parametrize("checked", ["", "1"])
@pytest.mark.parametrize("backend", environment.BACKENDS)
def test_every_call_on_several_gpus(backend, checked, ranks, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PMPP_CHECK", checked)
    arguments = ["-n", str(ranks), "--backend", backend, "--timeout", str(HANG), "-m", "tests.parallel.everything"]
    assert run.main([*arguments, str(tmp_path)]) == 0, capsys.readouterr()
    found = [json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(ranks)]
    for mine, wanted in zip(found, everything.on_gpus(everything.by_ranks(ranks)), strict=True):
        assert set(mine) == set(wanted)
        for name, right in wanted.items():
            if ranks > 2 and rounded(name) and right is not None:
                assert mine[name][:2] == right[:2], f"{name}: dtype and shape"
            else:
                assert mine[name] == right, name
    for name in found[0]:
        if name.startswith("all_reduce") or name == "in place":
            assert all(mine[name] == found[0][name] for mine in found), f"{name}: ranks have different bits"
    assert sorted(re.findall(rf"rank \d of {ranks}, \w+", capsys.readouterr().out)) == [
        f"rank {rank} of {ranks}, {backend}" for rank in range(ranks)
    ]


@pytest.mark.gpu
@numbers_of_ranks
@pytest.mark.parametrize("backend", environment.BACKENDS)
def test_long_arrays_on_several_gpus(backend, ranks, monkeypatch, capsys):
    monkeypatch.setenv("PMPP_CHECK", "")
    arguments = ["-n", str(ranks), "--backend", backend, "--timeout", str(HANG), "-m", "tests.parallel.long_arrays"]
    assert run.main(arguments) == 0, capsys.readouterr()
    assert capsys.readouterr().out.count(f"of {ranks}, {backend}: right") == ranks


@interpreter_only
def test_the_program_for_long_arrays_is_right_itself(monkeypatch, unchecked):
    monkeypatch.setattr(long_arrays, "LENGTHS", (1, 13))
    parallel.ranks(2, long_arrays.check)


STARTERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
}


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize("starter", STARTERS)
def test_other_starters(starter, tmp_path):
    command, program = STARTERS[starter], ["-m", "tests.parallel.everything", str(tmp_path)]
    if starter == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("needs mpirun")
        pytest.importorskip("mpi4py")
        command = [*command, sys.executable]
    else:
        pytest.importorskip("torch")
        command = [sys.executable, *command]
    given = {**os.environ, environment.CHOICE: "peer", "PMPP_CHECK": ""}
    ended = subprocess.run([*command, *program], env=given, capture_output=True, text=True, timeout=HANG, check=False)
    assert ended.returncode == 0, ended.stderr
    wanted = everything.on_gpus(everything.by_ranks(2))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) == wanted[rank]


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize("backend", environment.BACKENDS)
@pytest.mark.parametrize(
    "how, status, said",
    [
        ("raise", 1, r"rank 1 raised ValueError at .*endings.py:\d+"),
        ("sys.exit", 3, r"rank 1 called sys.exit\(3\) at .*endings.py:\d+"),
        ("SIGKILL", 137, r"rank 1 was killed by signal 9 \(SIGKILL\)"),
    ],
)
def test_a_rank_that_fails_ends_one_that_waits_on_its_gpu(backend, how, status, said, monkeypatch, capsys):
    monkeypatch.setenv("PMPP_CHECK", "")
    arguments = ["-n", "2", "--backend", backend, "--timeout", str(HANG), "-m", "tests.parallel.endings", how]
    assert run.main(arguments) == status
    assert re.search(said, capsys.readouterr().err)


def test_sums_beside_other_work_have_few_blocks():
    long = 1 << 28
    assert peers._wide_grid(long)[0] == peers.WIDE_GRID
    assert peers._wide_grid(1 << 22)[0] == peers.SHARING_GRID
    assert {peers._wide_grid(n, True)[0] for n in (long, 1 << 22)} == {peers.BESIDE_GRID}
    assert peers._wide_grid(4096, True) == peers._wide_grid(4096) == (1, 1)


def test_a_bucket_is_summed_beside_other_work(monkeypatch):
    wishes = []
    shared = Transport.shared
    monkeypatch.setattr(
        Transport,
        "shared",
        lambda self, name, shape, dtype, beside_work: wishes.append(beside_work) or shared(self, name, shape, dtype),
    )
    DataParallel(parallel.init(), nn.Linear(1, 1))
    assert wishes == [True]
    with pytest.raises(TypeError, match="beside_work must be"):
        parallel.init().shared(1, np.float32, beside_work=3)


class Recorder:
    """In the place of a kernel, or of a copy: notes what is queued, on which stream, with which arguments."""

    def __init__(self, queued, name):
        self.queued, self.name = queued, name

    def __getitem__(self, launch):
        return lambda *arguments: self.queued.append((launch[2], self.name, arguments))


@interpreter_only
def test_a_slot_is_written_again_only_when_the_other_rank_has_read_it(monkeypatch):
    """A rank may write into a slot if it has met the other one since that has added what the slot had."""
    queued, waits = [], []
    for name in ("meet_kernel", "arrived_kernel"):
        monkeypatch.setattr(peers.peers, name, Recorder(queued, name.partition("_")[0]))
    monkeypatch.setattr(peers, "copy", lambda to, source, nbytes, stream: queued.append((stream, "copy", (to, nbytes))))
    monkeypatch.setattr(peers, "sending_stream", lambda: 7)
    monkeypatch.setattr(peers, "wait_for", lambda producer, consumer: waits.append((producer, consumer)))
    monkeypatch.setattr(peers, "PIECE", 8)
    boxes = object.__new__(peers.Boxes)
    boxes.rank, boxes.size, boxes.slots, boxes.flags, boxes.lost = 0, 2, (10_000, 20_000), (0, 0), None
    boxes.lanes = [peers.Lane(boxes, number) for number in range(2)]
    x = device.to_device(np.zeros(6 * 8 + 4, np.float32))
    for _ in range(3):  # the number of pieces of a lane is even and odd
        boxes._copied(x, x, 0, 5, 2)
    assert waits == [(5, 5), (5, 7), (7, 5)] * 3  # the second lane begins and ends with the stream
    for stream in (5, 7):
        meetings, added, written = 0, {}, []
        for its, what, arguments in queued:
            if its != stream:
                continue
            if what == "meet":
                meetings += 1
            elif what == "copy":
                slot = (arguments[0] - 20_000) // 4
                assert meetings > added.get(slot, 0), "written before the other rank has read it"
                written.append((slot, meetings, arguments[1]))
            else:
                slot, copied, nbytes = written[-1][0], *written[-1][1:]
                assert arguments[5] == slot, "added from another slot than the one that was written"
                assert meetings == copied + 1, "added before the other rank's copy is there"
                assert 4 * arguments[-1] == nbytes
                added[slot] = meetings
        assert len(added) == 2
        assert len(written) == 3 * (4 if stream == 5 else 3)
    assert sum(nbytes for _, what, (*_, nbytes) in queued if what == "copy") == 3 * x.nbytes
