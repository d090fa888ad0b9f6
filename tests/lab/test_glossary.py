"""The glossary: each term is introduced where it says, defined once, and refers to terms."""

import functools
import re

import pytest

from pmpp.lab.publish import glossary, notebooks

SOURCES = {path.stem: path for path in notebooks.sources()}
TERMS = glossary.terms()
each_term = pytest.mark.parametrize("term", TERMS, ids=lambda term: term.slug)


def has(text, form):
    return re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text, re.IGNORECASE)


@functools.cache
def prose(stem):
    """The Markdown of a chapter in one line."""
    text = SOURCES[stem].read_text(encoding="utf-8")
    cells = re.findall(r"(?ms)^# %% \[markdown\]\n(.*?)(?=^# %%|\Z)", text)
    return " ".join("\n".join(re.sub(r"(?m)^# ?", "", cell) for cell in cells).split())


@each_term
def test_the_chapter_of_a_term_exists_and_has_it(term):
    assert term.chapter in SOURCES
    # In the code it is a name: a workload is an attribute of what is recorded.
    text = prose(term.chapter) + SOURCES[term.chapter].read_text(encoding="utf-8")
    assert any(has(text, form) for form in term.forms), term.name


@each_term
def test_the_chapter_of_a_term_is_no_later_than_its_introduction(term):
    """A chapter sets a word in italics where it says what it means. A later one may do so again."""

    def introduces(stem):
        return any(re.search(rf"\*{re.escape(form)}\*", prose(stem), re.IGNORECASE) for form in term.forms)

    introducing = [stem for stem in SOURCES if introduces(stem)]
    assert not introducing or term.chapter in introducing or term.chapter < introducing[0]


@each_term
def test_a_definition_is_one_to_three_sentences(term):
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z0-9])", term.text)
    assert len(sentences) <= 3
    assert all(sentence.endswith(".") for sentence in sentences)
    assert term.text[0].isupper() or term.definition.startswith("`") or term.text[0].isdigit()
    assert not set("[]`") & set(term.text.replace("x[i]", ""))


def test_every_form_stands_for_one_term():
    forms = [form.lower() for term in TERMS for form in term.forms]
    assert len({*forms}) == len(forms)
    assert len({term.slug for term in TERMS}) == len(TERMS)


def test_house_words_and_standard_terms_are_told_apart():
    for word in ("room", "rung", "ladder", "roof", "record", "workload"):
        assert glossary.find(word).house, word
    for word in ("warp", "SIMT", "coalescing", "sector", "bank conflict", "occupancy"):
        assert not glossary.find(word).house, word


def test_words_are_found_in_any_form():
    assert glossary.find("LANES") is glossary.find("lane")
    assert glossary.find("coalescing").name == "coalesced"
    assert glossary.find("no such word") is None


def test_the_page_has_every_term_and_its_links_lead_somewhere():
    page = glossary.page("{}.html".format)
    anchors = re.findall(r'<a id="([^"]+)">', page)
    assert anchors == [term.slug for term in TERMS]
    assert {*re.findall(r"\]\(#([^)]+)\)", page)} <= {*anchors}
    assert {*re.findall(r"\]\((\w+)\.html\)", page)} == {term.chapter for term in TERMS}
    assert "**room** ★" in page
    assert "NVIDIA: page-locked." in page


def test_the_command(capsys):
    assert glossary.main(["Warps", "pinned"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("warp: 32 threads of a block")
    assert out.endswith("(Chapter 4)\n")
    assert glossary.main([]) == 0
    assert capsys.readouterr().out == glossary.page()
    assert glossary.main(["wrap"]) == 1
    assert capsys.readouterr().err == "wrap: no such term; did you mean 'warp'?\n"


TERM = 'name = "a"\ndefinition = "One."\nchapter = "00_start_here"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TERM.replace('name = "a"\n', ""), "a term has no name"),
        (TERM.replace('definition = "One."\n', ""), "a has no definition"),
        (TERM.replace("00_start_here", ""), "a has no chapter"),
        (TERM + "shown = true\n", "a: shown is no field; there are name, definition, chapter"),
        (TERM + 'also = "b"\n', "a: also must be a list, was 'b'"),
        (TERM + 'house = "yes"\n', "a: house must be a bool, was 'yes'"),
        (TERM.replace("One.", "[Other]."), "a refers to 'Other', which is no term"),
        (TERM.replace("One.", "[A]."), "a refers to itself"),
        (f"{TERM}\n[[term]]\n{TERM}", "'a' stands for a and for a"),
        (TERM + 'also = ["b"]\n[[term]]\n' + TERM.replace('"a"', '"B"'), "'B' stands for a and for B"),
    ],
)
def test_a_faulty_glossary_is_refused(tmp_path, text, said):
    path = tmp_path / "glossary.toml"
    path.write_text(f"[[term]]\n{text}", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(said)):
        glossary.read(path)


def test_code_in_a_definition_refers_to_nothing(tmp_path):
    path = tmp_path / "glossary.toml"
    path.write_text("[[term]]\n" + TERM.replace("One.", "It is `x[i]`."), encoding="utf-8")
    (term,) = glossary.read(path)
    assert term.refers_to == ()
    assert term.text == "It is x[i]."
