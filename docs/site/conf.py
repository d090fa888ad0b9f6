"""How Sphinx makes the site from what `pmpp.lab.publish.site` writes. Nothing is loaded from another host."""

from docutils import nodes
from latex2mathml.converter import convert

import pmpp

project = "pmpp"
version = release = pmpp.__version__
copyright = "the authors of pmpp, Apache-2.0"
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


def inline_math(self, node):
    """A formula in MathML, which browsers draw by themselves."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def display_math(self, node):
    """A formula on a line of its own, which scrolls by itself where it is too wide."""
    self.body.append(f"<div class='math-display'>{convert(node.astext(), display='block')}</div>")
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


def setup(app):
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("doctree-read", anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
