"""The commands of docs/own-tables.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "own-tables.md"
_BLOCK = re.compile(r"^```sh( background)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(*, background: bool) -> list[str]:
    """The page's blocks of commands, in their order: those for a terminal of their own, or the others."""
    found = _BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
    return [commands for mark, commands in found if bool(mark) == background]


def writing_contracts() -> str:
    """The commands that write the page's folder of contracts, `own`, which need no broker."""
    return "".join(block for block in blocks(background=False) if "own/" in block and "lakehouse" not in block)
