"""Several GPUs: groups of ranks that communicate.

A program for several GPUs is one program that runs several times, each time as another *rank*. Ranks have no memory in
common. What they pass to one another goes through a `Group`::

    from pmpp import parallel

    def step(group):
        gradient = ...                          # of this rank's part of the batch
        return group.all_reduce(gradient, op="mean", out=gradient)

    parallel.ranks(4, step)                     # four ranks in this process, in a notebook, say

In a script that is started several times, ``group = parallel.init()`` says which rank it is: see `pmpp.parallel.run`,
and `pmpp.parallel.rendezvous` for ``torchrun`` and ``srun``.

`pmpp.parallel.switchboard` matches the calls of the ranks and finds what does not fit, `algorithms` moves the data of
each collective, `simulated` runs ranks in one process, and `traffic` counts what these send. `windows` are arrays that
other ranks read and write by themselves. On these stand `all_reduce`, whose algorithms are programs of ranks, `halo`,
a stencil over ranks, and the ways to train one network: `data`, `sharded`, `tensor` and `pipeline`. `plates` is the
stencil on the GPUs of one process. Where every rank has a GPU, `on_gpus` carries arrays from GPU to GPU, by NCCL or by
kernels of our own, and `targets` says how fast, beside what was to be reached. `examples` has a script for each
chapter.
"""

from pmpp.parallel import environment, simulated
from pmpp.parallel.group import Group
from pmpp.parallel.simulated import ranks, work
from pmpp.parallel.switchboard import CommunicationError
from pmpp.parallel.traffic import Links, Nodes

__all__ = ["CommunicationError", "Group", "Links", "Nodes", "init", "ranks", "work"]


def init(backend: str | None = None) -> Group:
    """The group of all ranks of this program; a group of one, if it was started by itself.

    Args:
        backend: "nccl" or "peer", for ranks with a GPU each, whose arrays travel from GPU to GPU: see
            `pmpp.parallel.on_gpus`. None for what PMPP_GROUP says, which ``run --backend`` sets; without it arrays go
            through the host.

    >>> init()
    <rank 0 of 1, simulated>
    >>> ranks(2, lambda group: init() is group)
    [True, True]
    """
    if backend is None and simulated.here() is not None:
        return simulated.here()
    return environment.on_gpus(environment.group() or simulated.alone(), backend)
