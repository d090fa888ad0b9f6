"""How Sphinx makes the site from what `pmpp.lab.publish.site` writes. Nothing is loaded from another host."""

import re

from docutils import nodes
from latex2mathml.converter import convert

import pmpp
from pmpp.lab.publish import glossary

ORDINARY = {"cost", "event", "record", "reference"}  # in most sentences these are words of every day
TERMS = [term for term in glossary.terms() if term.name not in ORDINARY]
FORMS = "|".join(sorted((re.escape(form) for term in TERMS for form in term.forms), key=len, reverse=True))
WORD = re.compile(rf"(?<![\w-])({FORMS})(?![\w-])", re.IGNORECASE)

project = "pmpp"
author = "the authors of pmpp"
version = release = pmpp.__version__
html_show_copyright = False
extensions = ["myst_nb"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # by default they come from a CDN
nb_code_prompt_show = "Show the answer"
nb_code_prompt_hide = "Hide the answer"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
smartquotes = False

html_theme = "sphinx_book_theme"
html_title = "pmpp"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "use_download_button": False,
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_persistent": [],
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}


def mathml(text, display):
    """A formula in MathML, which browsers draw by themselves. A bar stands close to what it encloses."""
    return convert(text, display=display).replace(">&#x0007C;</mo>", " lspace='0' rspace='0'>|</mo>")


def inline_math(self, node):
    """A formula within a line."""
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def display_math(self, node):
    """A formula on a line of its own, which scrolls by itself where it is too wide."""
    self.body.append(f"<div class='math-display'>{mathml(node.astext(), 'block')}</div>")
    raise nodes.SkipNode


def anchors(app, doctree):
    """Give each line of a source page an address: #L-41."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("linenos"):
            block["highlight_args"] = {
                **block.get("highlight_args", {}),
                "lineanchors": "L",
                "anchorlinenos": True,
            }


def explain(app, doctree, docname):
    """Make a chapter's first use of each word of the glossary a link to it, with the definition as its title."""
    if not docname.startswith("notebooks/"):
        return
    address, seen = app.builder.get_relative_uri(docname, "glossary"), set()
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in [child for child in paragraph.children if isinstance(child, nodes.Text)]:
            before = paragraph.children[: paragraph.index(text)][-1:]
            if before and before[0].astext() == "<code>":
                continue  # the path of a file, which is a link already
            parts = WORD.split(text)  # every second one is a word of the glossary
            for place in range(1, len(parts), 2):
                term = glossary.find(parts[place])
                if term.name not in seen:
                    seen.add(term.name)
                    where = {"refuri": f"{address}#{term.slug}", "reftitle": term.text, "classes": ["term"]}
                    parts[place] = nodes.reference("", parts[place], internal=True, **where)
            new = [nodes.Text(part) if isinstance(part, str) else part for part in parts if part != ""]
            paragraph.replace(text, new)


def setup(app):
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("doctree-read", anchors)
    app.connect("doctree-resolved", explain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
