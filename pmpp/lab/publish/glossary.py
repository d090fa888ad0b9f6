"""The glossary: what the workbook's words mean, those of its own beside NVIDIA's and those of PMPP.

``glossary.toml`` beside this file is the one place that defines them. Chapters, the site and slides read it here::

    python -m pmpp.lab.publish.glossary              the whole glossary, as Markdown
    python -m pmpp.lab.publish.glossary warp lanes   what these words mean

A term has a ``name``, a ``definition`` of one to three sentences, and the ``chapter`` that introduces it. It may also
have

also      other forms that a text uses: "warps"
house     true for a word of this workbook, which other books on GPUs do not use in this sense
nvidia    NVIDIA's name, where that differs
book      the name in PMPP, where that differs

A word in [brackets] in a definition refers to another term, by its name or by one of its other forms.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["Term", "find", "main", "page", "terms"]

SOURCE = Path(__file__).with_name("glossary.toml")

_REFERENCE = re.compile(r"`[^`]*`|\[([^\[\]]+)\]")  # code is left alone


@dataclass(frozen=True)
class Term:
    """A word of the glossary. The fields are those of the file; see the module."""

    name: str
    definition: str
    chapter: str
    also: tuple[str, ...] = ()
    house: bool = False
    nvidia: str = ""
    book: str = ""

    @property
    def forms(self) -> tuple[str, ...]:
        """The name, and the other forms."""
        return self.name, *self.also

    @property
    def slug(self) -> str:
        """The name as it can stand in an address: "bank-conflict"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def text(self) -> str:
        """The definition without marks, for a tooltip.

        >>> find("lanes").text
        'The place of a thread in its warp, from 0 to 31, and the thread in that place.'
        """
        return self.linked(lambda word, term: word).replace("`", "")

    @property
    def refers_to(self) -> tuple[str, ...]:
        """The words in brackets in the definition, as they stand there, each once."""
        return tuple(dict.fromkeys(word for word in _REFERENCE.findall(self.definition) if word))

    def linked(self, link: Callable[[str, Term], str]) -> str:
        """The definition as Markdown, with ``link(word, term)`` in the place of each reference.

        >>> find("lane").linked(lambda word, term: f"[{word}](#{term.slug})")
        'The place of a [thread](#thread) in its [warp](#warp), from 0 to 31, and the thread in that place.'
        """

        def replace(found: re.Match) -> str:
            word = found[1]
            return link(word, _by_form()[word.lower()]) if word else found[0]

        return _REFERENCE.sub(replace, self.definition)


def read(source: Path) -> tuple[Term, ...]:
    """The terms of a file, by name.

    Raises ValueError that names the term if a field is missing, unknown or of another kind, if a form stands for two
    terms, or if a definition refers to no term or to its own.
    """
    found, forms = [], {}
    for entry in tomllib.loads(source.read_text(encoding="utf-8")).get("term", []):
        name = entry.get("name", "a term")
        kinds = {field.name: field.default for field in fields(Term)}
        if unknown := sorted(entry.keys() - kinds):
            raise ValueError(f"{name}: {unknown[0]} is no field; there are {', '.join(kinds)}")
        for field in ("name", "definition", "chapter"):
            if not entry.get(field):
                raise ValueError(f"{name} has no {field}")
        for field, value in entry.items():
            kind = {"also": list, "house": bool}.get(field, str)
            if not isinstance(value, kind):
                raise ValueError(f"{name}: {field} must be a {kind.__name__}, was {value!r}")
        definition = " ".join(entry["definition"].split())
        term = Term(**{**entry, "definition": definition, "also": tuple(entry.get("also", ()))})
        for form in term.forms:
            if other := forms.get(form.lower()):
                raise ValueError(f"{form!r} stands for {other.name} and for {name}")
            forms[form.lower()] = term
        found.append(term)
    for term in found:
        for word in term.refers_to:
            if word.lower() not in forms:
                raise ValueError(f"{term.name} refers to {word!r}, which is no term")
            if forms[word.lower()] is term:
                raise ValueError(f"{term.name} refers to itself")
    return tuple(sorted(found, key=lambda term: term.name.lower()))


@functools.cache
def terms() -> tuple[Term, ...]:
    """All terms, by name."""
    return read(SOURCE)


@functools.cache
def _by_form() -> dict[str, Term]:
    return {form.lower(): term for term in terms() for form in term.forms}


def find(word: str) -> Term | None:
    """The term with this name or other form, upper or lower case; None if there is none.

    >>> find("Warps").name
    'warp'
    """
    return _by_form().get(word.lower())


def page(chapter: Callable[[str], str] = "../notebooks/{}.ipynb".format) -> str:
    """The whole glossary as a page of Markdown. ``chapter`` gives the address of a chapter by its stem."""
    words = ["# Glossary", "Words that only this workbook uses in this sense are marked with a star."]
    for term in terms():
        title = f'<a id="{term.slug}"></a>**{term.name}**{" ★" if term.house else ""}'
        definition = term.linked(lambda word, other: f"[{word}](#{other.slug})")
        names = [f"{who}: {name}." for who, name in (("NVIDIA", term.nvidia), ("PMPP", term.book)) if name]
        number = int(term.chapter.partition("_")[0])
        words.append(" ".join([f"{title}: {definition}", *names, f"[Chapter {number}]({chapter(term.chapter)})"]))
    return "\n\n".join(words) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.lab.publish.glossary", description="What the words mean.")
    parser.add_argument("words", nargs="*", help="words to look up; without any, the whole glossary as Markdown")
    words = parser.parse_args(arguments).words
    if not words:
        print(page(), end="")
    for word in words:
        if not (term := find(word)):
            near = difflib.get_close_matches(word.lower(), _by_form(), 1)
            print(f"{word}: no such term" + (f"; did you mean {near[0]!r}?" if near else ""), file=sys.stderr)
            return 1
        print(f"{term.name}: {term.text} (Chapter {int(term.chapter.partition('_')[0])})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
