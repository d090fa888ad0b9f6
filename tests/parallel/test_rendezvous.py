"""Ranks that torchrun, srun, or somebody by hand has started: processes with these variables set."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from pmpp.parallel import environment, rendezvous
from pmpp.parallel.environment import carried_by, place
from pmpp.parallel.rendezvous import Door, Meeting, connect, first_host, meeting
from tests.parallel import everything

pytestmark = [
    pytest.mark.native("processes"),
    pytest.mark.skipif(os.name == "nt", reason="ranks are processes of Unix here"),
]
HANG = 60  # seconds after which a test that waits gives up
SET = {name for one in (*environment.STARTERS, environment.BY_HAND) for name in (*one[1:5], *one.needs, one.mark)}


def free_port():
    """A port at which nobody listens, nor at those that follow, as far as can be known."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def torchrun(rank, size, port):
    """What torchrun sets, which has a store of its own at MASTER_PORT."""
    return {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def by_hand(rank, size, port):
    return {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}


def srun(rank, size, port):
    """What srun sets on one machine. The port follows from the number of the job."""
    return {
        "SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_LOCALID": rank, "SLURM_JOB_ID": port,
        "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": size,
    }  # fmt: skip


def start(made, size, *arguments, ranks=None, port=None, **more):
    """Processes with the variables of a starter."""
    port = free_port() if port is None else port
    usual = {name: value for name, value in os.environ.items() if name not in SET}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=usual | {name: str(value) for name, value in (made(rank, size, port) | more).items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (range(size) if ranks is None else ranks)
    ]


def ends(processes):
    """Status, output and messages of each."""
    try:
        found = [(process, *process.communicate(timeout=HANG)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out, err) for process, out, err in found]


def test_ranks_meet_and_get_the_same_bits_as_ranks_in_one_process(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as store:  # torchrun's
        port = store.getsockname()[1]
        found = ends(start(torchrun, 3, "-m", "tests.parallel.everything", str(tmp_path), port=port))
    wanted = everything.by_ranks(3)
    for rank, (status, out, err) in enumerate(found):
        assert (status, out, err) == (0, f"rank {rank} of 3, sockets\n", "")
        assert json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) == wanted[rank]


ENDING = """
import os, signal, sys, numpy as np
from pmpp import parallel
group, how = parallel.init(), sys.argv[1]
group.barrier()
if group.rank == 1:
    if how == "raise":
        raise ValueError("no more of this")
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "other call":
        group.broadcast(np.zeros(3))
    sys.exit()
group.all_reduce(np.ones(4))
"""
# How rank 1 ends, while rank 0 waits for it: what it says, and what rank 0 says.
ENDINGS = {
    "raise": (1, r"^rank 1 raised ValueError at .*program\.py:8\nTraceback", r"^rank 0 was ended: rank 1 raised Val"),
    "SIGKILL": (-9, "^$", r"^rank 0 was ended: rank 1 has gone without a word; it had last been in barrier at .*\n$"),
    "return": (0, "^$", r"RankEnded: rank 1 has ended \(it returned after barrier at .*\), and rank 0 waits for it in"),
    "other call": (1, r"Mismatch: ranks disagree: .*rank 1 calls broadcast\(root=0\)|^rank 1 was ended", "ank 0 "),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_rank_that_fails_ends_the_others(how, tmp_path):
    status, said, told = ENDINGS[how]
    (tmp_path / "program.py").write_text(ENDING, encoding="utf-8")
    other, one = ends(start(by_hand, 2, str(tmp_path / "program.py"), how, PYTHONPATH=os.getcwd()))
    assert one[0] == status
    assert re.search(said, one[2]), one[2]
    assert other[0] == 1
    assert re.search(told, other[2]), other[2]
    if how == "other call":
        assert (one[2] + other[2]).count("Mismatch: ranks disagree") == 1


EARLY = """
import atexit, os, pathlib, sys, time, numpy as np
from pmpp import parallel
from pmpp.runtime import device

def at_the_very_end():  # as where NCCL lets go of a communicator: rank 0 has to do so, too
    here, until = pathlib.Path(sys.argv[1]), time.monotonic() + 30
    if os.environ["RANK"] == "0":
        here.touch()
    while not here.exists():
        assert time.monotonic() < until, "rank 0 waits for this process to end"
        time.sleep(0.01)

atexit.register(at_the_very_end)
group = parallel.init()
half = group.split(int(group.rank == 0))
if group.rank:
    for _ in range(3):
        x = half.all_reduce(np.array([group.rank]))
    print(device.to_host(x))
"""


def test_a_rank_that_returns_first_keeps_carrying_messages_and_waits_for_no_process(tmp_path):
    script = tmp_path / "early.py"
    script.write_text(EARLY, encoding="utf-8")
    given = {"PMPP_KEY": "a secret", "PYTHONPATH": os.getcwd()}
    found = ends(start(by_hand, 3, str(script), str(tmp_path / "over"), **given))
    assert found == [(0, "", ""), (0, "[3]\n", ""), (0, "[3]\n", "")]


def test_rank_0_is_missed_and_a_rank_that_never_comes_is_named(tmp_path):
    one = "from pmpp import parallel; parallel.init()"
    host = start(by_hand, 3, "-c", one, ranks=[0], PMPP_JOIN_SECONDS=0.5)
    lonely = start(by_hand, 3, "-c", one, ranks=[2], PMPP_JOIN_SECONDS=0.3)
    ((first, _, said),) = ends(host)
    ((second, _, told),) = ends(lonely)
    assert first == second == 1
    assert "RuntimeError: ranks 1 and 2 have not come in 0.5 s (PMPP_JOIN_SECONDS)" in said
    assert re.search(r"RuntimeError: rank 2 has not found rank 0 at localhost, ports \d+ to \d+, in 0.3 s", told)


def test_when_rank_0_is_killed_the_others_end():
    """Started as srun does it: there the port follows from the number of the job."""
    code = "import os, signal; from pmpp import parallel; group = parallel.init(); group.barrier()\n"
    code += "if group.rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ngroup.barrier()"
    found = ends(start(srun, 2, "-c", code))
    assert [status for status, _, _ in found] == [-9, 1]
    assert found[1][2] == "rank 1 was ended: the connection to rank 0, which carries all messages, has ended\n"


def test_a_process_that_a_rank_starts_is_no_rank():
    inner = [sys.executable, "-c", "from pmpp import parallel; parallel.init()"]
    code = "import subprocess; from pmpp import parallel; group = parallel.init()\n"
    code += f"if group.rank == 0: print(subprocess.run({inner!r}, stderr=subprocess.PIPE, text=True).stderr)"
    (status, out, _), (other, *_) = ends(start(by_hand, 2, "-c", code))
    assert (status, other) == (0, 0)
    assert re.search(r"RuntimeError: process \d+ is rank 0 already, and has started this one", out)


# --------------------------------------------------------------------------------------------------- who is let in


def at_home(port=None, key=b"of this run", seconds=5.0):
    return Meeting("127.0.0.1", port or free_port(), key, seconds)


def test_a_stranger_is_not_let_in_and_a_port_in_use_is_passed_over(monkeypatch):
    monkeypatch.setattr(rendezvous, "HANDSHAKE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        where = at_home(silent.getsockname()[1])
        door = Door(where)
        assert where.port < door.address[1] < where.port + rendezvous.PORTS
        refused = []

        def accept():
            until = time.monotonic() + HANG
            while time.monotonic() < until:
                try:
                    refused.append(door.accept())
                    return
                except TimeoutError:
                    continue
                except (OSError, EOFError) as error:
                    refused.append(error)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(RuntimeError, match=r"rank 7 has not found rank 0 at 127.0.0.1, ports .*is none of us"):
            connect(where._replace(key=b"of another run", seconds=0.0), 7)
        with socket.create_connection(door.address) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        socket.create_connection(door.address).close()
        mine = connect(where, 1)
        thread.join()
        mine.send_bytes(b"here")
        assert refused.pop().recv_bytes() == b"here"
        assert len(refused) >= 3
        assert all(isinstance(error, OSError | EOFError) for error in refused)
        mine.close()
        door.close()


def test_no_free_port(monkeypatch):
    monkeypatch.setattr(rendezvous, "PORTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf"rank 0 cannot listen at 127.0.0.1, ports {port} to {port}: "):
            Door(at_home(port))


# ------------------------------------------------------------------------------------------------ from the environment


def strings(variables):
    return {name: str(value) for name, value in variables.items()}


def where(variables, **more):
    given = strings(variables | more)
    return meeting(place(given), given)


def test_where_ranks_meet():
    assert where(torchrun(1, 4, 29500))[:2] == ("127.0.0.1", 29501)
    assert where(torchrun(1, 4, 29500), TORCHELASTIC_USE_AGENT_STORE="False")[:2] == ("127.0.0.1", 29500)
    assert where(by_hand(1, 4, 29500), PMPP_JOIN_SECONDS="7")[::3] == ("localhost", 7.0)
    first = where(srun(1, 4, 1234), SLURM_STEP_NODELIST="gpu[03-04]")
    assert first.host == "gpu03"
    assert 20_000 <= first.port < 32_768 - rendezvous.PORTS
    assert first == where(srun(3, 4, 1234), SLURM_STEP_NODELIST="gpu[03-04]")
    assert where(srun(1, 4, 1235)).port != where(srun(1, 4, 1234)).port
    assert where(srun(1, 4, 7), MASTER_ADDR="head", MASTER_PORT="99")[:2] == ("head", 99)


def test_the_key_is_that_of_the_run():
    same = where(torchrun(0, 4, 29500)).key
    assert where(torchrun(3, 4, 29500)).key == same
    others = [
        where(torchrun(3, 5, 29500)),
        where(torchrun(3, 4, 29501)),
        where(torchrun(3, 4, 29500), TORCHELASTIC_RESTART_COUNT="1"),
        where(torchrun(3, 4, 29500), PMPP_KEY="a secret"),
    ]
    assert len({same, *[other.key for other in others]}) == 5


@pytest.mark.parametrize(
    "variables, says",
    [
        (by_hand(0, 2, "none"), "MASTER_PORT must be a port from 1 to 65535, was 'none'"),
        (by_hand(0, 2, 70_000), "MASTER_PORT must be a port from 1 to 65535, was '70000'"),
        (by_hand(0, 2, 5000) | {"PMPP_JOIN_SECONDS": "soon"}, "PMPP_JOIN_SECONDS must be a number of seconds"),
        (by_hand(0, 2, 5000) | {"PMPP_JOIN_SECONDS": "nan"}, "PMPP_JOIN_SECONDS must be a number of seconds"),
        (srun(0, 2, 5) | {"SLURM_STEP_NODELIST": ""}, "srun has started this rank, and it is not known where ranks me"),
    ],
)
def test_what_is_wrong_is_named(variables, says):
    with pytest.raises(ValueError, match=says):
        where(variables)


@pytest.mark.parametrize(
    "nodes, host",
    [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[01,05]x,z", "n01x"), ("r[1-2]n[5-6]", "r1n5"), ("", "")],
)
def test_the_first_machine_of_a_list(nodes, host):
    assert first_host(nodes) == host


def test_under_srun_it_is_mpi_where_that_was_made_ready():
    given = strings(srun(1, 2, 5))
    found = place(given)
    assert carried_by(found, given) == "sockets"
    assert carried_by(found, given | {"PMIX_RANK": "1"}) == "mpi"
    assert carried_by(found, given | {"PMIX_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "5"}) == "sockets"
