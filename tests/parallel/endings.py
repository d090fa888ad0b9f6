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
import threading
import time
import traceback

import numpy as np

from pmpp import parallel
from pmpp.parallel import environment


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
        kill()
    if how == "SIGKILL while it waits":
        # On a GPU the call only queues the sum: this rank waits for the result.
        call = "copy_to_host" if group.backend in environment.BACKENDS else "all_reduce"
        threading.Thread(target=kill_in, args=(call, threading.main_thread().ident), daemon=True).start()
        group.all_reduce(np.ones(4, np.float32)).copy_to_host()
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


def kill():
    """`tests.parallel.killed` looks at the time."""
    print(f"killed at {time.time():.3f}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in(call, thread):
    """Kill this process some time after a thread has gone into a call."""
    while call not in [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]:
        time.sleep(0.01)
    time.sleep(0.5)  # for its message to arrive
    kill()


def main():
    background = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    print(f"processes {os.getpid()} {background.pid}", flush=True)
    if sys.argv[1] == "SIGKILL before it joins" and environment.place().rank == 1:
        kill()
    group = parallel.init()
    group.barrier()
    if group.rank == 1:
        end(group, *sys.argv[1:])
        return
    while sys.argv[1] == "SIGKILL while it waits":
        time.sleep(0.01)
    if sys.argv[1] != "nothing":
        group.all_reduce(np.ones(4, np.float32)).copy_to_host()


if __name__ == "__main__":
    main()
