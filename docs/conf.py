"""Sphinx's settings for the site; build_site.py names the sources (_docs/source) and the result."""
import re, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
project, author = "fdgnb", "the fdgnb authors"
copyright = "2026 onwards, the fdgnb authors"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
# equations as outlines: the hinting of a font opens gaps behind subscripts
mathjax_path = "mathjax/tex-svg.js"
root_doc = "index"
source_suffix = {".ipynb": "myst-nb", ".md": "myst-nb"}
exclude_patterns = ["files/**", "_static/**"]

nb_execution_mode = "off"                                             # the committed outputs are shown
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 5
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"mtextInheritFont": True, "fontCache": "global"}}
smartquotes_action = "qe"                                             # no D: --rounds is to be copied as it is
add_module_names = False
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
suppress_warnings = ["myst.header", "misc.highlighting_failure", "mystnb.unknown_mime_type"]

html_use_index = html_domain_indices = False
html_theme = "sphinx_book_theme"
html_favicon = "static/favicon.svg"
html_context = {"default_mode": "auto"}
html_title = html_short_title = "fdgnb"
html_static_path = ["static", "../_docs/source/_static"]             # the second: MathJax, DataTables
html_css_files, html_js_files = ["site.css"], [("phone.js", {"defer": "defer"})]
html_search_scorer = str(Path(__file__).resolve().parent/"static"/"scorer.js")
html_theme_options = {
    "home_page_in_toc": False, "show_navbar_depth": 1, "collapse_navbar": True, "show_toc_level": 2,
    "toc_title": "On this page", "use_download_button": True, "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light", "pygments_dark_style": "a11y-high-contrast-dark",
    "logo": {"text": "fdgnb"}}


def drop_plain_spans(app, page, template, context, doctree):
    "Take the marks off names, punctuation and blanks in code: they need no color, and are half the bytes."
    if "body" in context: context["body"] = re.sub(r'<span class="(?:n|p|w)">([^<]*)</span>', r"\1", context["body"])


def setup(app): app.connect("html-page-context", drop_plain_spans)
