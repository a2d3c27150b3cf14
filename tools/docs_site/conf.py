"""The documentation site: what Sphinx makes of docs/. `make docs` builds it into site/.

MyST reads the pages as GitHub does. Every warning is an error: a broken link, an anchor that is missing, a page that
NAVIGATION lacks. The pages need no network: fonts are the reader's own, and diagrams are drawn by a script beside them.
"""

from __future__ import annotations

from sphinx.application import Sphinx

project = "Orders lakehouse"
extensions = ["myst_parser", "tools.docs_site.links", "tools.docs_site.diagrams"]
root_doc = "index"

# GitHub gives every heading an anchor.
myst_heading_anchors = 6
# Quotes and dashes stay as they are written: they are often those of a command.
smartquotes = False

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False

NAVIGATION = {
    "How it works": ["how-it-works", "tables", "ordering", "gold", "types"],
    "Use it": [
        "running",
        "reading",
        "bigquery",
        "own-tables",
        "by-rule",
        "schema-changes",
        "history",
        "from-flink",
        "commands",
    ],
    "Trust it": ["quality", "quarantine", "verify", "reliability", "erasure", "monitoring", "troubleshooting"],
    "Deploy it": ["deploy", "connect", "kafka", "clusters", "dbx"],
    "Reference": ["glossary", "benchmarks", "decisions/README"],
}


def with_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add to a page what the navigation has below it, of the pages that exist; the files stay plain Markdown."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            there = [each for each in pages if each in app.env.found_docs]
            source[0] += _table_of_contents(f":caption: {caption}", *there)
    elif page == "decisions/README":
        source[0] += _table_of_contents(":glob:", "[0-9]*")


def _table_of_contents(option: str, *pages: str) -> str:
    return "\n".join(["\n", "```{toctree}", ":hidden:", option, "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", with_navigation)
