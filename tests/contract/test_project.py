"""The project's own files agree with one another."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import pmpp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not within `make test`
SOURCES = sorted(path for folder in ("pmpp", "tests") for path in (ROOT / folder).rglob("*.py"))

needs_make = pytest.mark.skipif(shutil.which("make") is None or os.name == "nt", reason="needs make and a Unix shell")


def names(requirements):
    return {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements}


def test_the_base_needs_no_cuda_and_no_numba():
    base = PROJECT["project"]["dependencies"]
    assert not [name for name in names(base) if re.search(r"numba|cuda|cupy|torch|nvidia", name)]
    assert any(re.fullmatch(r"numpy>=[\d.]+,<2\.5", requirement) for requirement in base)


@pytest.mark.parametrize("extra", EXTRAS)
def test_cuda_packages_stay_off_macos(extra):
    for requirement in EXTRAS[extra]:
        if re.match(r"numba-cuda|cupy", requirement):
            assert requirement.endswith("; sys_platform != 'darwin'")


def statements(node):
    """All statements in a node, to any depth. Expressions, which have none, are left out: most of a tree is these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_every_import_is_declared():
    declared = names(PROJECT["project"]["dependencies"]).union(*[names(EXTRAS[extra]) for extra in EXTRAS])
    provides = {
        "sklearn": "scikit-learn",
        "PIL": "pillow",
        "pptx": "python-pptx",
        "yaml": "pyyaml",
        "mpl_toolkits": "matplotlib",
        "_pytest": "pytest",
    }
    comes_with = {"IPython": "ipykernel", "jupyter_client": "ipykernel", "numba": "numba-cuda"}
    comes_with |= {"llvmlite": "numba-cuda", "threadpoolctl": "scikit-learn"}
    optional = {"torch", "triton", "jax", "cupy", "cupyx", "cuda"}  # Triton comes with PyTorch, cuda with numba-cuda
    optional |= {"nvmath", "cutlass"}  # what practitioners write kernels in, measured where it is installed
    own = {"pmpp", "tests"}
    known = own | optional | set(sys.stdlib_module_names)
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Inside a test, an import may be part of what is tested.
        for node in tree.body if "tests" in path.parts else statements(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for module in {name.partition(".")[0] for name in modules} - known:
                package = provides.get(module) or comes_with.get(module) or module
                assert package.lower() in declared, f"{path.relative_to(ROOT)} imports {module}"


def test_files_are_read_and_written_as_utf_8():
    """Where none is named, Windows takes another encoding: the × of a chapter is then another character or an error."""
    for path in (*(ROOT / "pmpp").rglob("*.py"), *(ROOT / "notebooks" / "source").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\b(read|write)_text\b", text):
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        texts = [call for call in calls if getattr(call.func, "attr", "") in ("read_text", "write_text")]
        unnamed = [call.lineno for call in texts if "encoding" not in [keyword.arg for keyword in call.keywords]]
        assert unnamed == [], path


def test_the_version_has_one_source():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", pmpp.__version__)


def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["project"]["name"] == "pmpp-workbook"  # pmpp on the package index is somebody else's
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["pmpp"]


def test_a_wheel_has_the_package_with_its_data_and_nothing_else():
    wheel = pytest.importorskip("hatchling.builders.wheel", reason='hatchling is missing: pip install -e ".[test]"')
    found = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {path.partition("/")[0] for path in found} == {"pmpp"}
    data = [path for path in (ROOT / "pmpp").rglob("*") if path.suffix in (".json", ".svg", ".txt")]
    assert len(data) > len(list((ROOT / "pmpp/recorded").glob("*/*.json"))) > 0
    assert {path.relative_to(ROOT).as_posix() for path in (*data, *(ROOT / "pmpp").rglob("*.py"))} <= found


def test_conda_users_get_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["name"] == PROJECT["project"]["name"]
    python, pip, section = environment["dependencies"]
    assert python == "python" + PROJECT["project"]["requires-python"]
    assert pip == "pip"
    (line,) = section["pip"]
    path, extras = re.fullmatch(r"-e (\S+?)\[(.+)\]", line).groups()
    assert path == "."
    assert set(extras.split(",")) <= EXTRAS.keys()
    assert {"lab", "test"} < set(extras.split(","))


def test_the_makefile_installs_extras_that_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"\$\(call install,([\w-]+),([\w-]*)\)", text)
    assert found == [("test", "ptx")]
    named = set(re.findall(r"\$\(VENV\)/\.([\w-]+)", text))  # the others are named by the file that they leave behind
    assert {"lab", "test", "dev"} <= named <= EXTRAS.keys()


@needs_make
def test_make_lists_its_targets():
    result = subprocess.run(["make", "help"], cwd=ROOT, env=OUTSIDE, capture_output=True, text=True, check=True)
    targets = [line.split()[1] for line in result.stdout.splitlines()]
    known = [
        "help",
        "lab",
        "test",
        "test-gpu",
        "attest",
        "stale",
        "mutants",
        "lint",
        "notebooks",
        "bench",
        "targets",
        "readme",
        "room",
        "instruments",
    ]
    # for a course
    known += [
        "release",
        "solutions",
        "nbgrader",
        "otter",
        "classroom",
        "test-course",
        "grade",
        "quiz",
        "slides",
        "teaching",
        "site",
        "test-site",
        "browser",
        "test-browser",
    ]
    known += ["clean"]
    assert targets == known


def test_make_takes_the_pythons_that_the_project_allows():
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"not (3, {low}) <= sys.version_info < (3, {high})" in text
    said = f"Python 3.{low} to 3.{int(high) - 1}"
    assert said in text
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


@needs_make
@pytest.mark.parametrize("old", [True, False])
def test_make_says_which_python_it_cannot_take(tmp_path, old):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        # Like a real one, it prints its version and then says whether that will do; or it does not start.
        old_one = 'case "$2" in *print*) echo 3.9.6;; *) exit 1;; esac'
        (tools / name).write_text(
            f"#!/bin/sh\n{old_one if old and name == 'python3' else 'exit 127'}\n", encoding="utf-8"
        )
        (tools / name).chmod(0o755)
    result = subprocess.run(
        ["make", ".venv/.lab"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{tools}:/usr/bin:/bin", "MAKEFLAGS": ""},
    )
    assert result.returncode != 0
    found = "python3 is 3.9.6" if old else "none"
    assert re.match(rf"pmpp needs Python [\d.]+ to [\d.]+\. Found: {found}\.\nInstall one", result.stderr)
    assert "make lab PYTHON=/path/to/python3" in result.stderr


@needs_make
def test_make_lab_prints_the_address_of_the_first_chapter():
    shown = subprocess.run(
        ["make", "--dry-run", "--always-make", "lab", "LAB_ARGS=--no-browser"],
        cwd=ROOT,
        env=OUTSIDE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (url,) = re.findall(r"--LabApp\.default_url=/lab/tree/(\S+)", shown)
    assert url == "notebooks/00_start_here.ipynb"
    assert (ROOT / url).is_file()
    assert "--no-browser" in shown


def test_the_citation_is_of_this_version_and_licence():
    """The form itself is that of the Citation File Format 1.2.0, and was checked with cffconvert --validate."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", pmpp.__version__)
    assert cited["license"] == PROJECT["project"]["license"]
    assert cited["keywords"] == PROJECT["project"]["keywords"]


def test_the_image_for_a_class_is_pinned_and_copies_what_is_there():
    text = (ROOT / "docs/teaching/Containerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"[\w./-]+:\d{4}-\d\d-\d\d", base)
    assert set(re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)[1].split(",")) <= EXTRAS.keys()
    copied = [name for line in re.findall(r"^COPY \S+ (.+)$", text, re.MULTILINE) for name in line.split()[:-1]]
    made = {"build/release"}  # by make release
    assert len(copied) == 6
    assert [name for name in copied if name not in made and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_what_the_pages_name_is_there(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    shown = re.sub(r"`[^`]*`", "", text)  # a link inside code is an example
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", shown) if "://" not in link]
    paths = re.findall(r"`((?:notebooks|pmpp|tests)/[\w./-]+)`", text)  # those with <name> in them are no paths
    modules = re.findall(r"python -m ((?:pmpp|tests)[\w.]*)", text)
    paths += [name.replace(".", "/") for name in modules]
    missing = [path for path in (*links, *paths) if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]
    assert paths
    assert missing == []
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".github/workflows/site.yml", ".pre-commit-config.yaml"])
def test_the_yaml_files_parse(name):
    assert yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_ci_runs_one_script():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "bash .ci/run" in steps
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for command in (
        "make lint",
        "make test",
        "stale",
        "pmpp.lab.publish.notebooks --check",
        "pmpp.lab.publish.readme --check",
        "pmpp.lab.publish.teaching --check",
    ):
        assert command in script


def test_ci_runs_the_commands_of_the_readme():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    run = {name: "\n".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    (windows,) = re.findall(r"```sh\n(python -m venv .*?)```", page, re.DOTALL)
    *setting_up, lab = windows.splitlines()
    (tests,) = re.findall(r"`(\.venv\S+ -m pytest .*?)`", page)
    for command in (*setting_up, lab.partition(" notebooks/")[0], tests):
        assert command in run["windows"]
    (conda,) = re.findall(r"\*\*conda\*\*: (.*?)\n\n", page, re.DOTALL)
    for command in re.findall(r"`(.*?)`", conda):
        assert command.partition(" notebooks/")[0] in run["conda"]


def test_ci_tries_the_oldest_and_the_newest_python():
    low, high = map(int, re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"]))
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    tried = {each["python"] for each in workflow["jobs"]["everything"]["strategy"]["matrix"]["include"]}
    assert {f"3.{low}", f"3.{high - 1}"} <= tried


def test_the_extras_that_the_readme_names_are_there():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r'"\.\[([\w,-]+)\]"', page)
    assert len(named) >= 4
    assert {extra for each in named for extra in each.split(",")} <= EXTRAS.keys()


def test_every_ignored_rule_has_its_reason():
    ignored = False
    for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if re.match(r"(ignore|\"[^\"]+\\*\") = \[", line):
            ignored = True
        elif line == "]":
            ignored = False
        elif ignored:
            assert re.match(r'    "[A-Z]+\d+", # .{10}', line), line


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_interpreter_knows_neither_numba_nor_an_instrument():
    for path in (ROOT / "pmpp" / "simt").rglob("*.py"):
        found = set(imports(ast.parse(path.read_text(encoding="utf-8")).body))
        assert not [name for name in found if re.match(r"numba|pmpp\.lab", name)], path
    code = "import sys, pmpp.simt; print({'numba', 'llvmlite', 'pmpp.lab'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
