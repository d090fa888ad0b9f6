"""Slides for each chapter, from its own headings, sentences, figures and questions, as files that teachers edit.

::

    make slides                                     slides of all chapters, in build/slides/
    python -m pmpp.lab.publish.slides 12_matmul     of this one, without make
    python -m pmpp.lab.publish.slides --sharp ...   execute the chapters again, for figures with twice the resolution

A file is a PowerPoint presentation (``.pptx``), which LibreOffice and Google Slides open, too. python-pptx writes it,
without a browser or a network.

Nothing is written for slides alone. One idea is one slide: a heading of the chapter with up to three sentences that
stand below it; a figure with what the chapter says about it; a kernel on show; a question that asks for a prediction.
The presenter's notes have the paragraphs that the sentences are from, and the answer to a question. A sentence that
only makes sense in the notebook, such as one that points at the next cell, is left out. So are exercises and answers.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import itertools
import os
import re
import struct
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmpp.lab.draw import palette
from pmpp.lab.publish.notebooks import NOTEBOOKS, ChapterError, execute, faults, sources

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Slide", "main", "plain", "runs", "sentences", "slides", "write"]

ROOT = Path(__file__).parents[3]
SENTENCES = 3  # on a slide
LETTERS = 330  # of them together, beside a figure or a kernel
COLUMNS, LINES = 100, 26  # of a kernel or a printed table that can be read from the last row
SKIPPED = ("Exercise", "On your GPU", "The chapters", "How the workbook works")

# What a sentence says to somebody who has the notebook open.
_NOTEBOOK = re.compile(
    r"(?i)\b(cells?|below|above|here is|here are|here it is|printed|prints|further up|the comment|`?check`?|folded|"
    r"exercises?|notebook|the (next|last|first) (line|column|table|figure|two lines)|the table|look at|open it|"
    r"run (it|this)|read it from|chapter \d+ (explains|asks)|that line|the answer|guess)\b"
)
_REFERS = re.compile(
    r"(And|Both|But|It|Its|So|That|Then|There|These|They|This|Those|Thus|Two of)\b"
)  # to what is before it
_MATHS = {
    r"\cdot": "·",
    r"\times": "×",
    r"\log": "log",
    r"\sqrt": "√",
    r"\tanh": "tanh",
    r"\ln": "ln",
    r"\le": "≤",
    r"\ge": "≥",
    r"\approx": "≈",
    r"\epsilon": "ε",
    r"\beta": "β",
    r"\kappa": "κ",
    r"\mu": "μ",
    r"\sigma": "σ",
    r"\pi": "π",
    r"\partial": "∂",
    r"\infty": "∞",
    r"\,": " ",
}
_TOKEN = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<strong>.+?)\*\*|\*(?P<emphasis>[^*\s](?:[^*]*[^*\s])?)\*|\$(?P<maths>[^$]+)\$"
    r"|\[(?P<label>[^\[\]]+)\]\([^()\s]+\)|(?<=\w)\^(?P<power>-?\w+)"
)
_RAISED = re.compile(r"([\^_])(?:\{([^{}]*)\}|(\w))")


@dataclass(frozen=True)
class Slide:
    """What stands on a slide.

    kind      "title", "text", "figure", "code", "question" or "list"
    heading   in Markdown, like the sentences
    text      up to three sentences, or more of a list
    figure    a PNG
    code      a kernel, or what a cell has printed
    notes     for who presents, as plain text
    """

    kind: str
    heading: str
    text: tuple[str, ...] = ()
    figure: bytes = b""
    code: str = ""
    notes: str = ""


# ------------------------------------------------------------------------------------------------------------- the text


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph of Markdown.

    >>> sentences("One warp (PMPP 4.1) is 32 threads. *Two* are 64! `x` is `y`.")
    ['One warp (PMPP 4.1) is 32 threads.', '*Two* are 64!', '`x` is `y`.']
    """
    found: list[str] = []
    for part in re.split(
        r"(?<=[.!?])\s+(?=[A-Z*`\"(\[$])|(?<=[.!?][)*])\s+(?=[A-Z*`\"(\[$])", " ".join(paragraph.split())
    ):
        if found and found[-1].count("(") > found[-1].count(")"):  # a bracket around several sentences stays whole
            found[-1] += f" {part}"
        elif part:
            found.append(part)
    return found


def runs(text: str) -> list[tuple[str, str]]:
    """Markdown in pieces, each with how it looks: "", "code", "strong", "emphasis", "raised" or "lowered".

    >>> runs("A *warp* is $2^5$ [lanes](08_warps.ipynb) of `x`")
    [('A ', ''), ('warp', 'emphasis'), (' is 2', ''), ('5', 'raised'), (' lanes of ', ''), ('x', 'code')]
    """
    found: list[tuple[str, str]] = []

    def add(piece: str, look: str) -> None:
        if piece and found and found[-1][1] == look == "":
            found[-1] = (found[-1][0] + piece, look)
        elif piece:
            found.append((piece, look))

    last = 0
    for token in _TOKEN.finditer(text):
        add(text[last : token.start()], "")
        last = token.end()
        if token["maths"]:
            maths = token["maths"]
            for name, sign in sorted(_MATHS.items(), reverse=True):
                maths = maths.replace(name, sign)
            start = 0
            for raised in _RAISED.finditer(maths):
                add(maths[start : raised.start()], "")
                add(raised[2] or raised[3], "raised" if raised[1] == "^" else "lowered")
                start = raised.end()
            add(maths[start:], "")
        elif token["power"]:
            add(token["power"], "raised")
        elif token["label"]:
            for piece, look in runs(token["label"]):
                add(piece, look)
        else:
            look = next(name for name in ("code", "strong", "emphasis") if token[name])
            add(token[look], look)
    add(text[last:], "")
    return found


def plain(text: str) -> str:
    """Markdown as plain text."""
    return "".join(piece for piece, _ in runs(text))


def _usable(sentence: str) -> bool:
    """Whether a sentence says something by itself."""
    text = plain(sentence)
    return (
        text.endswith((".", "!", "?", ".)"))
        and sentence.count("`") % 2 == 0
        and not _NOTEBOOK.search(sentence)
        and "\\" not in text
    )


def _chosen(paragraphs: Sequence[str], letters: int = LETTERS) -> tuple[str, ...]:
    """The first usable sentences of paragraphs, as many as fit, with none left out in between."""
    found: list[str] = []
    for paragraph in paragraphs:
        left_out = False
        for sentence in sentences(paragraph):
            hangs = left_out and _REFERS.match(sentence)
            fits = len(found) < SENTENCES and sum(map(len, found)) + len(sentence) <= letters
            if fits and _usable(sentence) and not hangs:
                found.append(sentence)
            elif found or not fits:
                return _answered(found)
            else:
                left_out = True
    return _answered(found)


def _answered(found: Sequence[str]) -> tuple[str, ...]:
    """Sentences without a question at their end, which leads on to what is not on the slide."""
    return _answered(found[:-1]) if len(found) > 1 and found[-1].endswith("?") else tuple(found)


def _asked(question: str) -> tuple[str, ...]:
    """The sentences of a question, without help that only the notebook gives: in brackets, or behind the question."""
    kept: list[str] = []
    for sentence in sentences(question):
        helps = sentence[0] == "(" or any("?" in one for one in kept)
        if not (helps and _NOTEBOOK.search(sentence)):
            kept.append(sentence)
    return tuple(kept)


# ----------------------------------------------------------------------------------------------------------- the slides


def _png(cell: NotebookNode) -> list[bytes]:
    pictures = (output.get("data", {}).get("image/png") for output in cell.get("outputs", ()))
    return [base64.b64decode(picture) for picture in pictures if picture]


def _kernel(cell: NotebookNode) -> str:
    """The kernel that a cell has put on show, if it fits on a slide."""
    for output in cell.get("outputs", ()):
        text = output.get("data", {}).get("text/plain", "")
        if text.startswith("# pmpp/"):
            listing = re.sub(r"(?m)^# pmpp/\S+\n", "", text).strip("\n")
            return listing if _fits(listing) else ""
    return ""


def _printed(cell: NotebookNode) -> str:
    """What a cell has printed, if it fits on a slide."""
    text = "".join(output.text for output in cell.get("outputs", ()) if output.get("name") == "stdout").strip("\n")
    return text if 1 < len(text.splitlines()) <= 12 and _fits(text) else ""


def _fits(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) <= LINES and max(map(len, lines)) <= COLUMNS


def _answer(cell: NotebookNode) -> str:
    """What a prediction folds away."""
    for output in cell.get("outputs", ()):
        text = "".join(output.get("data", {}).get("text/html", ""))
        if found := re.search(r"<summary>Show the answer</summary>(.*?)</details>", text, re.DOTALL):
            return html.unescape(found[1])
    return ""


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a cell, without mathematics that is set apart, and tables."""
    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", text)]
    return [part for part in parts if part.strip() and not part.lstrip().startswith(("$$", "|", "```", "![", "<"))]


def _items(paragraph: str) -> list[str]:
    """A paragraph, or each item of a list."""
    return [item.strip() for item in re.split(r"(?m)^(?:- |\d+\. )", paragraph) if item.strip()]


def _words(cells: Sequence[NotebookNode]) -> list[str]:
    """The paragraphs that the next cells begin with, up to a heading, a question, a list or another figure."""
    for cell in cells:
        if cell.cell_type == "markdown":
            parts = _paragraphs(cell.source)
            return [*itertools.takewhile(lambda part: not part.startswith(("#", "**", "- ", "1. ")), parts)]
        if _png(cell):
            break
    return []


def _about(cells: Sequence[NotebookNode]) -> list[str]:
    """What is said about a figure behind it. Between two figures it may also lead to the second."""
    words = _words(cells)
    between = len(cells) > 2 and cells[0].cell_type == "markdown" and _png(cells[1])
    leads_on = between and words == _paragraphs(cells[0].source) and not _words(cells[2:])
    return [] if leads_on else words


def slides(notebook: NotebookNode) -> list[Slide]:
    """The slides of an executed chapter."""
    cells = notebook.cells
    first = _paragraphs(cells[0].source)
    title = first[0].removeprefix("# ")
    about = " ".join(first[1].split()).strip("*")
    subject, _, book = about.partition("PMPP 4e")
    book = f"PMPP 4e{book.partition('. ')[0].removesuffix('.')}." if book else ""
    subject = (sentences(subject) or [""])[0]
    found = [Slide("title", title, (subject, book), notes="\n\n".join(map(plain, first[2:])))]
    if question := re.search(r"\*\*(The question of this chapter: .+?)\*\*", " ".join(" ".join(first[1:]).split())):
        asked = question[1].partition(": ")[2]
        found.append(Slide("question", "The question", (asked[0].upper() + asked[1:],)))

    heading, said, shows, skipping, table = "", [], False, False, ""

    def close() -> None:
        """A slide for a section that has shown nothing but words, or a printed table."""
        nonlocal table
        text = _chosen(said, letters=LETTERS if table else 480)
        if heading and not shows and (text or table):
            found.append(Slide("code" if table else "text", heading, text, code=table, notes=_notes(said)))
        table = ""

    def once(text: tuple[str, ...]) -> tuple[str, ...]:
        return () if any(text == slide.text for slide in found) else text

    for index, cell in enumerate(cells[1:], 1):
        if cell.cell_type == "markdown":
            for part in _paragraphs(cell.source):
                if mark := re.match(r"#{2,3} (.+)", part):
                    close()
                    heading, said, shows = mark[1], [], False
                    skipping = any(heading.startswith(name) for name in SKIPPED)
                    if heading == "Answers":
                        return found
                    said += _items(part.partition("\n")[2])
                elif skipping or not heading:
                    continue
                elif heading == "What to take along" and part.startswith("- "):
                    items = [" ".join(item.split()) for item in _items(part)]
                    text = tuple(sentences(item)[0] for item in items)
                    found.append(Slide("list", heading, text, notes="\n".join(map(plain, items))))
                    shows = True
                elif "**Predict, then run.**" in part:
                    asked = " ".join(part.split()).removeprefix("**Predict, then run.** ")
                    answer = _answer(cells[index + 1]) if index + 1 < len(cells) else ""
                    close()  # what the question is about comes before it
                    said, shows = [], False
                    found.append(Slide("question", f"Predict: {heading}", _asked(asked), notes=f"Answer: {answer}"))
                elif not part.startswith("**"):
                    said += _items(part)
        elif heading and not skipping:
            pictures, kernel = _png(cell), _kernel(cell)
            for picture in pictures:
                about = _about(cells[index + 1 :])
                about = about if _chosen(about) else said[-1:]
                found.append(Slide("figure", heading, once(_chosen(about)), figure=picture, notes=_notes(about)))
            if kernel:
                text = once(_chosen(said[-1:]))
                found.append(Slide("code", heading, text, code=kernel, notes=_notes(said[-1:])))
            if pictures or kernel:
                shows = True
            elif not shows:
                table = table or _printed(cell)
    close()
    return found


def _notes(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(plain(" ".join(paragraph.split())) for paragraph in paragraphs)


# ------------------------------------------------------------------------------------------------------------- the file

WIDE, HIGH, EDGE, TOP = 13.333, 7.5, 0.6, 1.35  # inches: of a slide, around it, and where the heading ends
FONT, CODE = "Arial", "Courier New"  # there everywhere, or a font of the same widths


def _size(texts: Sequence[str], width: float, height: float, largest: int, smallest: int = 14) -> int:
    """The largest size in points at which paragraphs fit into a box of so many inches."""
    for size in range(largest, smallest, -1):
        letters = width * 72 / (size * 0.52)  # in a line, on average
        lines = sum(-(-len(plain(text)) // letters) + 0.5 for text in texts)
        if lines * size * 1.25 / 72 <= height:
            return size
    return smallest


def _code_size(code: str, width: float, height: float) -> float:
    """The size in points at which code fits into a box: a letter is 0.6 of its size wide."""
    lines = code.splitlines()
    across = (width - 0.25) * 72 / (0.602 * max(map(len, lines)))
    return min(across, (height - 0.2) * 72 / (1.2 * len(lines)), 18)


def _fill(frame: typing.Any, texts: Sequence[str], size: int, *, gap: float = 0.5, bullet: bool = False) -> None:
    """Write paragraphs of Markdown into a text frame."""
    from pptx.dml.color import RGBColor
    from pptx.util import Pt

    frame.word_wrap = True
    for index, text in enumerate(texts):
        paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
        paragraph.space_after = Pt(gap * size)
        for piece, look in runs(f"•  {text}" if bullet else text):
            run = paragraph.add_run()
            run.text, font = piece, run.font
            font.size, font.name = Pt(size), CODE if look == "code" else FONT
            font.color.rgb = RGBColor.from_string(palette.TEXT[1:])
            font.bold, font.italic = look == "strong", look == "emphasis"
            if look in ("raised", "lowered"):
                font._element.set("baseline", "30000" if look == "raised" else "-25000")


def _place(number: int, deck: typing.Any, slide: Slide, chapter: str) -> None:
    """Draw one slide."""
    from pptx.dml.color import RGBColor
    from pptx.enum.shapes import MSO_SHAPE
    from pptx.enum.text import MSO_ANCHOR, MSO_AUTO_SIZE, PP_ALIGN
    from pptx.util import Inches, Pt

    def box(left: float, top: float, width: float, height: float) -> typing.Any:
        frame = page.shapes.add_textbox(*map(Inches, (left, top, width, height))).text_frame
        frame.margin_left = frame.margin_right = frame.margin_top = frame.margin_bottom = 0
        return frame

    def area(left: float, top: float, width: float, height: float, colour: str) -> typing.Any:
        shape = page.shapes.add_shape(MSO_SHAPE.RECTANGLE, *map(Inches, (left, top, width, height)))
        shape.fill.solid()
        shape.fill.fore_color.rgb = RGBColor.from_string(colour[1:])
        shape.line.fill.background()
        shape.shadow.inherit = False
        return shape

    page = deck.slides.add_slide(deck.slide_layouts[5])  # a title alone: the outline and screen readers find it
    inner, high = WIDE - 2 * EDGE, HIGH - TOP - 0.65
    is_title, is_question = slide.kind == "title", slide.kind == "question"
    if is_title or is_question:
        area(0, 0, 0.22, HIGH, palette.COLOURS[0] if is_title else palette.COLOURS[1])
    head = page.shapes.title
    head.left, head.top, head.width = Inches(EDGE), Inches(2.3 if is_title else 0.35), Inches(inner)
    head.height = Inches(1.2 if is_title else 0.85)
    largest = 44 if is_title else 30
    _fill(head.text_frame, [slide.heading], _size([slide.heading], inner, 1.2 if is_title else 0.7, largest, 20))
    head.text_frame.vertical_anchor = MSO_ANCHOR.MIDDLE
    head.text_frame.margin_left = head.text_frame.margin_right = 0
    for paragraph in head.text_frame.paragraphs:
        paragraph.alignment, paragraph.space_after = PP_ALIGN.LEFT, Pt(0)
        for run in paragraph.runs:
            run.font.bold = True

    texts = [text for text in slide.text if text]
    if is_title:
        _fill(box(EDGE, 3.7, inner, 2.2), texts, 20)
    elif is_question:
        _fill(box(EDGE, TOP + 0.5, 10.8, 4.5), texts, _size(texts, 10.8, 4.5, 28, 18))
    elif slide.kind in ("text", "list"):
        size = _size(texts, 11.4, high, 26 if slide.kind == "text" else 22)
        _fill(box(EDGE, TOP + 0.15, 11.6, high), texts, size, gap=0.8, bullet=slide.kind == "list")
    elif slide.kind == "figure":
        pixels = struct.unpack(">II", slide.figure[16:24])
        ratio = pixels[0] / pixels[1]
        beside = ratio < 2 and texts
        if beside:
            top, room = TOP, (8.5, HIGH - TOP - 0.5)
            edge = EDGE + min(room[0], room[1] * ratio) + 0.35
            _fill(box(edge, TOP + 0.1, WIDE - EDGE - edge, high), texts, _size(texts, WIDE - EDGE - edge, high, 20))
        else:
            size = _size(texts, inner, 1.35, 20)
            _fill(box(EDGE, TOP, inner, 1.4), texts, size, gap=0.3)
            lines = sum(-(-len(plain(text)) // int(inner * 72 / (size * 0.5))) + 0.3 for text in texts)
            top = TOP + (lines * size * 1.25 / 72 + 0.1 if texts else 0)
            room = (inner, HIGH - 0.6 - top)
        wide = min(room[0], room[1] * ratio)
        left = EDGE if beside else (WIDE - wide) / 2
        if beside:
            top += (room[1] - wide / ratio) / 4
        picture = page.shapes.add_picture(io.BytesIO(slide.figure), Inches(left), Inches(top), Inches(wide))
        picture._element.nvPicPr.cNvPr.set("descr", " ".join(map(plain, (slide.heading, *texts))))
    elif slide.kind == "code":
        columns = max(map(len, slide.code.splitlines()))
        beside = columns <= 82 and texts
        top = TOP if beside or not texts else TOP + 1.45
        width, height = (8.6 if beside else inner), HIGH - 0.65 - top
        size = _code_size(slide.code, width, height)
        tall = min(height, len(slide.code.splitlines()) * size * 1.2 / 72 + 0.3)
        back = page.shapes.add_textbox(*map(Inches, (EDGE, top, width, tall)))
        back.fill.solid()
        back.fill.fore_color.rgb = RGBColor.from_string("F4F4F4")
        frame = back.text_frame
        frame.margin_left, frame.margin_top, frame.vertical_anchor = Inches(0.12), Inches(0.1), MSO_ANCHOR.MIDDLE
        frame.margin_right = frame.margin_bottom = 0
        frame.word_wrap, frame.auto_size = True, MSO_AUTO_SIZE.NONE  # as large as it is said to be: the lines fit
        for index, line in enumerate(slide.code.splitlines()):
            paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
            run = paragraph.add_run()
            paragraph.alignment, run.text = PP_ALIGN.LEFT, line.replace("\t", "    ")
            run.font.size, run.font.name = Pt(size), CODE
            run.font.color.rgb = RGBColor.from_string(palette.TEXT[1:])
        if beside:
            _fill(box(9.45, TOP + 0.1, 3.35, high), texts, _size(texts, 3.2, high, 20))
        elif texts:
            _fill(box(EDGE, TOP, inner, 1.4), texts, _size(texts, inner, 1.3, 20), gap=0.3)
    foot = box(EDGE, HIGH - 0.42, inner, 0.3)
    _fill(foot, [f"pmpp, chapter {int(chapter.partition('_')[0])}" + (f" · {number}" if number > 1 else "")], 11)
    for run in foot.paragraphs[0].runs:
        run.font.color.rgb = RGBColor.from_string(palette.NOTE[1:])
    if slide.notes:
        page.notes_slide.notes_text_frame.text = slide.notes


def write(made: Sequence[Slide], path: Path) -> None:
    """Write slides to a file; the name of the file is that of the chapter. Needs python-pptx."""
    from pptx import Presentation
    from pptx.util import Inches

    deck = Presentation()
    deck.slide_width, deck.slide_height = Inches(WIDE), Inches(HIGH)
    deck.core_properties.title = plain(made[0].heading)
    deck.core_properties.author = "pmpp"
    for number, slide in enumerate(made, 1):
        _place(number, deck, slide, path.stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    deck.save(path)


def _chapters(paths: Sequence[Path], *, sharp: bool) -> Iterator[tuple[str, NotebookNode]]:
    """The executed chapters: as they stand in the repository, or executed anew with finer figures."""
    import nbformat

    if sharp:
        with tempfile.TemporaryDirectory() as folder:
            settings = Path(folder) / "profile_default" / "ipython_kernel_config.py"
            settings.parent.mkdir()
            settings.write_text('c = get_config()\nc.InlineBackend.figure_formats = {"retina"}\n', encoding="utf-8")
            os.environ["IPYTHONDIR"] = folder  # a kernel looks there for its settings
            for path in paths:
                yield path.stem, execute(path)[0]
        return
    if wrong := [fault for path in paths for fault in faults(path)]:
        raise ValueError("\n".join([*wrong, "Run: make notebooks"]))
    for path in paths:
        yield path.stem, nbformat.read(path.parents[1] / f"{path.stem}.ipynb", as_version=4)


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.slides", description="Write slides of chapters, as PowerPoint files."
    )
    parser.add_argument("chapters", nargs="*", help="chapters, as 4 or 04_vector_add; all by default")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "slides", help="the folder; build/slides by default"
    )
    parser.add_argument(
        "--sharp", action="store_true", help="execute the chapters, for figures of twice the resolution"
    )
    chosen = parser.parse_args(arguments)
    try:
        import pptx  # noqa: F401
    except ImportError:
        print('python-pptx is missing: pip install -e ".[slides]"', file=sys.stderr)
        return 1
    try:
        for stem, notebook in _chapters(sources(chosen.chapters, folder), sharp=chosen.sharp):
            made = slides(notebook)
            write(made, chosen.out / f"{stem}.pptx")
            print(f"{chosen.out / stem}.pptx: slides: {len(made)}", flush=True)
    except (ChapterError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
