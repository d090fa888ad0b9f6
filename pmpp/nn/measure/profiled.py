"""PyTorch's profiler in a process of its own: ``python -m pmpp.nn.measure.profiled CASE VERSION`` prints what it says.

The profiler loads CUPTI, which stays in its process and follows what is loaded and unloaded on the GPU. A process that
had used it was once aborted at its very end ("double free or corruption"), where Numba unloads its kernels. So the
process of whoever asks does not load it, and the other one ends as soon as it has answered, without unloading anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing
from collections.abc import Sequence

__all__ = ["apart"]

SECONDS = 60.0
COMMAND = sys.executable, "-m", "pmpp.nn.measure.profiled"


def apart(case: str, version: str, command: Sequence[str] = COMMAND) -> dict[str, typing.Any] | None:
    """What `bottleneck.profiled_or_not` returns for a version of a case, by their names; or what went wrong.

    The case is one of `bottleneck.CASES`. None where PyTorch or a GPU is missing. A process that does not answer within
    SECONDS is named in ``"missing"``.
    """
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        said = subprocess.run(
            [*command, case, version],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, **paths},
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"the profiler's process took more than {SECONDS:.0f} s"}
    try:
        return json.loads(said.stdout.splitlines()[-1])  # how it ended afterwards does not matter
    except (IndexError, json.JSONDecodeError):
        return {"missing": f"the profiler's process ended with status {said.returncode} and no answer"}


def main(arguments: Sequence[str]) -> typing.NoReturn:
    """Answer, and end at once."""
    from pmpp.nn.measure import bottleneck

    case, version = arguments
    print(json.dumps(bottleneck.profiled_or_not(bottleneck.CASES[case], version)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
