"""The site: the executed chapters, the README and the kernels' sources as web pages.

::

    make site                                             the pages, in build/site/; open index.html
    python -m pmpp.lab.publish.site                       the same without make
    python -m pmpp.lab.publish.site --repository https://github.com/OWNER/NAME

Nothing is executed: a page has the outputs that stand in its notebook. This module writes what Sphinx reads to
``build/site-source/``, where each file has the place that it has in the repository. ``docs/site/conf.py`` makes pages
of it.

- A chapter gets a line below its title that leads to where it can be run. The place in a file that `show` prints
  becomes a link to this line. Cells that are folded in JupyterLab are folded.
- A figure has no description in a notebook. The titles in its code and the prose after it say what it shows, so they
  are its alternative text.
- The first use of each word of the glossary leads there, and shows what it means.
- A file of the repository that a chapter or the README names has a page with its source. The page leads back to the
  chapters that name it. Markdown is shown as text, as the pages for teachers are, and what it names has a page as well.

With ``--repository``, the chapters can be opened in Colab. Colab reads notebooks from GitHub alone, and installs
nothing. So copies with a first cell that installs the workbook are written to ``build/site/colab/``, and the branch
``gh-pages`` must have them (.github/workflows/site.yml). The browser edition in ``build/browser/``, if it is there,
becomes a part of the site.
"""

from __future__ import annotations

import argparse
import ast
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pmpp.lab.chapters import number_of
from pmpp.lab.publish import glossary
from pmpp.lab.publish.notebooks import NOTEBOOKS, faults, sources

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["alternative_text", "colab", "main", "pages", "prepared"]

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "docs" / "site"
BUILT = ROOT / "build" / "site"
BROWSER = ROOT / "build" / "browser"

#: The parts of the table of contents, by the number of their first chapter.
PARTS = {
    0: "Kernels and the machine",
    24: "Patterns of computation",
    46: "Layers of a network",
    74: "Gradients",
    89: "A network at work",
    99: "Several GPUs",
}

#: What the front page says of the browser edition.
BROWSED = (
    "In the browser there is nothing to install, and no GPU is needed. The first cell takes longest, up to a minute: "
    "Python and its packages are loaded with it. What you write stays in your browser."
)

#: What the copy of a chapter for Colab begins with. gpu.py names the extra for the driver, or none without a GPU.
#: Python looks for packages that are installed as links when it starts, so the running one is told of this one.
SETUP = """\
# Installs the workbook on this machine, once: about a minute.
import os
import sys

if not os.path.isfile("pmpp/runtime/gpu.py"):
    !git clone --quiet --depth 1 {repository} pmpp-workbook
    %cd -q pmpp-workbook
extra = !{{sys.executable}} -I pmpp/runtime/gpu.py
extra = "".join(extra)
extra = f"[{{extra}}]" if extra else ""
%pip install --quiet --editable ".{{extra}}"
sys.path.insert(0, os.getcwd())"""

_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!\w+:|#)([^()\s]+)\)|(`+)(?!`).+?(?<!`)\3(?!`)", re.DOTALL)  # or code
_SHOWN = re.compile(r"^`((?:pmpp|tests)/[\w/]+\.py):(\d+)`$", re.MULTILINE)
_CHECKED = re.compile(r"""\bcheck\((["'])([\w/]+)\1""")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|:$)")
_PLACE = re.compile(r"(?:(?:outside|upper|lower|center|left|right) ?)+|offset points|axes fraction")  # no labels


def alternative_text(cells: Sequence[NotebookNode], at: int) -> str:
    """What a figure shows, in words: its section, the titles and labels in its code, and the prose that explains it.

    That is the prose that comes next. If there is none, the last paragraph before has to do.

    Args:
        cells: the chapter's.
        at: the place of the figure's cell.
    """
    prose = [cell.source.strip() if cell.cell_type == "markdown" else "" for cell in cells]
    headings = [heading for text in prose[:at] for heading in _HEADING.findall(text)]
    after = next((text for text in prose[at + 1 :] if text), "").partition("\n\n")[0]
    # A sentence that ends in a colon is about what comes after it, and so is a question.
    sentences = [text.strip() for text in _SENTENCE.findall(_plain(after)) if not text.endswith((":", "?"))]
    if not sentences or after.startswith(("#", "Go on with")) or "**Predict, then run.**" in after:
        paragraphs = "\n\n".join(prose[:at]).split("\n\n")
        before = [text for text in paragraphs if text and not text.startswith(("#", "**Predict"))]
        sentences = [text.strip() for text in _SENTENCE.findall(_plain("".join(before[-1:])))]
    said: list[str] = []
    for sentence in sentences:
        said += [sentence] if len(" ".join(said)) < 100 else []
    labels = [f"Labels: {', '.join(found)}." for found in [_labels(cells[at].source)] if found]
    return " ".join(
        ["Figure:", *(_plain(f"{heading}.").replace("?.", "?") for heading in headings[-1:]), *labels, *said]
    )


def _labels(code: str) -> list[str]:
    """The strings of more than one word that code passes to functions, but for what it prints: titles and labels."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    drawn = [call for call in calls if not (isinstance(call.func, ast.Name) and call.func.id == "print")]
    passed = [value for call in drawn for value in (*call.args, *(keyword.value for keyword in call.keywords))]
    texts = [value.value for value in passed if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    words = dict.fromkeys(" ".join(text.split()) for text in texts)
    return [text for text in words if " " in text and not _PLACE.fullmatch(text)][:4]


def _plain(markdown: str) -> str:
    """Markdown as words in one line."""
    return re.sub(r"\s+", " ", re.sub(r"[*`$\\{}]", "", _LINK.sub(lambda link: link[1] or link[0], markdown))).strip()


def _page(path: str, start: str) -> str:
    """The address of a file's page, from the page of the file ``start``."""
    return posixpath.relpath(f"{path}.html", posixpath.dirname(start) or ".")


def _linked(text: str, start: str, seen: set[str]) -> str:
    """Markdown with links to pages of the site. ``start`` is the file that it stands in.

    The files that get a page for it are added to ``seen``.
    """

    def lead(link: re.Match) -> str:
        label, target, code = link.groups()
        if code:
            return link[0]
        target, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(start), target))
        if (ROOT / path).is_dir() and (ROOT / path / "__init__.py").is_file():
            path += "/__init__.py"
        if path in ("README.md", "CONTRIBUTING.md"):
            page = "index.md" if path == "README.md" else path
            return f"[{label}]({posixpath.relpath(page, posixpath.dirname(start) or '.')}{anchor and '#' + anchor})"
        if path.endswith(".ipynb"):
            return link[0]
        if (ROOT / path).is_dir():
            return label
        if not (ROOT / path).is_file():
            raise ValueError(f"{start} links to {target}, which is not in the repository")
        seen.add(path)
        return f"[{label}]({posixpath.relpath(f'{path}.md', posixpath.dirname(start) or '.')}{anchor and '#' + anchor})"

    return _LINK.sub(lead, text)


def prepared(notebook: NotebookNode, stem: str, seen: set[str], *, runs: Mapping[str, str]) -> NotebookNode:
    """A copy of an executed chapter, as the site shows it.

    Args:
        notebook: the chapter with its outputs.
        stem: its name, such as ``04_vector_add``.
        seen: the files that it names are added here.
        runs: by the words of a link, the address where the chapter can be run.
    """
    import nbformat

    start = f"notebooks/{stem}.ipynb"
    found = nbformat.from_dict({**notebook, "cells": [nbformat.from_dict(cell) for cell in notebook.cells]})

    def place(shown: re.Match) -> str:
        path, line = shown.groups()
        seen.add(path)
        return f"<a href='{_page(path, start)}#L-{line}'><code>{path}:{line}</code></a>"

    for number, cell in enumerate(found.cells):
        if cell.cell_type != "code":
            cell.source = _linked(cell.source, start, seen)
            continue
        folded = cell.metadata.get("jupyter", {})
        hidden = [part for part in ("source", "outputs") if folded.get(f"{part}_hidden")]
        if hidden:
            tag = "hide-cell" if len(hidden) == 2 else {"source": "hide-input", "outputs": "hide-output"}[hidden[0]]
            cell.metadata.tags = [*cell.metadata.get("tags", []), tag]
            if answered := [name for _, name in _CHECKED.findall(cell.source)]:
                words = f"the answer to {' and '.join(dict.fromkeys(answered))}"
                cell.metadata.mystnb = {"code_prompt_show": f"Show {words}", "code_prompt_hide": f"Hide {words}"}
        for output in cell.outputs:
            data = output.get("data", {})
            if "text/markdown" in data:
                text = _SHOWN.sub(place, data["text/markdown"])
                # Sphinx turns links into addresses of pages in cells, but not in outputs.
                data["text/markdown"] = re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.html)", text)
            if "image/png" in data:
                alt = alternative_text(found.cells, number)
                cell.metadata.mystnb = {**cell.metadata.get("mystnb", {}), "image": {"alt": alt}}

    if runs:
        title, _, rest = found.cells[0].source.partition("\n")
        found.cells[0].source = f"{title}\n\n{_buttons(runs.items())}\n{rest}"
    return found


def _buttons(links: Iterable[tuple[str, str]]) -> str:
    """Links by their words, as a line of buttons."""
    shown = [f"<a href='{html.escape(address)}'>{html.escape(words)}</a>" for words, address in links]
    return f"<p class='where'>{' '.join(shown)}</p>"


def colab(notebook: NotebookNode, repository: str) -> NotebookNode:
    """A copy of a chapter that begins with a cell that installs the workbook."""
    import nbformat

    cell = nbformat.v4.new_code_cell(SETUP.format(repository=repository), id="install")
    return nbformat.from_dict({**notebook, "cells": [cell, *notebook.cells]})


def _source_page(path: str, chapters: Mapping[str, str]) -> str:
    """The page of a file: the chapters that name it, what it says of itself, its rungs, and its text.

    ``chapters``: titles by stem.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    up = posixpath.relpath("notebooks", posixpath.dirname(path) or ".")
    lines = [f"# {path}", ""]
    if chapters:
        lines += ["Chapters: " + ", ".join(f"[{title}]({up}/{stem}.ipynb)" for stem, title in chapters.items()), ""]
    if rungs := _rungs(text) if path.endswith(".py") else []:
        rows = [f"<li><a href='#L-{at}'><code>{name}</code></a>: {html.escape(idea)}</li>" for name, at, idea in rungs]
        lines += ["The rungs, from naive to fast:", "", f"<ol>{''.join(rows)}</ol>", ""]
    language = {".py": "python", ".json": "json", ".yml": "yaml"}.get(Path(path).suffix, "text")
    fence = "`" * 8  # a file may have fences of its own
    lines += [f"{fence}{{code-block}} {language}", ":linenos:", "", text + fence, ""]
    return "\n".join(lines)


def _rungs(text: str) -> list[tuple[str, int, str]]:
    """The rungs in the text of a module: the name, the line and the idea of each."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    called = [(node, [each.func for each in node.decorator_list if isinstance(each, ast.Call)]) for node in functions]
    rungs = [node for node, by in called if any(isinstance(each, ast.Name) and each.id == "rung" for each in by)]
    return [(node.name, node.lineno, (ast.get_docstring(node) or "").partition("\n\n")[0]) for node in rungs]


def pages(paths: Sequence[Path], *, repository: str = "", browser: bool = False) -> dict[str, str]:
    """What Sphinx reads, as text by its place below ``build/site-source/``.

    Args:
        paths: sources of chapters, such as `pmpp.lab.publish.notebooks.sources` gives.
        repository: the address of the repository on GitHub, for Colab.
        browser: the browser edition will stand in the folder ``browser`` beside the pages.

    Raises ValueError if a notebook is not what its source says, or links to a file that is not there.
    """
    import nbformat

    if repository and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"repository must be an address as https://github.com/OWNER/NAME, was {repository!r}")
    if wrong := [fault for path in paths for fault in faults(path)]:
        raise ValueError("\n".join([*wrong, "Run: make notebooks"]))
    found: dict[str, str] = {}
    titles: dict[str, str] = {}
    named: dict[str, dict[str, str]] = {}  # by file, the titles of the chapters that name it, by stem
    for path in paths:
        notebook = nbformat.read(path.parents[1] / f"{path.stem}.ipynb", as_version=4)
        titles[path.stem] = notebook.cells[0].source.partition("\n")[0].removeprefix("# ")
        runs = {}
        if browser:
            runs["Run in this browser"] = f"../browser/lab/index.html?path={path.stem}.ipynb"
        if repository:
            address = repository.replace("https://github.com", "https://colab.research.google.com/github")
            runs["Open in Colab"] = f"{address}/blob/gh-pages/colab/{path.stem}.ipynb"
            found[f"colab/{path.stem}.ipynb"] = nbformat.writes(colab(notebook, repository))
        runs["Run on your computer"] = "../index.html#start"
        seen: set[str] = set()
        found[f"notebooks/{path.stem}.ipynb"] = nbformat.writes(prepared(notebook, path.stem, seen, runs=runs))
        for file in sorted(seen):
            named.setdefault(file, {})[path.stem] = titles[path.stem]
    linked: set[str] = set()
    for name in ("README.md", "CONTRIBUTING.md"):
        text = _linked((ROOT / name).read_text(encoding="utf-8"), name, linked)
        found["index.md" if name == "README.md" else name] = text
    begin = [(f"Read chapter {title}", f"notebooks/{stem}.html") for stem, title in list(titles.items())[:1]]
    begin += [("Run it in this browser", f"browser/lab/index.html?path={paths[0].stem}.ipynb")] if browser else []
    begin += [("The repository", repository)] if repository else []
    above = f"{_buttons(begin)}\n\n" + f"{BROWSED}\n\n" * browser
    text = found["index.md"].replace("git clone ADDRESS", f"git clone {repository or 'ADDRESS'}")
    found["index.md"] = text.replace("\n## ", f"\n{above}## ", 1) + _contents(list(titles))
    words = glossary.page("notebooks/{}.ipynb".format)
    found["glossary.md"] = re.sub(r"\[([^\[\]]+)\]\((#[\w-]+)\)", r"<a href='\2'>\1</a>", words)
    waiting = {*named, *linked}
    while waiting:
        file = min(waiting)
        more: set[str] = set()
        if file.endswith(".md"):
            text = _linked((ROOT / file).read_text(encoding="utf-8"), file, more)
        else:
            text = _source_page(file, named.get(file, {}))
        found[f"{file}.md"] = f"---\norphan: true\n---\n\n{text}"
        waiting = {other for other in waiting | more if f"{other}.md" not in found}
    return found


def _contents(stems: Sequence[str]) -> str:
    """The table of contents in parts, for the side of each page."""
    entries: dict[str, list[str]] = {}
    for stem in stems:
        number = number_of(stem)
        part = PARTS[max(first for first in PARTS if first <= number)]
        entries.setdefault(part, []).append(f"notebooks/{stem}")
    entries["Beside the chapters"] = ["glossary", "CONTRIBUTING"]
    lists = [f":hidden:\n:caption: {part}\n\n" + "\n".join(pages) for part, pages in entries.items()]
    return "".join(f"\n```{{toctree}}\n{text}\n```\n" for text in lists)


def write(files: Mapping[str, str], out: Path) -> None:
    """Write files by name into a folder, and delete what else is in it. A file that is as it was keeps its time.

    Sphinx reads again only what has changed.
    """
    for path in sorted(out.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(out).as_posix() not in files:
            path.unlink()
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.lab.publish.site", description="Make the site.")
    parser.add_argument("--out", type=Path, default=BUILT, help="the folder of the pages; build/site by default")
    parser.add_argument("--repository", default="", help="https://github.com/OWNER/NAME: chapters get a link to Colab")
    chosen = parser.parse_args(arguments)
    out, source = chosen.out.resolve(), chosen.out.resolve().parent / f"{chosen.out.name}-source"
    browser = (BROWSER / "lab" / "index.html").is_file()
    try:
        files = pages(sources((), folder), repository=chosen.repository.rstrip("/"), browser=browser)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    copies = {name: text for name, text in files.items() if name.startswith("colab/")}
    write({name: text for name, text in files.items() if name not in copies}, source)
    picture = source / "pmpp" / "recorded" / "roofline.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "pmpp" / "recorded" / "roofline.svg", picture)
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", str(CONFIG), "--quiet"]
    command += ["--fail-on-warning", "--keep-going", "--jobs", str(os.cpu_count() or 1)]
    command += ["--doctree-dir", str(source.parent / f"{out.name}-doctrees"), str(source), str(out)]
    if status := subprocess.run(command, check=False).returncode:
        return status
    shutil.rmtree(out / "colab", ignore_errors=True)
    if copies:
        (out / "colab").mkdir()
    for name, text in copies.items():
        (out / name).write_text(text, encoding="utf-8")
    shutil.rmtree(out / "browser", ignore_errors=True)
    if browser:
        shutil.copytree(BROWSER, out / "browser")
    (out / ".nojekyll").touch()  # GitHub would leave out the folders that begin with an underscore
    print(f"{out / 'index.html'}: {len(files) - len(copies)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
