"""The browser edition: JupyterLite with the chapters of a release, Pyodide and this package, in build/browser/.

::

    make browser                                                  all chapters
    python -m pmpp.lab.publish.browser 04_vector_add 08_warps     only these chapters
    python -m pmpp.lab.publish.browser --distribution FOLDER      packages from an unpacked release of Pyodide
    python -m http.server --directory build/browser               look at it: lab/index.html

The folder is a site of static files. Nothing in it asks another host. A chapter is opened by
``lab/index.html?path=04_vector_add.ipynb``. On a phone that is too wide: ``notebooks/index.html`` with the same path
fits, but links between chapters do not work there. Readers' changes stay in their browser.

Pyodide installs a package when a cell imports it, if its list of packages has it. The list in the site has this
package, too, so a chapter needs no cell that installs anything: it is the same file that a release has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmpp.lab.publish import pyodide, release
from pmpp.lab.publish.notebooks import NOTEBOOKS, sources

__all__ = ["build", "listing", "main", "wheel"]

ROOT = Path(__file__).parents[3]
OUT = ROOT / "build" / "browser"
SETTINGS = {
    "jupyter-config-data": {
        "appName": "pmpp",
        "disableRTC": True,
        # What is not in the site is not installed: the package index is another host.
        "litePluginSettings": {"@jupyterlite/pyodide-kernel-extension:kernel": {"disablePyPIFallback": True}},
    },
    "jupyter-lite-schema-version": 0,
}
KERNEL = Path(sys.prefix, "share/jupyter/labextensions/@jupyterlite/pyodide-kernel-extension")
#: JupyterLab asks another host for news, unless it is told not to.
OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def wheel(folder: Path) -> Path:
    """Build this package's wheel into a folder."""
    from hatchling.builders.wheel import WheelBuilder

    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))


def listing(place: Path, digests: Mapping[str, str], own: Path) -> dict:
    """Pyodide's list of packages, with those alone that are in the site, and with this package.

    Args:
        place: the folder with Pyodide.
        digests: what `pmpp.lab.publish.pyodide.fetch` returns.
        own: this package's wheel.
    """
    whole = json.loads((place / pyodide.LISTED).read_text(encoding="utf-8"))
    kept = {name: entry for name, entry in whole["packages"].items() if entry["file_name"] in digests}
    for name in pyodide.LOCK["wheels"]:
        kept |= _entry(name, digests[name], depends=[])
    needs = [name for name in kept if name in _NEEDED]
    kept |= _entry(own.name, hashlib.sha256(own.read_bytes()).hexdigest(), depends=needs, imports=["pmpp"])
    return {**whole, "packages": dict(sorted(kept.items()))}


#: What this package imports. Pyodide does not read what a wheel requires, and of pyproject.toml it has other versions.
_NEEDED = ("matplotlib", "numpy", "pillow", "scikit-learn", "scipy", "tqdm")


def _entry(file: str, digest: str, *, depends: Sequence[str], imports: Sequence[str] = ()) -> dict[str, dict]:
    name, version, *_ = file.split("-")
    return {
        pyodide.key(name): {
            "name": pyodide.key(name),
            "version": version,
            "file_name": file,
            "install_dir": "site",
            "sha256": digest,
            "package_type": "package",
            "imports": list(imports or [name]),
            "depends": list(depends),
            "unvendored_tests": False,
        }
    }


def build(paths: Sequence[Path], out: Path = OUT, *, distribution: Path | None = None, repository: str = "") -> None:
    """Build the site.

    Args:
        paths: sources of chapters, such as `pmpp.lab.publish.notebooks.sources` gives.
        out: the folder to write. What a former call has written there is removed first.
        distribution: as in `pmpp.lab.publish.pyodide.fetch`.
        repository: as in `pmpp.lab.publish.release.linked`.

    Raises Unavailable if Pyodide cannot be had, and ValueError if a file has another digest, if a notebook is not what
    its source says, or if ``out`` has something else in it.
    """
    if out.exists() and not (out / "jupyter-lite.json").is_file() and any(out.iterdir()):
        raise ValueError(f"out must be a new folder, or that of a former browser edition: {out}")
    digests = pyodide.fetch(distribution=distribution)
    files = release.pages(paths, repository=repository, install=False)
    with tempfile.TemporaryDirectory() as temporary:
        lite = Path(temporary)
        runtime, contents = lite / "static" / "pyodide", lite / "contents"
        runtime.mkdir(parents=True)
        contents.mkdir()
        own = wheel(runtime)
        for name in (*pyodide.RUNTIME, *digests):
            shutil.copyfile(pyodide.PLACE / name, runtime / name)
        listed = json.dumps(listing(pyodide.PLACE, digests, own))
        (runtime / pyodide.LISTED).write_text(listed, encoding="utf-8")
        for name, text in files.items():
            (contents / name).write_text(text, encoding="utf-8")
        (lite / "jupyter-lite.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
        (lite / "overrides.json").write_text(json.dumps(OVERRIDES), encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        command = ["build", "--lite-dir", ".", "--contents", "contents", "--output-dir", str(out.resolve())]
        command += ["--apps", "lab", "--apps", "notebooks", "--no-sourcemaps", "--no-unused-shared-packages"]
        # Of the extensions that JupyterLab has here, the kernel alone: others may ask for a server.
        command += ["--ignore-sys-prefix", f"--LiteBuildConfig.federated_extensions={KERNEL}"]
        _lite(command, lite)
    for page in (out / "notebooks" / "index.html", out / "lab" / "index.html"):
        # Without it a browser asks for /favicon.ico, which the site's host need not have.
        text = page.read_text(encoding="utf-8")
        text = text.replace("<head>", '<head>\n    <link rel="icon" href="./favicon.ico" />', 1)
        page.write_text(text, encoding="utf-8")
    # The page of a notebook shows in its tab whether the kernel works, and JupyterLite does not bring these icons.
    for name in ("favicon-notebook.ico", "favicon-busy-1.ico"):
        icon = out / "static" / "favicons" / name
        icon.parent.mkdir(exist_ok=True)
        shutil.copyfile(out / "notebooks" / "favicon.ico", icon)


def _lite(command: Sequence[str], folder: Path) -> None:
    whole = [sys.executable, "-m", "jupyterlite_core.app", *command]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"jupyter lite {' '.join(command)}:\n{done.stdout}{done.stderr}")


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.browser", description="Build the chapters as a site that runs in a browser."
    )
    parser.add_argument("names", nargs="*", help="chapters, as 4 or 04_vector_add; all by default")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to write; build/browser by default")
    parser.add_argument("--distribution", type=Path, help="a folder with the packages of a release of Pyodide")
    parser.add_argument("--repository", default="", help="an address, for links to files of the repository")
    chosen = parser.parse_args(arguments)
    try:
        paths = sources(chosen.names, folder)
        build(paths, chosen.out, distribution=chosen.distribution, repository=chosen.repository)
    except (pyodide.Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{chosen.out}: {len(paths)} chapters; open lab/index.html?path={paths[0].stem}.ipynb from a web server")
    return 0


if __name__ == "__main__":
    sys.exit(main())
