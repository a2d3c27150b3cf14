"""Tables and plots of the benchmarks in docs/benchmarks.md: each has a place of its own there, between two marks.

    <!-- growth: written by make benchmark-growth -->
    ...
    <!-- /growth -->

Plots are Mermaid's, which GitHub draws. https://mermaid.js.org/syntax/xyChart.html
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give the benchmark `--write-docs`."""
    parser.add_argument("--write-docs", action="store_true", help="put the table and the plots into docs/benchmarks.md")


def write(name: str, table: Table, plots: Sequence[str], *, asked: str, page: Path = PAGE) -> None:
    """Put the table and the plots in the place of what the page has under this name. `asked`: with which options.

    Raises ValueError when the page has no such place.
    """
    text = page.read_text()
    place = re.compile(rf"(<!-- {re.escape(name)}: [^>]*-->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page} has no place for {name}: <!-- {name}: … --> and <!-- /{name} -->.")
    cores, today = os.cpu_count(), f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [f"{cores} cores, {today}: {asked}.", markdown(table), *plots]
    written = "\n\n".join(parts)
    page.write_text(place.sub(lambda found: f"{found[1]}\n{written}\n\n{found[2]}", text))


def markdown(table: Table) -> str:
    """The table as Markdown has it."""
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    head, *rows = [" | ".join(cells) for cells in zip(*columns, strict=True)]
    return "\n".join(f"| {line} |" for line in (head, " | ".join(["---"] * len(columns)), *rows))


def bars(title: str, of: str, values: Mapping[str, float]) -> str:
    """A bar a name. `of`: what the values are, with their unit."""
    return _plot(title, [*values], of, "bar", [[*values.values()]])


def lines(title: str, of: str, at: Sequence[str], values: Sequence[Sequence[float]]) -> str:
    """A line for each of `values`, one value for each name in `at`."""
    return _plot(title, at, of, "line", values)


def _plot(title: str, at: Sequence[str], of: str, kind: str, values: Sequence[Sequence[float]]) -> str:
    names = ", ".join(f'"{name}"' for name in at)
    # An axis that begins at zero has to be told its end too.
    highest = 1.1 * max(value for line in values for value in line)
    series = [f"{kind} [{', '.join(f'{value:g}' for value in line)}]" for line in values]
    body = [f'title "{title}"', f"x-axis [{names}]", f'y-axis "{of}" 0 --> {highest:g}', *series]
    return "\n".join(["```mermaid", "xychart-beta", *[f"    {line}" for line in body], "```"])
