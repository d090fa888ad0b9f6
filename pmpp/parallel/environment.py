"""Which rank this process is, by the environment variables of whoever started it.

Each way to start ranks leaves its own variables. `STARTERS` is the table of them; the innermost comes first, since one
may start another: ``srun`` starts the daemons of ``mpirun``, and either may start ``torchrun`` once a machine. What is
further out then counts other processes, and is not read. Variables that are set by hand start nothing: they have to
agree with those of the starter, if there is one.

Sources: the manuals of torchrun (``torch.distributed.run``), Open MPI's mpirun, MPICH's Hydra, and Slurm's srun.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping

from pmpp.parallel.group import Group

__all__ = ["BACKENDS", "STARTERS", "Place", "Starter", "group", "on_gpus", "place"]


class Starter(typing.NamedTuple):
    """A way to start ranks.

    Attributes:
        name: of the command.
        rank, size: the variables that say which rank this is, and of how many. A process has both or neither.
        local_rank, local_size: which of the ranks of this machine, and of how many. They may be missing.
        needs: further variables that have to be there.
        mark: a variable that only this starter sets, where others have the same names; "" if there is no need.
        backend: what carries the messages of such ranks: "simulated" (`processes`), "sockets" (`rendezvous`) or "mpi".
    """

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    needs: tuple[str, ...] = ()
    mark: str = ""
    backend: str = "sockets"


OWN = Starter(
    "pmpp.parallel.run", "PMPP_RANK", "PMPP_SIZE", "PMPP_RANK", "PMPP_SIZE", ("PMPP_ADDRESS",), backend="simulated"
)
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT"))
OPEN_MPI = Starter(
    "Open MPI's mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    backend="mpi",
)
MPICH = Starter("MPICH's mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", backend="mpi")
# A batch script has SLURM_PROCID and SLURM_NTASKS, too, although it is one process. Only srun makes a step with tasks.
SLURM = Starter("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", mark="SLURM_STEP_NUM_TASKS")
TORCHRUN = Starter("torchrun", *TORCH, mark="TORCHELASTIC_RUN_ID")
STARTERS = (OWN, TORCHRUN, OPEN_MPI, MPICH, SLURM)
BY_HAND = Starter("whoever set RANK and WORLD_SIZE", *TORCH)


class Place(typing.NamedTuple):
    """Which rank a process is.

    Attributes: starter; rank, size; local_rank, local_size: among the ranks of this machine, None where the starter
    does not say.
    """

    starter: Starter
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None


def place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The rank that these variables say; None, if nothing has started this process as a rank.

    Raises ValueError for variables that are half set, are no numbers, or contradict one another.

    >>> place({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}).rank
    2
    >>> place({}) is None
    True
    """
    innermost = next((starter for starter in STARTERS if present(starter, environment)), None)
    inner = None if innermost is None else read(innermost, environment)
    if present(BY_HAND, environment) and innermost not in (OWN, TORCHRUN):
        by_hand = read(BY_HAND, environment, alone=inner is None)
        if inner is None:
            return by_hand
        if (by_hand.rank, by_hand.size) != (inner.rank, inner.size):
            raise ValueError(
                f"RANK={by_hand.rank} and WORLD_SIZE={by_hand.size} contradict {inner.starter.rank}={inner.rank} and "
                f"{inner.starter.size}={inner.size} of {inner.starter.name}: unset the first two, or make them equal"
            )
    return inner


def present(starter: Starter, environment: Mapping[str, str]) -> bool:
    """Whether the variables of a starter are there, at least in part."""
    if starter.mark:
        return starter.mark in environment
    return starter.rank in environment or starter.size in environment


def read(starter: Starter, environment: Mapping[str, str], alone: bool = True) -> Place:
    """The place that a starter's variables say. Some of them do not matter if there is another starter."""
    wanted = (starter.rank, starter.size, *(starter.needs if alone else ()))
    if missing := [name for name in wanted if name not in environment]:
        there = [name for name in wanted if name in environment]
        raise ValueError(
            f"{' and '.join(there) or starter.mark} {'are' if len(there) > 1 else 'is'} set, but not "
            f"{' and '.join(missing)}: {starter.name} sets all of them. Unset what is left over, or set the rest"
        )
    size = number(starter.size, environment, 1)
    rank = number(starter.rank, environment, 0, size, starter.size)
    local_size = number(starter.local_size, environment, 1, size + 1, starter.size)
    limit = (local_size, starter.local_size) if local_size is not None else (size, starter.size)
    local_rank = number(starter.local_rank, environment, 0, *limit)
    return Place(starter, rank, size, local_rank, local_size)


def number(
    name: str, environment: Mapping[str, str], least: int, below: int | None = None, limit: str = ""
) -> int | None:
    """An integer variable of a range; None if it is not set."""
    if name not in environment:
        return None
    text = environment[name]
    value = int(text) if text.isascii() and text.isdigit() else -1
    if value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, was {text!r}")
    if below is not None and value >= below:
        most = "at most" if least else "less than"
        raise ValueError(f"{name} must be {most} {limit}={environment[limit]}, was {text}")
    return value


def group() -> Group | None:
    """The group of all ranks, if this process was started as one of several; else None.

    Raises what `place` raises, and what `mpi.group` and `rendezvous.group` raise where the ranks do not meet.
    """
    found = place()
    if found is None or (found.size == 1 and found.starter.backend != "simulated"):
        return None
    if found.starter is OWN:
        from pmpp.parallel import processes

        return processes.here() or _no_rank(found)
    if carried_by(found) == "mpi":
        from pmpp.parallel import mpi

        return mpi.group(found)
    from pmpp.parallel import rendezvous

    return rendezvous.group(found)


BACKENDS = ("nccl", "peer")  # that move arrays from GPU to GPU
CHOICE = "PMPP_GROUP"  # the variable that chooses one


def on_gpus(host: Group, backend: str | None = None, environment: Mapping[str, str] = os.environ) -> Group:
    """The same ranks, with arrays that travel from GPU to GPU if that is asked for; else ``host`` itself.

    Args:
        host: the ranks' group whose arrays go through host memory.
        backend: as for `pmpp.parallel.init`.

    Raises ValueError for another backend, and RuntimeError where it cannot work.
    """
    chosen = backend if backend is not None else environment.get(CHOICE) or None
    if chosen is None or (backend is None and host.backend in BACKENDS):
        return host
    if chosen not in BACKENDS:
        name = "backend" if backend is not None else CHOICE
        raise ValueError(f"{name} must be {' or '.join(map(repr, BACKENDS))}, was {chosen!r}")
    from pmpp.parallel import on_gpus

    return on_gpus.group(host, chosen)


def carried_by(found: Place, environment: Mapping[str, str] = os.environ) -> str:
    """The backend for ranks of a starter.

    ``srun`` may have made ready for MPI, as ``srun --mpi=pmix`` does. Then it is MPI, unless somebody says where else
    the ranks are to meet.
    """
    if found.starter is SLURM and "PMIX_RANK" in environment and "MASTER_ADDR" not in environment:
        return "mpi"
    return found.starter.backend


def _no_rank(found: Place) -> typing.NoReturn:
    raise RuntimeError(
        f"this process has {found.starter.rank}={found.rank}, but {found.starter.name} has not started it: a process "
        f"that rank {found.rank} starts is no rank. Remove {found.starter.rank} and {found.starter.size} from its "
        "environment if it is to be alone"
    )
