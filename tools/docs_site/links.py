"""Links of docs/ to files outside it: in the site they lead to the repository.

The repository's address is `Repository` of [project.urls] in pyproject.toml; where there is none, the text stays and
the link goes. A link to a file that does not exist is left as it is, and so Sphinx warns of it.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]


def rewrite(app: Sphinx, page: nodes.document) -> None:
    """Every link of the page that leaves docs/."""
    for kind in (addnodes.pending_xref, addnodes.download_reference):
        for link in list(page.findall(kind)):
            if link.get("reftype") == "myst":
                _rewrite(link, Path(app.srcdir), Path(app.env.doc2path(app.env.docname)).parent)


def address(repository: str | None, path: str) -> str | None:
    """Where a file or folder of the work tree is in the repository. None: there is no repository."""
    if repository is None:
        return None
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository.rstrip('/')}/{kind}/main/{path}"


def _rewrite(link: nodes.Element, docs: Path, folder: Path) -> None:
    of_a_page = link.get("refdomain") == "doc"
    path, _, anchor = link["reftarget"].partition("#")
    target = _target(docs if of_a_page else folder, f"{path}.md" if of_a_page else path)
    if target is None or target.is_relative_to(docs):
        return
    anchor = link.get("reftargetid") or anchor
    shown = link[0].children or [nodes.literal("", target.name)]
    url = address(_repository(), target.relative_to(ROOT).as_posix())
    if url is not None:
        shown = [nodes.reference("", "", *shown, refuri=f"{url}#{anchor}" if anchor else url)]
    link.replace_self(shown)


def _target(folder: Path, path: str) -> Path | None:
    """The file or folder of the work tree that a link names."""
    target = Path(os.path.normpath(folder / path))
    return target if path and target.exists() and target.is_relative_to(ROOT) else None


@cache
def _repository() -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address: str | None = project.get("urls", {}).get("Repository")
    return address


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # Before Sphinx collects the files that a page offers for download.
    app.connect("doctree-read", rewrite, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
