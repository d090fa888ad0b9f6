"""The first cell of a chapter's copy for Colab, run in a new environment as Colab runs it."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from pmpp.lab.publish import site

ROOT = Path(__file__).parents[2]

USE = """
import numpy as np
from pmpp import cuda, simt
from pmpp.lab.publish import notebooks

@cuda.jit
def double(x):
    x[cuda.grid(1)] *= 2

x = np.arange(32, dtype=np.float32)
simt.profile(double, 1, 32, (x,))
assert x[31] == 62, x
assert notebooks.sources()
print("runs", os.getcwd())
"""


@pytest.mark.skipif(not os.environ.get("PMPP_COLAB"), reason="needs a network: PMPP_COLAB=1 make test-site")
def test_the_first_cell_installs_what_a_chapter_needs(tmp_path):
    """Twice, since a reader may run the cell again."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"

    subprocess.run([python, "-m", "pip", "install", "--quiet", "ipython"], check=True)
    cell = site.SETUP.format(repository=ROOT.as_uri())
    script = tmp_path / "cell.ipy"
    script.write_text(f"{cell}\n{cell}\n{USE}", encoding="utf-8")
    (tmp_path / "work").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMPP", "PYTHON"))}
    done = subprocess.run(
        [python, "-m", "IPython", "--no-banner", "--colors=NoColor", script],
        cwd=tmp_path / "work",
        env=environment | {"IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"runs {tmp_path / 'work' / 'pmpp-workbook'}" in done.stdout, done.stdout + done.stderr
