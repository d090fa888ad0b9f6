"""A chapter in headless Chromium: a page that nobody has opened before, its first cells, and what they print.

The site must have been built (`make browser`). Each cell must print what the notebook of this repository has there, no
request may go to another host, and nothing may be reported as an error. How long a reader waits is written to
build/browser.json, or with ``--record`` to docs/teaching/browser.json; no limit is set, because it depends on the
machine.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pmpp.lab.measure.environment import describe_machine
from pmpp.lab.publish.browser import OUT, build
from pmpp.lab.publish.notebooks import sources
from pmpp.lab.publish.pyodide import Unavailable

ROOT = Path(__file__).parents[2]
TIMES, RECORD = ROOT / "build" / "browser.json", ROOT / "docs" / "teaching" / "browser.json"
PICTURE = ROOT / "build" / "browser.png"
CHAPTER = "04_vector_add"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 600_000  # ms


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A web server that does not print each request."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def printed(notebook: Path) -> list[str]:
    """What the cells of code print above the first question, in the notebook as it was executed."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            if "predict(" in "".join(cell["source"]).replace("import", ""):
                break
            streams = [output for output in cell["outputs"] if output.get("name") == "stdout"]
            found.append("".join("".join(stream["text"]) for stream in streams).strip())
    return found


def main(record: bool = False) -> int:
    """Build the site, open the chapter, print what was found; returns how many faults."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise Unavailable('Playwright is not installed, which drives Chromium: pip install -e ".[browser]"') from None
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise Unavailable("Chromium is not installed")
    build(sources([]))
    faults: list[str] = []
    with served(OUT) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: faults.append(f"console: {said.text}") if said.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("response", lambda got: faults.append(f"{got.status}: {got.url}") if got.status >= 400 else None)
        hosts = address, "blob:", "data:"
        page.context.on(
            "request", lambda one: None if one.url.startswith(hosts) else faults.append(f"asks another host: {one.url}")
        )
        begun = time.perf_counter()
        page.goto(f"{address}/lab/index.html?path={CHAPTER}.ipynb")
        texts = printed(ROOT / "notebooks" / f"{CHAPTER}.ipynb")
        cells = page.locator(".jp-Notebook .jp-CodeCell")
        # Until the file is there, the page has one cell, which is empty. A cell far below is not shown at first.
        cells.nth(len(texts)).wait_for(state="attached")
        # A cell that is run before there is a kernel is forgotten.
        page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').first.wait_for()
        seconds = {"the chapter is there": time.perf_counter() - begun}
        for number, expected in enumerate(texts, 1):
            cell = cells.nth(number - 1)
            cell.locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            cell.locator(".jp-InputPrompt", has_text=f"[{number}]").wait_for()
            seconds.setdefault("the first cell has answered", time.perf_counter() - begun)
            found = cell.locator("[data-mime-type='application/vnd.jupyter.stdout']").all_inner_texts()
            if (said := "".join(found).strip()) != expected:
                faults.append(f"cell {number} prints {said!r}, and in the repository {expected!r}")
        seconds[f"{number} cells have answered"] = time.perf_counter() - begun
        page.screenshot(path=PICTURE)
        report = {
            "chapter": CHAPTER,
            "browser": f"{browser.browser_type.name} {browser.version}",
            "run": {key: value for key, value in describe_machine().items() if key in ("date", "revision", "cpu")},
            "seconds": {what: round(value, 1) for what, value in seconds.items()},
        }
        browser.close()
    (RECORD if record and not faults else TIMES).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{CHAPTER} in {report['browser']}:", ", ".join(f"{v} s until {k}" for k, v in report["seconds"].items()))
    print(*faults, sep="\n", end="\n" * bool(faults))
    print(f"{number} cells printed, {len(faults)} faults; a picture: {PICTURE}")
    return len(faults)
