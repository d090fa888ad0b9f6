"""What practitioners write kernels in, beside this workbook's: ``python -m pmpp.nn.measure.practitioners``.

Three problems, a softmax of rows, a running sum and a product of matrices, are computed by PyTorch's own function, by
this workbook's kernel, and with the tools that suit them: Triton, the CuTe DSL, cuda.compute, and cuBLASDx in a kernel
of Numba. Results are compared with PyTorch's in float64. Three things are measured of each: the time of the kernel,
from a CUDA graph of many; the time from host to host of calls that follow each other; and the seconds that the first
call took, which compiles.

Other tools are named with their versions where they are installed, and else as not there: nothing is said of their
speed that was not measured. The record ``practitioners.json`` is written, of which
`pmpp.nn.measure.practitioners_page` makes a page.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import typing
from collections.abc import Callable, Mapping
from pathlib import Path

from pmpp.nn.measure import write
from pmpp.runtime import device, gpu

TIMES = 20  # of a call in a graph


class Tool(typing.NamedTuple):
    """What kernels, or parts of them, can be written in: a module, its package, and what it is."""

    module: str
    package: str
    what: str


TOOLS = {
    "Triton": Tool(
        "triton",
        "triton",
        "A kernel is a program on tiles. What threads do, and what lies in shared memory, is the compiler's business. "
        "It comes with PyTorch for Linux, whose compiler writes it.",
    ),
    "nvmath-python": Tool(
        "nvmath",
        "nvmath-python",
        "cuBLASDx and cuFFTDx as functions inside a kernel of Numba: a block multiplies a tile, or transforms a "
        "vector, with NVIDIA's own code, and what comes before and behind it is yours.",
    ),
    "cuda.compute": Tool(
        "cuda.compute",
        "cuda-cccl",
        "CUB's algorithms for a whole GPU, such as scans, sorts and reductions, with operators written in Python.",
    ),
    "CuTe DSL": Tool(
        "cutlass",
        "nvidia-cutlass-dsl",
        "CUTLASS's layouts and copies in Python: every thread, barrier and instruction is the programmer's business, "
        "as in the last chapters on products here.",
    ),
    "numba-cuda-mlir": Tool(
        "numba_cuda_mlir",
        "numba-cuda-mlir",
        "The successor of the compiler that this workbook uses. Kernels look the same, and the import is another.",
    ),
}


class Problem(typing.NamedTuple):
    """The calls that compute one thing, each into an array of its own that it returns, and what they are to compute.

    ``wanted`` is in float64, and ``allowed`` is how far off a result may be, as a part of the largest.
    """

    calls: Mapping[str, Callable[[], typing.Any]]
    wanted: typing.Any
    allowed: float


def _is_there(tool: Tool) -> bool:
    try:
        return importlib.util.find_spec(tool.module) is not None
    except ModuleNotFoundError:  # the package that would have it is not there either
        return False


def tools() -> dict[str, str | None]:
    """The version of each tool, None where it is not installed."""
    return {name: gpu.version(tool.package) or "?" if _is_there(tool) else None for name, tool in TOOLS.items()}


def softmax(rows: int = 16384, columns: int = 4096) -> Problem:
    """A softmax of rows of float32: its bound is the memory."""
    import torch

    from pmpp.kernels import softmax as room

    x = torch.randn(rows, columns, device="cuda")
    outs = [torch.empty_like(x) for _ in range(5)]

    def library() -> typing.Any:
        return torch.softmax(x, 1, out=outs[0])

    def ours() -> typing.Any:
        room.softmax(x, out=outs[1], stream=torch.cuda.current_stream())
        return outs[1]

    def triton() -> typing.Any:
        kernels("triton").softmax(x, outs[2])
        return outs[2]

    found = {"PyTorch": library, "this workbook": ours} | those_there(
        {
            "Triton": lambda: triton,
            "CuTe DSL": lambda: on_stream(kernels("cute").Softmax(x, outs[3]), outs[3]),
            "cuda.compute": lambda: on_stream(kernels("compute").Softmax(x, outs[4]), outs[4]),
        }
    )
    # exp and the sum of a row, in float32: some units in the last place.
    return Problem(found, torch.softmax(x.double(), 1), 64 * 2.0**-23)


def product(side: int = 4096) -> Problem:
    """A product of matrices of float16, with sums in float32: its bound is the tensor cores."""
    import torch

    from pmpp.kernels.matmul import products

    a, b = (torch.randn(side, side, device="cuda").half() for _ in range(2))
    outs = [torch.empty_like(a) for _ in range(5)]

    def library() -> typing.Any:
        return torch.matmul(a, b, out=outs[0])

    def ours() -> typing.Any:
        products.product(a, b, rounded=True, out=outs[1], stream=torch.cuda.current_stream())
        return outs[1]

    def triton() -> typing.Any:
        kernels("triton").product(a, b, outs[2])
        return outs[2]

    found = {"PyTorch": library, "this workbook": ours} | those_there(
        {
            "Triton": lambda: triton,
            "CuTe DSL": lambda: on_stream(kernels("cute").Product(a, b, outs[3]), outs[3]),
            "nvmath-python": lambda: on_stream(kernels("nvmath").Product(a, b, outs[4]), outs[4]),
        }
    )
    # A result is rounded once to float16, and sums of so many terms are off by less than that.
    return Problem(found, a.double() @ b.double(), 2.0**-10)


def running_sum(size: int = 2**26) -> Problem:
    """A running sum of float32: its bound is the memory."""
    import torch

    from pmpp.kernels import scan

    x = torch.randn(size, device="cuda")
    outs = [torch.empty_like(x) for _ in range(2)]

    def library() -> typing.Any:
        return torch.cumsum(x, 0, out=outs[0])

    def ours() -> typing.Any:
        return scan.cumsum(x, stream=torch.cuda.current_stream())

    found = {"PyTorch": library, "this workbook": ours} | those_there(
        {"cuda.compute": lambda: on_stream(kernels("compute").Scan(x, outs[1]), outs[1])}
    )
    # Sums of tiles follow each other, some ten thousand of them, and each rounds.
    return Problem(found, torch.cumsum(x.double(), 0), 2.0**-14)


def those_there(makers: Mapping[str, Callable[[], Callable]]) -> dict[str, Callable]:
    """The calls of the tools that are installed. Only theirs are made."""
    return {name: make() for name, make in makers.items() if _is_there(TOOLS[name])}


def on_stream(call: Callable[[int], None], out: typing.Any) -> Callable[[], typing.Any]:
    """A call that takes a stream's handle, as one on PyTorch's stream that returns the array that it writes."""
    import torch

    def made() -> typing.Any:
        call(torch.cuda.current_stream().cuda_stream)
        return out

    return made


PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "softmax of 16384 rows of 4096, float32": softmax,
    "running sum of 2^26 elements, float32": running_sum,
    "product of 4096 x 4096 matrices, float16": product,
}


def kernels(written_in: str) -> typing.Any:
    """The module of what is written in "triton", "nvmath", "compute" or "cute"."""
    # By name, since a record lists the sources that are imported.
    from pmpp.nn.measure import practitioners_compute as compute
    from pmpp.nn.measure import practitioners_cute as cute
    from pmpp.nn.measure import practitioners_nvmath as nvmath
    from pmpp.nn.measure import practitioners_triton as triton

    return {"triton": triton, "nvmath": nvmath, "compute": compute, "cute": cute}[written_in]


def measured(problem: Problem) -> dict[str, dict[str, typing.Any]]:
    """What was measured of each call; of one that fails, its error."""
    import torch

    found: dict[str, dict[str, typing.Any]] = {}
    for name, call in problem.calls.items():
        try:
            began = time.perf_counter()
            made = call()
            torch.cuda.synchronize()
            row = {"first_call_s": time.perf_counter() - began}
            made = torch.as_tensor(made, device="cuda")
            off = float((made.double() - problem.wanted).abs().max() / problem.wanted.abs().max())
            if not off <= problem.allowed:
                raise ValueError(f"off by {off:.1e} of the largest, {problem.allowed:.1e} is allowed")
            row |= {"off": off, "kernel_ms": kernel_milliseconds(call), "call_us": 1e3 * call_milliseconds(call)}
            found[name] = row
        except Exception as error:  # the others are still worth their times
            found[name] = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    return found


def kernel_milliseconds(call: Callable) -> float:
    """The median time of a call in a CUDA graph of many."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # On the stream of the warm-up: our pool keeps memory by stream, and an empty one cannot ask the driver meanwhile.
    with torch.cuda.graph(graph, stream=side):
        for _ in range(TIMES):
            call()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / TIMES)
    return statistics.median(times)


def call_milliseconds(call: Callable) -> float:
    """What a call costs the host: many small ones could follow each other so fast. Only the queue is filled."""
    import torch

    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            call()
        times.append((time.perf_counter() - began) / 10)
    torch.cuda.synchronize()
    return 1e3 * statistics.median(times)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.practitioners", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is needed")
        return 2
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # sums in float32, as the others have
    found: dict[str, typing.Any] = {"tools": tools(), "problems": {}}
    print(", ".join(f"{name} {version or 'not there'}" for name, version in found["tools"].items()), flush=True)
    for name, make in PROBLEMS.items():
        found["problems"][name] = rows = measured(make())
        for who, row in rows.items():
            said = ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print(f"{name}: {who}: {said}", flush=True)
        path = write("practitioners", "pmpp/nn/measure/practitioners.py", found, options.out)
    print(f"recorded in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
