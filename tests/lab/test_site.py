"""What the site is made of: links, figures, folded cells, copies for Colab. tests/site looks at the pages."""

import importlib.util
import re
from pathlib import Path

import pytest

from pmpp.lab.publish import browser, notebooks, site
from pmpp.lab.rooms import rooms
from pmpp.runtime.rung import room_name

if importlib.util.find_spec("nbformat") is None or importlib.util.find_spec("jupytext") is None:
    pytest.skip("chapters need the extra 'lab'", allow_module_level=True)

import nbformat
import yaml

STEM = "18_when_a_kernel_is_wrong"
PATHS = [path for path in notebooks.sources() if path.stem in ("00_start_here", STEM)]
REPOSITORY = "https://github.com/owner/name"


@pytest.fixture(scope="module")
def chapter():
    return nbformat.read(notebooks.NOTEBOOKS / f"{STEM}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def files():
    return site.pages(PATHS, repository=REPOSITORY, browser=True)


def code(source, *figures):
    outputs = [nbformat.v4.new_output("display_data", {"image/png": figure}) for figure in figures]
    return nbformat.v4.new_code_cell(source, outputs=outputs)


def prose(source):
    return nbformat.v4.new_markdown_cell(source)


def test_nothing_but_links_folds_and_descriptions_is_changed(chapter):
    before = nbformat.writes(chapter)
    found = site.prepared(chapter, STEM, set(), runs={})
    assert nbformat.writes(chapter) == before
    for old, new in zip(chapter.cells, found.cells, strict=True):
        if old.cell_type == "code":
            assert new.source == old.source
            for first, second in zip(old.outputs, new.outputs, strict=True):
                data, shown = first.get("data", {}), second.get("data", {})
                assert {k: v for k, v in data.items() if k != "text/markdown"} == {
                    k: v for k, v in shown.items() if k != "text/markdown"
                }
        else:
            assert re.sub(r"\(.*?\)", "", new.source) == re.sub(r"\(.*?\)", "", old.source)


def test_each_place_that_is_shown_becomes_a_link_to_its_line(chapter):
    seen = set()
    found = site.prepared(chapter, STEM, seen, runs={})
    texts = [
        o.data["text/markdown"]
        for c in found.cells
        for o in c.get("outputs", [])
        if "text/markdown" in o.get("data", {})
    ]
    places = re.findall(r"<a href='\.\./(\S+)\.html#L-(\d+)'><code>(\S+):(\d+)</code></a>", "\n".join(texts))
    assert len(places) > 3
    for path, line, shown, number in places:
        assert (path, line) == (shown, number)
        assert path in seen
        text = (site.ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text.startswith(("@", "def "))
    assert not re.search(r"^`pmpp/\S+:\d+`$", "\n".join(texts), re.MULTILINE)


def test_folded_cells_stay_folded(chapter):
    found = site.prepared(chapter, STEM, set(), runs={})
    folded = 0
    for old, new in zip(chapter.cells, found.cells, strict=True):
        tags = {tag for tag in new.metadata.get("tags", []) if tag.startswith("hide-")}
        hidden = old.metadata.get("jupyter", {})
        expected = {(True, True): {"hide-cell"}, (True, False): {"hide-input"}, (False, True): {"hide-output"}}
        wanted = hidden.get("source_hidden", False), hidden.get("outputs_hidden", False)
        assert tags == expected.get(wanted, set())
        folded += bool(tags)
    assert folded


def test_a_folded_answer_names_its_exercise(chapter):
    found = site.prepared(chapter, STEM, set(), runs={})
    shown = [
        cell.metadata.mystnb.code_prompt_show
        for cell in found.cells
        if "mystnb" in cell.metadata and "tags" in cell.metadata
    ]
    assert shown
    assert all(re.fullmatch(r"Show the answer to [a-z_]+/[a-z_]+( and [a-z_]+/[a-z_]+)*", words) for words in shown)


def test_links_to_chapters_in_outputs_lead_to_their_pages():
    notebook = nbformat.read(notebooks.NOTEBOOKS / "00_start_here.ipynb", as_version=4)
    found = site.prepared(notebook, "00_start_here", set(), runs={})
    text = found.cells[-2].outputs[0].data["text/markdown"]
    assert "(04_vector_add.html)" in text
    assert ".ipynb" not in text


def test_pages_for_teachers_are_shown_as_text(files):
    page = files["docs/teaching/README.md.md"]
    assert page.startswith("---\norphan: true\n---\n\n# For teachers\n")
    assert "[syllabus.md](syllabus.md.md)" in page
    assert "[README.md](../../index.md)" in page
    assert "docs/teaching/guide/04_vector_add.md.md" in files


def test_the_front_page_says_what_to_clone(files):
    assert f"git clone {REPOSITORY} pmpp" in files["index.md"]
    assert "git clone ADDRESS pmpp" in site.pages(PATHS)["index.md"]
    assert site.BROWSED in files["index.md"]
    assert site.BROWSED not in site.pages(PATHS)["index.md"]


def test_a_figure_is_described_by_its_code_and_by_what_comes_next():
    figure = code("ax.set_title('Time of a step')\nax.legend(loc='upper right')\nprint('not this one')", "x")
    cells = [
        prose("# 1. A\n\nWords."),
        prose("## All *rungs*"),
        figure,
        prose("The `last` one wins. It is so: see.\n\nNo."),
    ]
    text = "Figure: All rungs. Labels: Time of a step. The last one wins. It is so: see."
    assert site.alternative_text(cells, 2) == text


@pytest.mark.parametrize(
    "after", ["## Next\n\nOther.", "And over the size:", "**Predict, then run.** How many?", "Why?"]
)
def test_what_comes_next_may_be_about_something_else(after):
    cells = [prose("## Rates\n\nFirst.\n\nHere are the rates:"), code("draw()", "x"), prose(after)]
    assert site.alternative_text(cells, 1) == "Figure: Rates. Here are the rates:"


def test_every_figure_of_every_chapter_is_described():
    for path in notebooks.sources():
        cells = nbformat.read(notebooks.NOTEBOOKS / f"{path.stem}.ipynb", as_version=4).cells
        for at, cell in enumerate(cells):
            if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
                assert len(site.alternative_text(cells, at)) > 40, (path.stem, at)


def test_code_that_looks_like_a_link_is_left_alone():
    text = "`kernel[grid](x)` and\n```\nkernel[1](y)\n```\nand [it](../pmpp/nn/tape.py)"
    seen = set()
    assert site._linked(text, f"notebooks/{STEM}.ipynb", seen) == text.replace("tape.py", "tape.py.md")
    assert seen == {"pmpp/nn/tape.py"}


def test_a_link_that_leads_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"README\.md links to pmpp/none\.py, which is not in the repository"):
        site._linked("[x](pmpp/none.py)", "README.md", set())


def test_sources_lead_back_to_their_chapters(files):
    page = files["pmpp/kernels/debugging/bugs.py.md"]
    assert f"](../../../notebooks/{STEM}.ipynb)" in page
    assert (site.ROOT / "pmpp/kernels/debugging/bugs.py").read_text(encoding="utf-8") in page


@pytest.mark.parametrize("room", rooms(), ids=room_name)
def test_the_page_of_a_room_lists_its_rungs_with_their_lines(room):
    path = Path(room.__file__)
    text = path.read_text(encoding="utf-8").splitlines()
    page = site._source_page(path.relative_to(site.ROOT).as_posix(), {})
    rungs = re.findall(r"<li><a href='#L-(\d+)'><code>(\w+)</code></a>: \S", page)
    assert [text[int(line) - 1] for line, _ in rungs] == [f"def {name}(p):" for _, name in rungs]
    assert {name for _, name in rungs} == {each.name for each in room.LADDER}


def test_the_links_that_run_a_chapter(files):
    page = files[f"notebooks/{STEM}.ipynb"]
    assert f"../browser/lab/index.html?path={STEM}.ipynb" in page
    assert f"https://colab.research.google.com/github/owner/name/blob/gh-pages/colab/{STEM}.ipynb" in page
    without = site.pages(PATHS)
    assert "colab.research" not in without[f"notebooks/{STEM}.ipynb"]
    assert "browser/lab" not in without[f"notebooks/{STEM}.ipynb"] + without["index.md"]
    assert not [name for name in without if name.startswith("colab/")]


def test_the_copy_for_colab_begins_with_a_cell_that_installs(files, chapter):
    copy = nbformat.reads(files[f"colab/{STEM}.ipynb"], as_version=4)
    nbformat.validate(copy)
    assert f"git clone --quiet --depth 1 {REPOSITORY} " in copy.cells[0].source
    assert [cell.source for cell in copy.cells[1:]] == [cell.source for cell in chapter.cells]


@pytest.mark.parametrize(
    "address", ["https://example.org/owner/name", "github.com/owner/name", "https://github.com/owner"]
)
def test_colab_reads_github_alone(address):
    with pytest.raises(ValueError, match=r"repository must be an address as https://github\.com/OWNER/NAME"):
        site.pages(PATHS, repository=address)


def test_every_chapter_has_a_part_in_the_contents():
    stems = [path.stem for path in notebooks.sources()]
    contents = site._contents(stems)
    assert re.findall(r"^notebooks/(\w+)$", contents, re.MULTILINE) == stems
    assert all(f":caption: {part}\n" in contents for part in site.PARTS.values())


def test_what_is_no_longer_there_is_deleted(tmp_path):
    site.write({"a/b.md": "1", "c.md": "2"}, tmp_path)
    kept = (tmp_path / "c.md").stat().st_mtime_ns
    site.write({"c.md": "2", "d.md": "3"}, tmp_path)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"c.md", "d.md"}
    assert (tmp_path / "c.md").stat().st_mtime_ns == kept


def test_the_workflow_writes_the_branch_that_colab_reads():
    workflow = Path(site.ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8")
    assert "--initial-branch gh-pages" in workflow
    assert "make test-site SITE_ARGS=" in workflow


def test_the_workflow_builds_the_browser_edition_before_the_pages_that_lead_to_it():
    workflow = yaml.safe_load((site.ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "").partition("_ARGS=")[0] for step in workflow["jobs"]["publish"]["steps"]]
    assert steps.index("make browser BROWSER") < steps.index("make test-site SITE")
    assert site.BROWSER == browser.OUT
