"""The one place that prints: text from outside (keys, names, reasons, traces) is shown as it is, and only shown.

It is no markup of rich and no code of an emoji, and it cannot move the cursor, colour or hide anything: characters that
control a terminal are shown as `\\x1b`, those that turn the direction of text as `\\u202e`. Only `styled` has a style.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from rich.box import HEAVY_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# A tab and a line break are printed. A surrogate is half a character, which UTF-8 cannot write.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
Part = str | Text | tuple[str, str]
PASSED: Part = ("✓", "green")
FAILED: Part = ("✗", "red")


def visible(text: str) -> str:
    """The text with control characters as their escapes in Python."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def styled(*parts: Part) -> Text:
    """The parts in one text; a pair is a text and its style. `Text` by itself drops some control characters."""
    shown = ((visible(part[0]), part[1]) if isinstance(part, tuple) else part for part in parts)
    return Text.assemble(*(visible(part) if isinstance(part, str) else part for part in shown))


def new_table(title: str, *columns: str, numbers: Collection[str] = (), lines: bool = True) -> Table:
    """A table without rows, as all are shown: cells are folded, columns of `numbers` are on the right.

    Without `lines` it has room for more columns.
    """
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=HEAVY_HEAD if lines else None,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def json_text(value: object, *, indent: int | None = None) -> str:
    """The value as JSON, control characters as JSON's escapes: what reads it gets the text, a terminal shows it."""
    text = json.dumps(value, ensure_ascii=False, default=str, indent=indent)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PlainConsole(Console):
    """A console that takes no text for markup, and lets no control character through."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "markup": False, "emoji": False, "highlight": False})

    def render_str(self, text: str, **given: Any) -> Text:
        """The text as it is. Whoever prints a cell knows its width by this."""
        plain = {**given, "markup": False, "emoji": False, "highlight": False, "highlighter": None}
        return super().render_str(visible(text), **plain)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed. Also of `Text`, which is no string, control characters are shown."""
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
