"""Which rank a process is, from made-up environments of every starter."""

import re

import pytest

from pmpp.parallel import environment
from pmpp.parallel.environment import STARTERS, place

TORCH = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}


def torch(rank, size, **more):
    return {**TORCH, "RANK": str(rank), "WORLD_SIZE": str(size), **more}


def open_mpi(rank, size):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}


def srun(rank, size):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": "0"}


# what is set, and the starter's name, rank, size, local rank and local size
RIGHT = {
    "own": (
        {"PMPP_RANK": "1", "PMPP_SIZE": "4", "PMPP_ADDRESS": "/tmp/x"},
        ("pmpp.parallel.run", 1, 4, 1, 4),
    ),
    "torchrun": (
        {**TORCHRUN, **torch(5, 8, LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")},
        ("torchrun", 5, 8, 1, 4),
    ),
    "mpirun": (
        {**open_mpi(3, 4), "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        ("Open MPI's mpirun", 3, 4, 1, 2),
    ),
    "mpiexec": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
        ("MPICH's mpiexec", 0, 2, 0, 2),
    ),
    "srun": (srun(6, 8), ("srun", 6, 8, 0, None)),
    "by hand": (torch(1, 2), ("whoever set RANK and WORLD_SIZE", 1, 2, None, None)),
    "by hand, as mpirun says": ({**torch(1, 2), **open_mpi(1, 2)}, ("Open MPI's mpirun", 1, 2, None, None)),
    "only two by hand, as srun says": (
        {"RANK": "1", "WORLD_SIZE": "2", **srun(1, 2)},
        ("srun", 1, 2, 0, None),
    ),
    # One starter in another: the outer one has started machines or daemons.
    "mpirun in srun": ({**open_mpi(3, 8), **srun(1, 2)}, ("Open MPI's mpirun", 3, 8, None, None)),
    "torchrun in srun": ({**TORCHRUN, **torch(5, 8), **srun(1, 2)}, ("torchrun", 5, 8, None, None)),
    "torchrun in mpirun": ({**TORCHRUN, **torch(5, 8), **open_mpi(1, 2)}, ("torchrun", 5, 8, None, None)),
    "own in a batch job": (
        {"PMPP_RANK": "0", "PMPP_SIZE": "1", "PMPP_ADDRESS": "x", **torch(3, 4)},
        ("pmpp.parallel.run", 0, 1, 0, 1),
    ),
    "own, and what somebody else calls RANK": (
        {"PMPP_RANK": "0", "PMPP_SIZE": "1", "PMPP_ADDRESS": "x", "RANK": "none"},
        ("pmpp.parallel.run", 0, 1, 0, 1),
    ),
    "mpirun in what is left of srun": (
        {**open_mpi(3, 8), "SLURM_STEP_NUM_TASKS": "2"},
        ("Open MPI's mpirun", 3, 8, None, None),
    ),
}

ALONE = {
    "nothing": {},
    "other variables": {"PATH": "/bin", "LOCAL_RANK": "2", "MASTER_ADDR": "node1"},
    "a batch script of Slurm, which is one process": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "17"},
}

WRONG = {
    "rank without size": ({"PMI_RANK": "1"}, "PMI_RANK is set, but not PMI_SIZE: MPICH's mpiexec sets all of them"),
    "size without rank": ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but not RANK and MASTER_ADDR and MASTER_PORT"),
    "no address": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"},
        "RANK and WORLD_SIZE and MASTER_ADDR are set, but not MASTER_PORT",
    ),
    "torchrun without a rank": (TORCHRUN, "MASTER_ADDR and MASTER_PORT are set, but not RANK and WORLD_SIZE: torchrun"),
    "no number": (open_mpi("one", 2), "OMPI_COMM_WORLD_RANK must be an integer of at least 0, was 'one'"),
    "an empty one": (open_mpi("", 2), "OMPI_COMM_WORLD_RANK must be an integer of at least 0, was ''"),
    "another script's digits": (open_mpi("²", 3), "must be an integer of at least 0, was '²'"),
    "a negative one": (open_mpi(-1, 2), "must be an integer of at least 0, was '-1'"),
    "no ranks": (open_mpi(0, 0), "OMPI_COMM_WORLD_SIZE must be an integer of at least 1, was '0'"),
    "too large a rank": (open_mpi(4, 4), "OMPI_COMM_WORLD_RANK must be less than OMPI_COMM_WORLD_SIZE=4, was 4"),
    "too large a local rank": (
        torch(1, 4, LOCAL_RANK="2", LOCAL_WORLD_SIZE="2"),
        "LOCAL_RANK must be less than LOCAL_WORLD_SIZE=2, was 2",
    ),
    "more here than in all": (
        torch(1, 4, LOCAL_RANK="2", LOCAL_WORLD_SIZE="8"),
        "LOCAL_WORLD_SIZE must be at most WORLD_SIZE=4, was 8",
    ),
    "left over from another run": (
        {**torch(0, 4), **open_mpi(1, 2)},
        "RANK=0 and WORLD_SIZE=4 contradict OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 of Open MPI's mpirun: ",
    ),
    "the same rank everywhere": ({**torch(0, 2), **srun(1, 2)}, "contradict SLURM_PROCID=1 and SLURM_STEP_NUM_TASKS=2"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_place_is_read(name):
    variables, (starter, *numbers) = RIGHT[name]
    found = place(variables)
    assert (found.starter.name, *found[1:]) == (starter, *numbers)


@pytest.mark.parametrize("name", ALONE)
def test_a_process_that_nobody_has_started_is_alone(name):
    assert place(ALONE[name]) is None


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    variables, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        place(variables)


@pytest.mark.parametrize("starter", STARTERS, ids=lambda starter: starter.name)
def test_every_starter_has_a_right_case(starter):
    assert starter.name in {name for _, (name, *_) in RIGHT.values()}


def set_to(monkeypatch, variables):
    for starter in (*STARTERS, environment.BY_HAND):
        for name in (starter.rank, starter.size, starter.mark, *starter.needs):
            if name:
                monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_one_process_of_another_starter_is_alone(monkeypatch):
    for variables in ({**TORCHRUN, **torch(0, 1)}, open_mpi(0, 1), {}):
        set_to(monkeypatch, variables)
        assert environment.group() is None


def test_a_process_that_a_rank_has_started_is_no_rank(monkeypatch):
    set_to(monkeypatch, RIGHT["own"][0])
    with pytest.raises(RuntimeError, match=r"PMPP_RANK=1, but pmpp\.parallel\.run has not started it"):
        environment.group()
