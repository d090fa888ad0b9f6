"""The machine and the run behind a measurement: GPU, CPU, driver, versions, revision, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path

from pmpp.lab.measure.roofline import Ceilings

__all__ = ["describe_gpu", "describe_machine", "describe_run", "revision", "versions"]


def revision() -> str:
    """The commit that is measured: ``PMPP_REVISION`` if set, else git's; ``-dirty`` if the package differs from it."""
    given = os.environ.get("PMPP_REVISION", "").strip()
    if given:
        return given
    git = ("git", "-C", str(Path(__file__).parents[3]))
    commit = _output(*git, "rev-parse", "--short", "HEAD")
    # Files that git does not know count too, which `git describe --dirty` overlooks; the record itself does not.
    changed = _output(*git, "status", "--porcelain", "--", "pmpp", ":!pmpp/recorded")
    return f"{commit}{'-dirty' if changed else ''}" if commit else "unknown"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_gpu() -> dict:
    """The ``gpu`` entry of a record."""
    from pmpp.runtime import device

    limits = device.limits()
    total = int(device.backend().cuda.current_context().get_memory_info().total)
    return {
        "name": limits["name"],
        "compute_capability": list(limits["compute_capability"]),
        "sms": limits["multiprocessors"],
        "l2_bytes": limits["l2_cache"],
        "memory_bytes": total,
    }


def describe_machine(*, now: datetime.datetime | None = None) -> dict:
    """When, where and with what something was run."""
    from pmpp.runtime import device

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    now = now or datetime.datetime.now(datetime.UTC)
    cuda_version = device.backend().cuda.runtime.get_version() if device.on_gpu() else (0, 0)
    return {
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
        or "unknown",
        "cuda": ".".join(map(str, cuda_version)),
        "cpu": f"{_cpu_name()}, {cores} cores",
        "versions": {"python": platform.python_version(), **versions()},
    }


def describe_run(ceilings: Ceilings, *, now: datetime.datetime | None = None) -> dict:
    """The same with the ceilings of that run: the ``runs`` entry of a record of measurements."""
    return {**describe_machine(now=now), "ceilings": _rounded(asdict(ceilings))}


def _rounded(numbers: dict) -> dict:
    """The same with seven digits."""
    return {
        key: _rounded(value)
        if isinstance(value, dict)
        else float(f"{value:.7g}")
        if isinstance(value, float)
        else value
        for key, value in numbers.items()
    }


def versions() -> dict[str, str]:
    """The installed versions of everything that a figure can depend on."""
    found = {}
    for package in ("numpy", "numba", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x", "torch", "cuda-bindings"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
