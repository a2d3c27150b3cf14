"""Mermaid diagrams, drawn in the reader's browser by a script of the site itself: pages work without a network.

The script is dist/mermaid.tiny.js of the npm package @mermaid-js/tiny 11.17.2, which draws all but mindmaps and
architecture diagrams.
"""

from __future__ import annotations

import gzip
import html
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

SCRIPT = "mermaid.tiny.js"
NOT_DRAWN = ("mindmap", "architecture")
PACKED = Path(__file__).with_name("mermaid") / f"{SCRIPT}.gz"

log = logging.getLogger(__name__)


def unpack(app: Sphinx) -> None:
    """Lay the script beside the pages."""
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCRIPT).write_bytes(gzip.decompress(PACKED.read_bytes()))


def mark(_app: Sphinx, page: nodes.document) -> None:
    """Every code block of Mermaid becomes what the script looks for."""
    for block in list(page.findall(nodes.literal_block)):
        if block.get("language") != "mermaid":
            continue
        text = block.astext()
        if text.lstrip().startswith(NOT_DRAWN):
            log.warning("%s does not draw this kind of diagram", SCRIPT, location=block)
        block.replace_self(nodes.raw("", f'<pre class="mermaid">{html.escape(text)}</pre>', format="html"))


def load(app: Sphinx, _page: str, _template: str, _context: object, doctree: nodes.document | None) -> None:
    """Load the script into the pages that have a diagram."""
    if doctree and any('class="mermaid"' in raw.astext() for raw in doctree.findall(nodes.raw)):
        app.add_js_file(SCRIPT)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", unpack)
    app.connect("doctree-read", mark)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
