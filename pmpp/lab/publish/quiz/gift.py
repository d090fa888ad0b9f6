"""Questions as GIFT, which Moodle imports, and as a page that a teacher reads.

GIFT: https://docs.moodle.org/en/GIFT_format. A question stands on its own between empty lines, so texts have none: an
end of a line is written as ``\\n``.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Mapping, Sequence

from pmpp.lab.publish.quiz.model import Choice, Number, Question, Template, shown

__all__ = ["gift", "page"]

_CODE = re.compile(r"`([^`]+)`")
_POWER = re.compile(r"(?<=[\w)])\^(-?\w+|\([^)]+\))")


def markup(text: str) -> str:
    """The HTML of paragraphs, of code that begins with four spaces, of `code` between backticks, and of powers."""
    found = []
    parts = text.strip("\n").split("\n\n")
    for is_code, group in itertools.groupby(parts, lambda part: part.startswith("    ")):
        if is_code:
            lines = [line.removeprefix("    ") for line in "\n\n".join(group).splitlines()]
            found.append(f"<pre>{html.escape(chr(10).join(lines), quote=False)}</pre>")
        else:
            found += [f"<p>{_inline(' '.join(part.split()))}</p>" for part in group]
    return "".join(found)


def _inline(text: str) -> str:
    pieces = _CODE.split(text)
    for index, piece in enumerate(pieces):
        escaped = html.escape(piece, quote=False)
        if index % 2:
            pieces[index] = f"<code>{escaped}</code>"
        else:
            pieces[index] = _POWER.sub(lambda found: f"<sup>{found[1].strip('()')}</sup>", escaped)
    return "".join(pieces)


def escaped(text: str) -> str:
    """Text in which GIFT sees no signs of its own."""
    return re.sub(r"([\\~=#{}:])", r"\\\1", text).replace("\n", "\\n")


def _exact(number: float) -> str:
    """A number with more digits than students give, and without an exponent, which not every reader of GIFT knows."""
    if float(number).is_integer():
        return str(int(number))
    return f"{number:.{max(6 - math.floor(math.log10(abs(number))), 1)}f}".rstrip("0").rstrip(".")


def _written(made: Question, title: str) -> str:
    """One question."""
    numeric = isinstance(made, Number)
    lines = [f"::{escaped(title)}::[html]{escaped(markup(_asked(made)))} {{{'#' if numeric else ''}"]
    right, wrong = ("=", "=%0%") if numeric else ("=", "~")
    for sign, answer, said in [(right, made.answer, "Right."), *((wrong, *one) for one in made.wrong.items())]:
        text = f"{_exact(answer)}:{_exact(made.slack(answer))}" if numeric else escaped(_inline(answer))
        lines.append(f"\t{sign}{text}#{escaped(_inline(said))}")
    return "\n".join([*lines, f"\t####[html]{escaped(markup(made.why))}", "}"])


def _asked(made: Question) -> str:
    """The text, and what is to be written."""
    if isinstance(made, Choice):
        return made.text
    said = f"Answer with a number ({made.unit})."
    if made.within:
        said = f"Answer with a number ({made.unit}); {100 * made.within:g}% up or down is near enough."
    elif not isinstance(made.answer, int):
        said = f"Answer with a number ({made.unit}), with three digits."
    return f"{made.text.rstrip()}\n\n{said}"


def gift(bank: Mapping[Template, Sequence[Question]]) -> str:
    """A file in GIFT with a category for each template."""
    found = ["// Written by pmpp.lab.publish.quiz. A random question of a category has other numbers for everybody."]
    for template, questions in bank.items():
        found.append(f"$CATEGORY: $course$/pmpp/{template.chapter}/{template.name}")
        found += [_written(made, f"{template.title} ({count})") for count, made in enumerate(questions, 1)]
    return "\n\n".join(found) + "\n"


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Quiz bank of pmpp</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; }}
pre {{ overflow-x: auto; border-left: 3px solid #8888; padding-left: 1em; }}
section {{ border-top: 1px solid #8888; }}
</style>
<h1>Quiz bank of pmpp</h1>
<p>{summary}</p>
<p>In Moodle choose <i>Question bank</i>, <i>Import</i>, <i>GIFT format</i>, and the file <code>pmpp.gift</code>. Each
question gets a category of its own with its variants. Add a <i>random question</i> of a category to a quiz: then
students get different numbers.</p>
{body}
</html>
"""


def page(bank: Mapping[Template, Sequence[Question]]) -> str:
    """An HTML page with the first variant of each template, its answer, and what is said to wrong answers."""
    found, chapter = [], ""
    for template, questions in bank.items():
        if template.chapter != chapter:
            chapter = template.chapter
            found.append(f"<h2>{html.escape(chapter)}</h2>")
        made = questions[0]
        answer = f"{shown(made.answer)} ({made.unit})" if isinstance(made, Number) else made.answer
        found.append(f'<section id="{template.name}"><h3>{html.escape(template.title)}</h3>{markup(_asked(made))}')
        found.append(f"<details><summary>Answer</summary><p><b>{_inline(answer)}</b></p>{markup(made.why)}<ul>")
        for wrong, why in made.wrong.items():
            said = shown(wrong) if isinstance(made, Number) else wrong
            found.append(f"<li><b>{_inline(said)}</b>: {_inline(why)}</li>")
        found.append(f"</ul><p>Variants: {len(questions)}</p></details></section>")
    count = sum(map(len, bank.values()))
    summary = f"Questions: {len(bank)}. With their variants: {count}. The first variant of each is shown here."
    return PAGE.format(summary=summary, body="\n".join(found))
