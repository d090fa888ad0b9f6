"""Nsight Compute: run a command under ``ncu``, and read what it measured of every kernel that the command launched.

``ncu`` comes with the CUDA toolkit. It stops each kernel, runs it as often as it needs to read all counters, and
restores memory in between. Its report has a raw page, a row for a launch with the metrics asked for, and a source page,
the machine code of each kernel (SASS) with how often every instruction was executed.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["profile", "version"]

#: The machine instructions that are counted by name: memory, the warp, branches and floating-point arithmetic.
_KEPT = re.compile(r"(LD(?!C)|ST|ATOM|RED|BAR|SHFL|VOTE|BRA|EXIT|MUFU|FADD|FMUL|FFMA|DADD|DMUL|DFMA|HFMA|F2F|MATCH)")


def profile(
    command: Sequence[str], metrics: Sequence[str], environment: Mapping[str, str], keep: Path | None = None
) -> list[dict]:
    """The kernels that ``command`` launches while profiling is on (``cuda.profile_start()``), in their order.

    Each is a dict of ``kernel`` (its name without modules and arguments), ``grid`` and ``block`` (lists of three),
    ``values`` (one for each of ``metrics``) and ``opcodes``: by the name of a machine instruction, "@" before it if a
    predicate guards it, how often warps executed it and with how many lanes in all. ``keep`` names a file for ncu's
    report (.ncu-rep), which its window opens. Raises RuntimeError with what ``ncu`` said if it is missing or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "launches.ncu-rep"
        # The card's clocks are left alone; counts depend neither on them nor on what the caches hold.
        collect = ["--clock-control", "none", "--cache-control", "none", "--export", str(report)]
        collect += ["--profile-from-start", "off", "--section", "SourceCounters", "--metrics", ",".join(metrics)]
        _ncu([*collect, *command], environment)
        raw = _ncu(["--import", str(report), "--csv", "--page", "raw"])
        source = _ncu(["--import", str(report), "--csv", "--page", "source", "--print-source", "sass"])
        if keep:
            shutil.copy(report, keep)
    return list(_launches(raw, source, metrics))


def version() -> str:
    """The version of ``ncu``."""
    said = re.search(r"^Version (\S+)", _ncu(["--version"]), re.MULTILINE)
    return said[1] if said else "unknown"


def _ncu(arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
    found = shutil.which("ncu")
    if found is None:
        raise RuntimeError("ncu is not on the path: it comes with the CUDA toolkit, as Nsight Compute")
    done = subprocess.run([found, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise RuntimeError(f"ncu failed with status {done.returncode}:\n{said}")
    return done.stdout


def _launches(raw: str, source: str, metrics: Sequence[str]) -> Iterable[dict]:
    header, _units, *lines = csv.reader(io.StringIO(raw))
    listings = iter(_listings(source))
    for line in lines:
        fields = dict(zip(header, line, strict=True))
        kernel, opcodes = _bare(fields["Kernel Name"]), {}
        # A function that the kernel calls has a listing of its own, before the kernel's.
        for name, listed in listings:
            for opcode, (warps, lanes) in listed.items():
                before = opcodes.get(opcode, (0, 0))
                opcodes[opcode] = [before[0] + warps, before[1] + lanes]
            if _bare(name) == kernel:
                break
        else:
            raise RuntimeError(f"ncu's report has no machine code of {kernel}")
        yield {
            "kernel": kernel,
            "grid": json.loads(fields["Grid Size"].replace("(", "[").replace(")", "]")),
            "block": json.loads(fields["Block Size"].replace("(", "[").replace(")", "]")),
            "values": [_number(fields[name]) for name in metrics],
            "opcodes": opcodes,
        }


def _bare(name: str) -> str:
    """The name of a kernel without modules, Numba's mark and arguments."""
    return re.split(r"[\[(]", name)[0].rpartition("::")[2]


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value == int(value) else value


def _listings(source: str) -> list[tuple[str, dict[str, list[int]]]]:
    """The kernels and functions of the source page by name, each with its machine instructions by name."""
    listings: list[tuple[str, dict[str, list[int]]]] = []
    header: list[str] = []
    for line in csv.reader(io.StringIO(source)):
        if line[:1] == ["Kernel Name"]:
            listings.append((line[1], {}))
        elif line[:1] == ["Address"]:
            header = line
        elif line:
            fields = dict(zip(header, line, strict=False))
            words = fields["Source"].split()
            name = "@" + words[1] if words[0].startswith("@") else words[0]
            executed = int(fields["Instructions Executed"])
            if executed and _KEPT.match(name.lstrip("@")):
                pair = listings[-1][1].setdefault(name, [0, 0])
                pair[0] += executed
                pair[1] += int(fields["Predicated-On Thread Instructions Executed"])
    return listings
