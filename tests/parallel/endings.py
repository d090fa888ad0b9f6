"""A program of which one rank ends in the way that its argument says. Each rank prints the numbers of its processes.

python -m pmpp.parallel.run -n 2 -m tests.parallel.endings raise
"""

import atexit
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

from pmpp import parallel


def end(group, how, *files):
    """What rank 1 does, while rank 0 waits for it in an all_reduce."""
    if how == "raise":
        raise ValueError("no more of this")
    if how.endswith("sys.exit"):
        if how.startswith("slow"):  # as one that has to let go of a GPU
            atexit.register(time.sleep, 10)
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "SIGSEGV":
        ctypes.string_at(1)
    if how == "other call":
        group.broadcast(np.zeros(3))
    if how == "for ever, and deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how.startswith("for ever"):
        pathlib.Path(files[0]).touch()
        while True:
            time.sleep(0.01)


def main():
    group = parallel.init()
    background = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    print(f"processes {os.getpid()} {background.pid}", flush=True)
    group.barrier()
    if group.rank == 1:
        end(group, *sys.argv[1:])
        return
    if sys.argv[1] != "nothing":
        group.all_reduce(np.ones(4, np.float32)).copy_to_host()


if __name__ == "__main__":
    main()
