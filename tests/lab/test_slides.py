"""Slides: what of a chapter stands on them, and that the file holds it. Whether they look well was seen in pictures."""

import base64
import functools
import io
import re
import sys

import pytest

nbformat = pytest.importorskip("nbformat", reason="chapters need the extra 'lab'")

from pmpp.lab.publish import notebooks, slides  # noqa: E402
from pmpp.lab.publish.slides import Slide, plain, runs, sentences  # noqa: E402

SOURCES = notebooks.sources()
each_chapter = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


@functools.cache
def chapter(path):
    text = (notebooks.NOTEBOOKS / f"{path.stem}.ipynb").read_text(encoding="utf-8")
    return nbformat.v4.reads(text)  # without validating all of it, which takes long


@functools.cache
def made(path):
    return slides.slides(chapter(path))


@functools.cache
def said(path):
    """The prose of a chapter in one line, without the signs of headings and lists."""
    prose = "\n".join(cell.source for cell in chapter(path).cells if cell.cell_type == "markdown")
    return " ".join(re.sub(r"(?m)^(- |\d+\. |#+ )", "", prose).split())


# -------------------------------------------------------------------------------------------------------- every chapter


@each_chapter
def test_sentences_are_the_chapters_own(path):
    for slide in made(path):
        for text in slide.text[1:] if slide.kind == "title" else slide.text:
            text = text if slide.kind != "question" else text[1:]  # the question of a chapter begins with a capital
            assert " ".join(text.split()).rstrip(".") in said(path), text


@each_chapter
def test_a_slide_has_one_idea(path):
    for slide in made(path):
        assert slide.heading
        if slide.kind in ("text", "figure", "code"):
            assert len(slide.text) <= slides.SENTENCES
            assert sum(map(len, slide.text)) <= 480
            assert slide.text or slide.figure or slide.code
            assert slide.notes or not slide.text
        assert bool(slide.figure) == (slide.kind == "figure")
        assert bool(slide.code) == (slide.kind == "code")
        assert not any(mark in plain(text) for text in slide.text for mark in ("$", "\\", ".ipynb", "](../"))


@each_chapter
def test_figures_and_questions_of_the_chapter_are_there_and_answers_are_not(path):
    kinds = [slide.kind for slide in made(path)]
    assert kinds[0] == "title"
    assert 8 <= len(kinds) <= 60
    pictures = {slide.figure for slide in made(path) if slide.figure}
    everything = {
        base64.b64decode(output.data["image/png"])
        for cell in chapter(path).cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    }
    assert pictures <= everything
    # What a figure before the first heading, or below "Answers", shows is no part of the lecture.
    assert len(pictures) >= 0.6 * len(everything)
    for slide in made(path):
        if slide.heading.startswith("Predict"):
            assert any("?" in text for text in slide.text)
            assert slide.notes.removeprefix("Answer: "), slide.text
        assert "Answers" not in slide.heading
        assert not slide.heading.startswith("Exercise")


# ------------------------------------------------------------------------------------------------------ a small chapter


def markdown(text):
    return nbformat.v4.new_markdown_cell(text)


def code(source="", *, text="", stdout="", png=b"", html=""):
    outputs = [nbformat.v4.new_output("stream", text=stdout)] if stdout else []
    data = {"image/png": base64.b64encode(png).decode()} if png else {}
    data |= ({"text/plain": text} if text else {}) | ({"text/html": html} if html else {})
    outputs += [nbformat.v4.new_output("display_data", data)] if data else []
    return nbformat.v4.new_code_cell(source, outputs=outputs)


def notebook(*cells):
    about = "*One, two. PMPP 4e: chapter 1; 5e: chapter 2. The code is there.*"
    first = f"# 0. A title\n\n{about}\n\n**The question of this chapter: why?**"
    return nbformat.v4.new_notebook(cells=[markdown(first), *cells])


def kinds(*cells):
    return slides.slides(notebook(*cells))[2:]


def test_the_first_slides():
    first, second = slides.slides(notebook())
    assert first == Slide("title", "0. A title", ("One, two.", "PMPP 4e: chapter 1; 5e: chapter 2."), notes=first.notes)
    assert second == Slide("question", "The question", ("Why?",))


def test_a_section_of_words_and_a_printed_table():
    found = kinds(markdown("## A\n\nOne. Two. Three. Four."), code(stdout="a\nb\n"), markdown("## B\n\nFive."))
    assert found == [
        Slide("code", "A", ("One.", "Two.", "Three."), code="a\nb", notes="One. Two. Three. Four."),
        Slide("text", "B", ("Five.",), notes="Five."),
    ]


def test_a_figure_takes_what_is_said_behind_it():
    one, two = b"\x89PNG one", b"\x89PNG two"
    found = kinds(
        markdown("## A\n\nBefore."),
        code(png=one),
        markdown("Behind the first.\n\n## B\n\nBefore the second."),
        code(png=two),
        code(png=one),
    )
    assert [(slide.heading, slide.text, slide.figure) for slide in found] == [
        ("A", ("Behind the first.",), one),
        ("B", ("Before the second.",), two),
        ("B", (), one),
    ]


def test_a_kernel_on_show():
    listing = "# pmpp/kernels/a.py:3\n@cuda.jit\ndef f(x):\n    pass\n"
    (slide,) = kinds(markdown("## A\n\nA kernel."), code("show(f)", text=listing))
    assert slide == Slide("code", "A", ("A kernel.",), code="@cuda.jit\ndef f(x):\n    pass", notes="A kernel.")
    (long,) = kinds(markdown("## A\n\nA kernel."), code("show(f)", text=listing + "    pass\n" * 40))
    assert long.kind == "text"


def test_a_question_comes_behind_what_it_asks_about():
    answer = "<details><summary>Show the answer</summary>3 &lt; 4</details>"
    found = kinds(
        markdown(
            "## A\n\nWords.\n\n"
            "**Predict, then run.** Look at it. How many? (It is printed.) See the table above. A rough number will do."
        ),
        code("guess = None", html=answer),
        markdown("So many."),
    )
    assert [(slide.kind, slide.text) for slide in found] == [
        ("text", ("Words.",)),
        ("question", ("Look at it.", "How many?", "A rough number will do.")),
        ("text", ("So many.",)),
    ]
    assert found[1].notes == "Answer: 3 < 4"


def test_exercises_and_answers_are_left_out():
    found = kinds(
        markdown(
            "## What to take along\n\n- One. More.\n- Two\n  lines.\n\n## Exercises\n\nDo this.\n\n## Answers\n\nSo."
        ),
        code(png=b"\x89PNG answer"),
    )
    assert found == [Slide("list", "What to take along", ("One.", "Two lines."), notes="One. More.\nTwo lines.")]


def test_what_only_makes_sense_in_the_notebook_is_left_out():
    (slide,) = kinds(markdown("## A\n\nThe next cell prints it. It is long. Memory is the bound. Here is why: see."))
    assert slide.text == ("Memory is the bound.",)


def test_a_question_that_leads_on_is_left_out():
    (slide,) = kinds(markdown("## A\n\nIs it? It is. Is that all?"))
    assert slide.text == ("Is it?", "It is.")
    (slide,) = kinds(markdown("## A\n\nIs it?"))
    assert slide.text == ("Is it?",)


# ------------------------------------------------------------------------------------------------------------- the text


def test_sentences():
    assert sentences("A is (B. C is.) D is 3.5. `e` is! *F* is?") == [
        "A is (B. C is.)",
        "D is 3.5.",
        "`e` is!",
        "*F* is?",
    ]
    assert sentences("  One\n two.  ") == ["One two."]


def test_runs():
    assert runs("**a** `b*c*` 2^10 and $x_i^{2k} \\le 3$") == [
        ("a", "strong"),
        (" ", ""),
        ("b*c*", "code"),
        (" 2", ""),
        ("10", "raised"),
        (" and x", ""),
        ("i", "lowered"),
        ("2k", "raised"),
        (" ≤ 3", ""),
    ]
    assert plain("[chapter 8](08_warps.ipynb), 4 * 3 and 5 * 2") == "chapter 8, 4 * 3 and 5 * 2"


# ------------------------------------------------------------------------------------------------------------- the file


def test_the_file_has_the_slides(tmp_path, capsys):
    pptx = pytest.importorskip("pptx", reason='python-pptx is missing: pip install -e ".[slides]"')
    (path,) = (path for path in SOURCES if path.stem == "22_launches")
    assert slides.main([path.stem, "--out", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a' / path.stem}.pptx: slides: {len(made(path))}\n"
    deck = pptx.Presentation(tmp_path / "a" / f"{path.stem}.pptx")
    assert len(deck.slides) == len(made(path))
    for page, slide in zip(deck.slides, made(path), strict=True):
        assert page.shapes.title.text == plain(slide.heading)
        text = "\n".join(shape.text_frame.text for shape in page.shapes if shape.has_text_frame)
        assert all(plain(one) in text for one in slide.text)
        assert slide.code.replace("\t", "    ") in text
        pictures = [shape for shape in page.shapes if shape.shape_type == 13]
        assert [shape.image.blob for shape in pictures] == ([slide.figure] if slide.figure else [])
        assert all(shape._element.nvPicPr.cNvPr.get("descr") for shape in pictures)
        assert (page.has_notes_slide and page.notes_slide.notes_text_frame.text) == (slide.notes or False)
        for shape in page.shapes:  # nothing reaches over the edge
            assert min(shape.left, shape.top) >= 0
            assert shape.left + shape.width <= deck.slide_width
            assert shape.top + shape.height <= deck.slide_height + 1


def test_code_fits_into_its_box():
    for text in ("x" * 100, "\n".join(["x = 1"] * 26), "a"):
        size = slides._code_size(text, 8.6, 5.5)
        lines = text.splitlines()
        assert 0.6 * size * max(map(len, lines)) / 72 <= 8.6 - 0.2
        assert size * 1.2 * len(lines) / 72 <= 5.5


def test_without_the_library_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pptx", None)
    assert slides.main(["22_launches"]) == 1
    assert capsys.readouterr().err == 'python-pptx is missing: pip install -e ".[slides]"\n'


def test_unknown_chapters_are_refused():
    pytest.importorskip("pptx", reason='python-pptx is missing: pip install -e ".[slides]"')
    with pytest.raises(SystemExit, match="no such chapter: 01_other"):
        slides.main(["01_other"])


def test_the_alternative_text_of_a_picture_is_what_is_said_about_it():
    pptx = pytest.importorskip("pptx", reason='python-pptx is missing: pip install -e ".[slides]"')
    image = pytest.importorskip("PIL.Image", reason="figures are read with pillow").new("RGB", (200, 100))
    buffer = io.BytesIO()
    image.save(buffer, "png")
    deck = pptx.Presentation()
    slides._place(2, deck, Slide("figure", "`A` head", ("One *word*.",), figure=buffer.getvalue()), "22_launches")
    (picture,) = (shape for shape in deck.slides[0].shapes if shape.shape_type == 13)
    assert picture._element.nvPicPr.cNvPr.get("descr") == "A head One word."
