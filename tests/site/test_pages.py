"""The pages of the site as `make site` wrote them: links, what they load, and what Chromium makes of them.

`make test-site` writes the pages and runs this. Other runs skip it.
"""

import functools
import html.parser
import http.server
import os
import re
import shutil
import threading
import urllib.parse
from pathlib import Path

import pytest

SITE = Path(os.environ.get("PMPP_SITE") or "build/none").resolve()
if not os.environ.get("PMPP_SITE"):
    pytest.skip("the site is looked at by make test-site", allow_module_level=True)

PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
PAGES = [page for page in PAGES if not page.startswith(("browser/", "_static/"))]  # the last are the theme's templates
CHAPTERS = [page for page in PAGES if page.startswith("notebooks/")]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
# Pages of sources are alike, so a browser looks at some of them.
SEEN = [page for page in PAGES if not page.startswith(("pmpp/", "tests/"))] + [
    page for page in PAGES if ".py." in page
][::10]
each_page = pytest.mark.parametrize("page", PAGES)
each_chapter = pytest.mark.parametrize("page", CHAPTERS)


class Page(html.parser.HTMLParser):
    """The links of a page, what it loads, the names of its places, and its images."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places, self.images = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.places |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag == "img":
            self.images.append(attrs)
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        elif tag == "link" and attrs.get("rel") not in ("next", "prev", "index", "search", "canonical"):
            self.loads.append(attrs["href"])
        elif attrs.get("src"):
            self.loads.append(attrs["src"])


@functools.cache
def read(page):
    return Page((SITE / page).read_text(encoding="utf-8"))


def local(address, page):
    """The file that an address on a page names, and the place in it; None for another host."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path = urllib.parse.unquote(parts.path)
    file = Path(os.path.normpath(SITE / Path(page).parent / path)) if path else SITE / page
    return file, urllib.parse.unquote(parts.fragment)


def test_there_are_pages_for_all_chapters():
    notebooks = Path(__file__).parents[2] / "notebooks"
    assert [Path(page).stem for page in CHAPTERS] == sorted(path.stem for path in notebooks.glob("*.ipynb"))


@each_page
def test_links_lead_somewhere(page):
    for address in read(page).links:
        if not (found := local(address, page)):
            continue
        file, place = found
        assert file.is_file(), address
        assert SITE in file.parents, address
        if place and file.suffix == ".html":
            assert place in read(file.relative_to(SITE).as_posix()).places, address


@each_chapter
def test_no_word_of_a_path_is_explained(page):
    assert not re.search(r"<code>[^<]*<a [^>]*\bterm\b", (SITE / page).read_text(encoding="utf-8"))


@each_chapter
def test_the_browser_edition_has_the_chapter_that_its_button_names(page):
    for address in read(page).links:
        if "/lab/index.html?" in address:
            chapter = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["path"]
            assert chapter == [f"{Path(page).stem}.ipynb"]
            assert (SITE / "browser" / "files" / chapter[0]).is_file()


@each_page
def test_nothing_is_loaded_from_another_host(page):
    for address in read(page).loads:
        if not address.startswith("data:"):
            assert local(address, page), address
            assert local(address, page)[0].is_file(), address


def test_styles_load_nothing_from_another_host():
    for path in SITE.glob("_static/**/*.css"):
        loads = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", path.read_text(encoding="utf-8"))
        assert not [address for address in loads if re.match(r"https?:|//", address)], path


@each_chapter
def test_figures_say_what_they_show(page):
    for image in read(page).images:
        assert len(image["alt"]) > 40, image


@each_chapter
def test_a_chapter_leads_to_its_kernels_and_back(page):
    """Each page of a source that a chapter leads to leads back to it."""
    sources = {local(address, page)[0] for address in read(page).links if ".py.html" in address}
    for source in sources:
        back = [
            local(link, source.relative_to(SITE).as_posix()) for link in read(source.relative_to(SITE).as_posix()).links
        ]
        assert SITE / page in {found[0] for found in back if found}, source


# ---------------------------------------------------------------- in a browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    """Where the site is served on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra site-test")
    if CHROMIUM is None:
        pytest.skip("needs chromium or google-chrome")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=["phone light", "phone dark", "desktop light", "desktop dark"])
def opened(request, browser, address):
    """A function that opens a page, and fails on what the browser complains about."""
    size, scheme = request.param.split()
    width, height = WIDTHS[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("requestfailed", lambda sent: complaints.append(f"failed: {sent.url}"))
    tab.on("response", lambda got: got.status >= 400 and complaints.append(f"{got.status}: {got.url}"))
    tab.on("request", lambda sent: sent.url.startswith((address, "data:")) or complaints.append(f"asks {sent.url}"))

    def go(page):
        tab.goto("about:blank")  # breaks off what the page before still asks for
        complaints.clear()
        tab.goto(address + page)
        assert not complaints
        return tab

    yield go
    context.close()


#: Elements that are wider than the window and that no element around them lets a reader scroll to.
CUT = """() => {
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const reachable = e => e && (scrolls(e) || reachable(e.parentElement));
  return [...document.querySelectorAll('article pre, article table, article img, article math, article p')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth && !reachable(e))
    .map(e => e.outerHTML.slice(0, 200));
}"""
INSIDE = """() => [...document.querySelectorAll('article pre')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && !['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
    && !['auto', 'scroll'].includes(getComputedStyle(e.parentElement).overflowX))
  .map(e => e.outerHTML.slice(0, 200))"""
SMALL = """() => [...document.querySelectorAll('article .cell_output img')]
  .filter(e => e.checkVisibility() && e.clientWidth < 0.95 * Math.min(e.naturalWidth, 560))
  .map(e => [e.alt, e.clientWidth, e.naturalWidth])"""


@pytest.mark.parametrize("page", SEEN)
def test_a_page_fits_its_window(opened, page):
    tab = opened(page)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(INSIDE) == []
    assert tab.evaluate(SMALL) == []


#: Contrast of text with what is behind it, where outputs set colours of their own. 3 is the least for large text.
FAINT = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.5) return c; }
    return [255, 255, 255]; };
  return [...document.querySelectorAll('article *:not(.headerlink)')].filter(e => e.checkVisibility()
      && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())).filter(e => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 3; }).map(e => e.outerHTML.slice(0, 200));
}"""


@each_chapter
def test_text_can_be_read(opened, page):
    assert opened(page).evaluate(FAINT) == []


@pytest.mark.parametrize("words", ["bank conflict", "grid_stride", "Kahan"])
def test_the_search_finds(opened, words):
    tab = opened(f"search.html?q={urllib.parse.quote(words)}")
    tab.wait_for_selector("#search-results li a")
    assert any("notebooks/" in link.get_attribute("href") for link in tab.query_selector_all("#search-results li a"))


def test_figures_keep_a_white_card(opened):
    tab = opened("notebooks/04_vector_add.html")
    if tab.evaluate("document.documentElement.dataset.theme") == "dark":
        shown = "getComputedStyle(document.querySelector('.cell_output img'))"
        assert tab.evaluate(f"{shown}.backgroundColor") == "rgb(255, 255, 255)"
        assert tab.evaluate(f"{shown}.filter") == "none"


def test_formulas_are_mathml(opened):
    tab = opened("notebooks/50_softmax.html")
    assert tab.evaluate("document.querySelectorAll('article math').length") > 10
    assert tab.evaluate(
        "[...document.querySelectorAll('article math')].every(e => e.getBoundingClientRect().height > 5)"
    )
