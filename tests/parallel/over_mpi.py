"""A program for MPI: every call of a group, and mistakes that MPI's ranks find together.

python -m pmpp.parallel.run -n 3 --backend mpi -m tests.parallel.over_mpi folder
"""

import json
import pathlib
import sys

import numpy as np

from pmpp import parallel
from pmpp.runtime import device
from tests.parallel import everything

X = np.arange(4, dtype=np.float32)


def other_call(group):
    return group.barrier() if group.rank == 1 else group.all_reduce(X)


def other_shape(group):
    return group.all_reduce(X[: 3 + group.rank % 2])


def other_dtype(group):
    return group.all_gather(X.astype(np.float64) if group.rank == 2 else X)


def other_root(group):
    return group.reduce(X, root=group.rank // 2)


def other_op(group):
    return group.all_reduce(X, op="max" if group.rank == 0 else "sum")


def both_send(group):
    return None if group.rank == 2 else group.send(X, to=1 - group.rank)


def both_receive(group):
    return None if group.rank == 2 else group.recv(device.empty(4, np.float32), source=1 - group.rank)


def to_itself(group):
    return group.send(X, to=0) if group.rank == 0 else None


def pair(group, sent, tag, box):
    if group.rank == 0:
        group.send(sent, to=1, tag=tag)
    if group.rank == 1:
        group.recv(device.empty(*box), source=0, tag=5)


def other_tag(group):
    return pair(group, X, 4, (4, np.float32))


def other_box(group):
    return pair(group, X, 5, (3, np.float32))


def other_group(group):
    same = group.split(colour=0)
    return pair(group if group.rank == 0 else same, X, 5, (4, np.float32))


MISTAKES = [
    other_call, other_shape, other_dtype, other_root, other_op,
    both_send, both_receive, to_itself, other_tag, other_box, other_group,
]  # fmt: skip


def errors(group):
    """What each mistake raises here: class, text and ranks. None for a rank that has no part in it."""
    found = {}
    for mistake in MISTAKES:
        try:
            mistake(group)
            found[mistake.__name__] = None
        except parallel.CommunicationError as error:
            found[mistake.__name__] = [type(error).__name__, str(error), list(error.ranks)]
    return found


def main():
    group = parallel.init()
    found = {"everything": everything.results(group), "errors": errors(group)}
    (pathlib.Path(sys.argv[1]) / f"{group.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    print("rank", group.rank, "of", f"{group.size},", group.backend)  # many writes, which must arrive as one line


if __name__ == "__main__":
    main()
