"""Outlives the starter of ranks, and ends them if that is killed.

`pmpp.parallel.run` starts this file as a process of its own, and holds the other end of its standard input. Whatever
ends the starter, SIGKILL too, closes that, and then this process ends what is left. A thread in each rank could not: a
rank that computes in C for minutes, or was stopped by a signal, does not get to run Python.

It reads one order a line: ``+123`` and ``-123`` for a process group that has begun and ended, and ``/tmp/name``, a
folder to remove. It imports nothing but Python's own, so that it starts in milliseconds. Unix only: see `run`.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE = 1.0  # seconds between SIGTERM and SIGKILL


def main() -> None:
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        order = line.rstrip("\n")
        if order[0] == "+":
            groups.add(int(order[1:]))
        elif order[0] == "-":
            groups.discard(int(order[1:]))
        else:
            folders.append(order)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in sorted(groups):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        if groups and number == signal.SIGTERM:
            time.sleep(GRACE)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
