"""The tests in the Python of a browser, and a chapter in a browser.

::

    make test-browser                                     all of it
    python -m tests.browser interpreter -k reduction      the interpreter's tests, with pytest's own arguments
    python -m tests.browser exercises                     all exercises
    python -m tests.browser chapters                      what the chapters import
    python -m tests.browser chapter [--record]            a chapter in Chromium, and how long a reader waits

Pyodide runs under Node, so a test meets what it would meet in a tab: a NumPy whose default integer has 32 bits, no
threads, no processes and no ctypes. A test that needs one of these has the mark `native`, which says which.

Where the files of Pyodide, Node, the site or Chromium cannot be had, a sentence says so, and nothing fails.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.publish import pyodide
from tests.browser import chapter

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).with_name("run.mjs")
EXERCISES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/kernels").rglob("test_exercises*.py"))
SUITES = {
    "interpreter": ["tests/simt"],
    "chapters": ["tests/browser/test_chapters.py"],
    "exercises": ["tests/contract/test_exercises.py", *EXERCISES],
}
#: Captured by sys: pytest asks for the size of the file behind a descriptor, and here it is gone as soon as it is open.
OPTIONS = ["-q", "-p", "no:cacheprovider", "--capture=sys"]


def python(*arguments: str) -> list[str]:
    """The command that runs ``python -m arguments...`` in Pyodide; raises Unavailable if there is no Node."""
    node = shutil.which("node")
    if node is None:
        raise pyodide.Unavailable("Node is not installed, which runs Pyodide outside of a browser")
    return [node, str(RUN), str(pyodide.PLACE), *arguments]


def in_pyodide(suites: Sequence[str], arguments: Sequence[str]) -> int:
    """Run suites side by side, and print what they print; returns how many failed."""
    environment = {**os.environ, "PMPP_BACKEND": "simt", "PMPP_CHECK": "1"}
    pyodide.fetch(tests=True)
    running, readers = [], []
    for suite in suites:
        command = python("pytest", *OPTIONS, *arguments, *SUITES[suite])
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, **output)
        reader = threading.Thread(target=_show, args=(suite, process.stdout))
        reader.start()
        running.append(process)
        readers.append(reader)
    for reader in readers:
        reader.join()
    return sum(process.wait() != 0 for process in running)


def _show(suite: str, lines: object) -> None:
    for line in lines:
        print(f"{suite}: {line}", end="", flush=True)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    chosen = list(itertools.takewhile(lambda argument: argument in (*SUITES, "chapter"), arguments))
    rest = arguments[len(chosen) :]
    chosen = chosen or [*SUITES, "chapter"]
    failed = 0
    for part in ([suite for suite in chosen if suite in SUITES], [name for name in chosen if name not in SUITES]):
        try:
            if part:
                failed += chapter.main("--record" in rest) if part == ["chapter"] else in_pyodide(part, rest)
        except pyodide.Unavailable as reason:
            print(f"Not run: {', '.join(part)}. {reason}.")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
