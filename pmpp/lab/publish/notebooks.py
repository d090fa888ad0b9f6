"""The chapters: ``notebooks/source/*.py`` executed into ``notebooks/*.ipynb``.

A chapter is written as text in jupytext's percent format and read as a notebook with its outputs. Both are in the
repository, and this tool keeps them together::

    python -m pmpp.lab.publish.notebooks                   execute every chapter and write its notebook (make notebooks)
    python -m pmpp.lab.publish.notebooks 30_reduction      only this one
    python -m pmpp.lab.publish.notebooks --check           do notebooks and sources agree? executes nothing
    python -m pmpp.lab.publish.notebooks --execute-only    execute every chapter and write nothing

What is written depends on the source and on its outputs alone: no times, no random cell ids, no progress bars.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.chapters import in_order, number_of
from pmpp.runtime import device

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["execute", "faults", "main", "read_source", "sources", "stems", "titles"]

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
TIMEOUT = 600  # seconds a cell may take before it counts as hung
WIDGET = "application/vnd.jupyter.widget-view+json"


def sources(names: Sequence[str] = (), folder: Path = NOTEBOOKS) -> list[Path]:
    """The chapters' sources in order: all, or those with the given stems or numbers. Raises SystemExit for others."""
    found = in_order((folder / "source").glob("*.py"))
    names = stems(names, [path.stem for path in found])
    unknown = set(names) - {path.stem for path in found}
    if unknown:
        raise SystemExit(f"no such chapter: {', '.join(sorted(unknown))}; there are {', '.join(p.stem for p in found)}")
    return [path for path in found if not names or path.stem in names]


def stems(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names of chapters as stems. A number becomes the stem that begins with it; other names stay as they are.

    >>> stems(["4", "08", "12_matmul", "5"], ["04_vector_add", "08_warps", "12_matmul"])
    ['04_vector_add', '08_warps', '12_matmul', '5']
    """
    numbered = {number: stem for stem in known if (number := number_of(stem)) is not None}
    return [numbered.get(int(name), name) if name.isdecimal() else name for name in names]


class Markdown(str):
    """Text that Jupyter shows as Markdown, and Python as it stands."""

    __slots__ = ()
    __repr__ = str.__str__

    def _repr_markdown_(self) -> str:
        return self


def titles(here: Path | None = None, folder: Path = NOTEBOOKS) -> dict[str, str]:
    """The chapters' titles by stem, in order, as in ``{"04_vector_add": "4. Vector addition"}``.

    They are read from the notebooks in ``here``: readers of a release or of the browser edition have these chapters and
    no sources. If there are none, they are read from the sources.

    Args:
        here: a folder; the current one by default.
        folder: the folder above the sources.
    """
    texts = {}
    for path in in_order(path for path in (here or Path()).glob("*_*.ipynb") if number_of(path.stem) is not None):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path.stem] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    texts = texts or {path.stem: path.read_text(encoding="utf-8") for path in sources(folder=folder)}
    found = {stem: re.search(r"^(?:# )?# (\d+\. .+)$", text, re.MULTILINE) for stem, text in texts.items()}
    return {stem: title[1] for stem, title in found.items() if title}


def read_source(path: Path) -> NotebookNode:
    """A chapter's source as a notebook without outputs."""
    import jupytext
    import nbformat

    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def execute(path: Path) -> tuple[NotebookNode, float]:
    """Execute a chapter's source from top to bottom in a new kernel: the notebook with its outputs, and the seconds.

    Raises ChapterError at the first cell that fails.
    """
    import nbclient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    # Progress bars are for who waits; in a stored output they are noise. A slider needs a kernel, which a stored output
    # has not (pmpp.lab.draw.knobs). And a kernel shows figures by a backend of its own, unless the environment names
    # another: then it would drop them all.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment |= {"TQDM_DISABLE": "1", "PMPP_SLIDERS": "0"}
    notebook = read_source(path)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        # Ports are chosen before the kernel opens them, so that two kernels that start together may take the same.
        # Sockets in a folder of its own cannot meet another's. Windows has none.
        manager = {} if os.name == "nt" else {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
        client = nbclient.NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],  # not its advice on encrypting what stays on this machine
            record_timing=False,
            coalesce_streams=True,
            config=Config(KernelManager=manager),
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise ChapterError(f"{path.stem}: a cell failed\n{_plain(str(error))}") from None
        except (CellTimeoutError, DeadKernelError, RuntimeError) as error:  # RuntimeError: the kernel does not start
            raise ChapterError(f"{path.stem}: {_plain(str(error))}") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
    # The kernel writes its exact version here; which Python executed a chapter is no part of it.
    notebook.metadata.language_info = read_source(path).metadata.language_info
    return notebook, time.perf_counter() - start


class ChapterError(RuntimeError):
    """A chapter does not run. The message has the cell and the error."""


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def faults(path: Path) -> list[str]:
    """What is wrong with the notebook of a source, without executing anything; empty if they agree."""
    import nbformat

    target = path.parents[1] / f"{path.stem}.ipynb"
    if not target.is_file():
        return [f"notebooks/{target.name} is missing"]
    notebook, source = nbformat.read(target, as_version=4), read_source(path)
    name = f"notebooks/{target.name}"
    if [_essence(cell) for cell in notebook.cells] != [_essence(cell) for cell in source.cells]:
        return [f"{name} differs from its source"]
    found = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append(f"{name} was not executed from top to bottom")
    for number, cell in enumerate(code, 1):
        for output in cell.outputs:
            at = f"{name}, code cell {number}"
            if output.output_type == "error":
                found.append(f"{at} ends in {output.ename}")
            elif output.output_type == "stream" and output.name == "stderr":
                found.append(f"{at} writes to stderr: {output.text.strip().splitlines()[-1]}")
            elif WIDGET in output.get("data", {}):
                found.append(f"{at} shows a widget, which is nothing without a kernel")
            elif address := re.search(r" at 0x[0-9a-f]{6,}", str(output)):
                found.append(f"{at} shows an address ({address[0].strip()}), which differs in every run")
    if notebook.metadata != source.metadata:
        found.append(f"{name} has other metadata than this tool writes")
    return found


def _essence(cell: NotebookNode) -> tuple:
    return cell.cell_type, cell.source, dict(cell.metadata), cell.id


def _run(path: Path, *, write: bool) -> tuple[str, float, str]:
    """Execute one chapter: its name, the seconds, and the error or ``""``."""
    import nbformat

    try:
        notebook, seconds = execute(path)
    except ChapterError as error:
        return path.stem, 0.0, str(error)
    if write:
        text = nbformat.writes(notebook).rstrip("\n") + "\n"
        (path.parents[1] / f"{path.stem}.ipynb").write_text(text, encoding="utf-8")
    return path.stem, seconds, ""


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.notebooks", description="Execute and check the chapters."
    )
    parser.add_argument("chapters", nargs="*", help="chapters, as 4 or 04_vector_add; all by default")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare notebooks with their sources, execute nothing")
    mode.add_argument("--execute-only", action="store_true", help="execute, but write nothing")
    chosen = parser.parse_args(arguments)
    paths = sources(chosen.chapters, folder)

    if chosen.check:
        found = [fault for path in paths for fault in faults(path)]
        if not chosen.chapters:
            orphans = {path.stem for path in folder.glob("*.ipynb")} - {path.stem for path in paths}
            found += [f"notebooks/{stem}.ipynb has no source" for stem in sorted(orphans)]
        print("\n".join(found) or f"{len(paths)} chapters agree with their sources")
        if found:
            print("Run: make notebooks", file=sys.stderr)
        return int(bool(found))

    from concurrent.futures import ProcessPoolExecutor, as_completed  # a browser has no processes

    # On a GPU chapters measure, and must not measure each other.
    workers = 1 if device.on_gpu() else min(len(paths), os.cpu_count() or 1)
    failed = 0
    with ProcessPoolExecutor(max(workers, 1)) as pool:
        waiting = [pool.submit(_run, path, write=not chosen.execute_only) for path in paths]
        for done in as_completed(waiting):
            name, seconds, error = done.result()
            failed += bool(error)
            print(error or f"{name:24} {seconds:6.1f} s", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
