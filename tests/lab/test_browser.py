"""The browser edition: what it is made of. `make test-browser` runs it."""

import hashlib
import io
import json
import re
import tarfile
import zipfile

import pytest

from pmpp.lab.publish import browser, pyodide
from tests.browser.chapter import printed

DIGEST = re.compile(r"[0-9a-f]{64}")
PURE = re.compile(r"[\w.]+-[\w.]+-py(2\.py)?3-none-any\.whl")


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a small Pyodide, complete, and a lock that fits it."""
    package, wheel = b"a package", b"a wheel"
    packages = {
        "numpy": {"file_name": "numpy-2.whl", "sha256": digest(package), "depends": []},
        "other": {"file_name": "other-1.whl", "sha256": "0" * 64, "depends": []},
    }
    contents = dict.fromkeys(pyodide.RUNTIME, b"program")
    contents[pyodide.LISTED] = json.dumps({"info": {}, "packages": packages}).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as files:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name, content in (("r.tgz", archive.getvalue()), ("numpy-2.whl", package), ("tqdm-1-py3-none-any.whl", wheel)):
        (folder / name).write_bytes(content)
    lock = {
        "runtime": {"npm": "pyodide@1", "archive": "r.tgz", "sha256": digest(archive.getvalue())},
        "carrier": {"wheel": "carrier-1-py3-none-any.whl", "sha256": "", "folder": "c/"},
        "packages": ["numpy"],
        "wheels": {"tqdm-1-py3-none-any.whl": digest(wheel)},
        "tests": {},
    }
    monkeypatch.setattr(pyodide, "LOCK", lock)

    def refuse(command):
        raise pyodide.Unavailable(f"not to be had: {command[-1]}")

    monkeypatch.setattr(pyodide, "_run", refuse)
    return folder


def test_the_lock_has_a_digest_for_each_file():
    lock = pyodide.LOCK
    assert all(DIGEST.fullmatch(lock[part]["sha256"]) for part in ("runtime", "carrier"))
    for part in ("wheels", "tests"):
        assert lock[part]
        for name, found in lock[part].items():
            assert PURE.fullmatch(name)
            assert DIGEST.fullmatch(found)


def test_what_is_there_is_not_downloaded(place):
    assert set(pyodide.fetch(place)) == {"numpy-2.whl", "tqdm-1-py3-none-any.whl"}
    assert (place / "pyodide.asm.wasm").read_bytes() == b"program"


@pytest.mark.parametrize("name", ["r.tgz", "numpy-2.whl", "tqdm-1-py3-none-any.whl"])
def test_a_file_with_another_digest_is_refused(place, name):
    (place / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match=rf"{name} must have the sha256 {DIGEST.pattern}, was {DIGEST.pattern}"):
        pyodide.fetch(place)


def test_the_list_of_packages_that_counts_is_the_one_in_the_archive(place):
    (place / pyodide.LISTED).write_text('{"packages": {}}', encoding="utf-8")
    assert "numpy-2.whl" in pyodide.fetch(place)


@pytest.mark.parametrize("name", ["r.tgz", "numpy-2.whl", "tqdm-1-py3-none-any.whl"])
def test_a_file_that_cannot_be_had_is_named(place, name):
    (place / name).unlink()
    with pytest.raises(pyodide.Unavailable):
        pyodide.fetch(place)


def test_a_release_of_pyodide_is_asked_before_the_carrier(place, tmp_path):
    release = tmp_path / "release"
    release.mkdir()
    (place / "numpy-2.whl").rename(release / "numpy-2.whl")
    pyodide.fetch(place, distribution=release)
    assert (place / "numpy-2.whl").read_bytes() == b"a package"
    (place / "numpy-2.whl").unlink()
    (release / "numpy-2.whl").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"numpy-2\.whl must have"):
        pyodide.fetch(place, distribution=release)


def test_the_list_in_the_site_has_what_is_there_and_this_package(place, tmp_path):
    own = tmp_path / "pmpp_workbook-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(own, "w") as files:
        files.writestr("pmpp/__init__.py", "")
    listed = browser.listing(place, pyodide.fetch(place), own)["packages"]
    assert list(listed) == ["numpy", "pmpp-workbook", "tqdm"]
    entry = listed["pmpp-workbook"]
    assert entry["imports"] == ["pmpp"]
    assert entry["version"] == "1.2.3"
    assert entry["depends"] == ["numpy", "tqdm"]
    assert entry["sha256"] == digest(own.read_bytes())


def test_a_folder_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="out must be a new folder"):
        browser.build([], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_cells_that_are_compared_are_those_above_the_first_question(tmp_path):
    def cell(source, *outputs):
        return {"cell_type": "code", "source": source.splitlines(True), "outputs": list(outputs)}

    out = {"output_type": "stream", "name": "stdout", "text": ["3\n"]}
    err = {"output_type": "stream", "name": "stderr", "text": ["a warning"]}
    cells = [cell("from pmpp import predict\nprint(3)", out, err), cell("x = 1"), cell("predict(None, 3)", out)]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# A"}, *cells]}), encoding="utf-8")
    assert printed(path) == ["3", ""]
