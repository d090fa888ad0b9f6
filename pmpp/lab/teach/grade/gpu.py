"""Times of answers on a GPU, where there is one: of an answer that passed, of the shipped one, and of an empty kernel.

::

    python -m pmpp.lab.teach.grade FOLDER --gpu --rubric rubric.md

The grader itself and the notebooks use the interpreter, and never open a GPU: their walls (`pmpp.lab.teach.grade.wall`)
would refuse it, since a driver opens its files, such as ``/dev/nvidia0``, for writing. What passed is put together
again in a process of its own, this module, with Numba. That process has no limit of address space, because a driver
reserves more than a computer has. It makes the GPU's context first, and then builds a wall in which nothing but the
driver's files can be written. Then it launches once, compares the results with those of the exercise, and times.

One process at a time has the GPU, whatever ``--jobs`` is.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import subprocess
import sys
import typing
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from pmpp.lab.teach.grade import capture, player, rebuild, supervise, wall
from pmpp.lab.teach.points import named
from pmpp.lab.teach.run import wrong_elements

__all__ = ["fault", "timed"]

DEVICES = ("/dev/nvidia*", "/dev/dxg")  # the files of a driver, on Linux and below Windows
SECONDS = 120  # for one answer, with the compiler


def fault() -> str:
    """Why nothing can be measured here, or ""."""
    return _asked({}).get("failed", "")


def timed(
    name: str,
    nodes: capture.Nodes,
    given: Mapping[str, Collection[str]],
    seed: int,
    limits: supervise.Limits,
    lock: Path,
) -> dict[str, typing.Any]:
    """Times on the largest input of an exercise for a kernel that passed.

    Args:
        name: the exercise.
        nodes, given: the answer, as `pmpp.lab.teach.grade.rebuild.rebuilt` takes it.
        seed: as for `pmpp.lab.teach.grade.supervise.judged`, which has the same inputs.
        limits: what the process may use, of which the judge's time counts, and at least `SECONDS`.
        lock: a file that all graders of a run share.

    Returns ``{"gpu": its name, "own": seconds, "shipped": seconds, "empty": seconds}``, or ``{"failed": why}``.
    """
    numbers = [int(one) for one in supervise.numbers_of(seed, name, nodes)]
    job = {"name": name, "nodes": nodes, "given": {key: sorted(names) for key, names in given.items()}}
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return _asked(job | {"numbers": numbers}, max(limits.judge, SECONDS))


def _asked(job: dict, seconds: float = SECONDS) -> dict[str, typing.Any]:
    """What the process answers to a job; without a job only whether it can have one."""
    package = Path(__file__).parents[4]
    environment = {name: text for name, text in os.environ.items() if name != "PMPP_BACKEND"}
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PMPP_BACKEND": "numba", "PYTHONPATH": path, "CUDA_CACHE_DISABLE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pmpp.lab.teach.grade.gpu"],
            input=json.dumps(job | {"seconds": seconds}),
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {seconds:g} s"}
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2]
        return {"failed": said or f"the process that measures ended with status {done.returncode}"}


def main() -> None:
    """Read a job, and write what was measured. What a kernel prints goes nowhere."""
    job = json.load(sys.stdin)
    outward = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        found = _measured(job)
    except RuntimeError as error:  # there is no GPU
        found = {"failed": str(error)}
    except Exception as error:  # of the driver, the compiler or the answer
        found = {"failed": f"{type(error).__name__}: {error}".partition("\n")[0]}
    with os.fdopen(outward, "w") as file:
        json.dump(found, file)


def _measured(job: dict) -> dict[str, typing.Any]:
    from pmpp.lab.measure.timing import Contender, gpu_timer, measure_together
    from pmpp.runtime import device

    timer, cuda = gpu_timer(), device.backend().cuda  # it compiles and launches: the driver has opened its files
    gpu = cuda.get_current_device().name
    gpu = gpu.decode() if isinstance(gpu, bytes) else gpu
    if "name" not in job:
        return {"gpu": gpu}
    player.limit(None, job["seconds"])
    wall.build((), (), (), [path for pattern in DEVICES for path in glob.glob(pattern)])
    one = supervise.with_inputs(named(job["name"]), np.array(job["numbers"], np.uint32))
    case = max(one.inputs, key=lambda case: case.size)
    kernels = {"own": rebuild.rebuilt(job["nodes"], job["given"], kernel=True).value, "shipped": one.answer}

    @cuda.jit
    def empty():
        pass

    def launched(kernel: typing.Any, arguments: tuple) -> None:
        kernel[case.grid, case.block, 0, case.sharedmem](*arguments)

    contenders = {"empty": Contender(lambda: launched(empty, ()), [()], cache="warm")}
    for who, kernel in kernels.items():
        kernel = kernel if hasattr(kernel, "py_func") else cuda.jit(kernel)
        arguments = _on_device(case)
        launched(kernel, arguments)
        if wrong := _wrong(case, arguments):
            return {"failed": f"on this GPU {wrong} of the {'answer' if who == 'own' else 'shipped answer'} is wrong"}
        # Later launches find what earlier ones have written. What a kernel that adds to its output writes then is
        # another number, and as much work.
        contenders[who] = Contender(lambda k=kernel, a=arguments: launched(k, a), [()], cache="warm")
    found = measure_together(contenders, timer=timer)
    for timing in found.values():
        if isinstance(timing, Exception):
            raise timing
    return {"gpu": gpu, **{who: timing.median for who, timing in found.items()}}


def _on_device(case: typing.Any) -> tuple:
    from pmpp.runtime import device

    return tuple(device.to_device(one) if isinstance(one, np.ndarray) else one for one in case.copies())


def _wrong(case: typing.Any, arguments: tuple) -> str:
    """The first argument that does not hold what it must, or "", so that no time of a broken launch is shown.

    The interpreter has held the answer to the tolerance of the exercise. A GPU may join a multiplication and an
    addition, and has other roots and logarithms: it is allowed twice the tolerance, and a few more last places.
    """
    for index, expected in case.expected.items():
        got = arguments[index].copy_to_host()
        places = 0.0
        if got.dtype.kind in "fc":
            expected = np.asarray(expected)
            finite = np.abs(expected[np.isfinite(expected)])
            places = 16 * float(np.finfo(got.dtype).eps) * finite.max(initial=0)
        if wrong_elements(got, expected, 2 * np.asarray(case.tolerance.get(index, 0)) + places).any():
            return f"args[{index}]"
    return ""


if __name__ == "__main__":
    main()
