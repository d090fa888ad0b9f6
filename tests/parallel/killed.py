"""A rank is killed in each of three places: whether the run ends in time, and names it.

python -m tests.parallel.killed                        by four simulated ranks
python -m tests.parallel.killed -n 2 --backend peer    by two ranks with a GPU each

The exit status is 1 if a run did not name the rank, or went on for `LIMIT` seconds after its death. A test of the same
runs, which looks at no clock, is in test_run.py.
"""

import argparse
import re
import subprocess
import sys
import time

from pmpp.parallel import environment

LIMIT = 10.0  # seconds
PLACES = {
    "SIGKILL before it joins": "before it joins the others",
    "SIGKILL": "while the others wait for it",
    "SIGKILL while it waits": "while it waits for the others, which compute",
}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.parallel.killed", description=__doc__.split("\n")[0])
    parser.add_argument("-n", default="4")
    parser.add_argument("--backend", choices=("simulated", *environment.BACKENDS), default="simulated")
    options = parser.parse_args()
    wrong = 0
    for how, place in PLACES.items():
        command = [sys.executable, "-m", "pmpp.parallel.run", "-n", options.n, "--backend", options.backend]
        command += ["--timeout", "120", "-m", "tests.parallel.endings", how]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        now, died = time.time(), re.search(r"killed at (\S+)", ended.stdout)
        named = "rank 1 was killed by signal 9 (SIGKILL)" in ended.stderr
        seconds = now - float(died[1]) if died else float("nan")
        right = named and ended.returncode == 137 and seconds < LIMIT
        wrong += not right
        print(f"{place}: {'right' if right else 'WRONG'}, over after {seconds:.1f} s, status {ended.returncode}")
        print("   ", ended.stderr.strip().replace("\n", "\n    "), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
