"""What a proposal for a database has found, as a table for people and as data. Imports without pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from cli.proposal.database import TopicRow
from lakehouse.process.terminal import new_table

# Of topics that are not the database's, so many have a row; `--json` has all.
MAX_OTHERS = 40


def shown(database: str, rows: Sequence[TopicRow]) -> Table:
    """The topics of the database, a row each; then those that are passed over, each with what it is."""
    columns = ("topic", "table", "silver table", "key", "columns", "types by", "records", "remark")
    table = new_table(f"Topics of {database}", *columns, numbers=("columns", "records"))
    taken = [row for row in rows if row.taken]
    others = [row for row in rows if not row.taken]
    for row in taken:
        table.add_row(*_cells(row))
    if others:
        table.add_section()
    for row in others[:MAX_OTHERS]:
        table.add_row(*_cells(row), style="dim")
    if len(others) > MAX_OTHERS:
        more = len(others) - MAX_OTHERS
        table.add_row(f"and {more} more", *[""] * 6, "passed over: --json lists all", style="dim")
    return table


def as_data(rows: Sequence[TopicRow]) -> list[dict[str, object]]:
    """The same as data, every topic."""
    return [asdict(row) for row in rows]


def _cells(row: TopicRow) -> list[str]:
    numbers = ["" if number is None else str(number) for number in (row.columns, row.records)]
    texts = (row.topic, row.table, row.silver_table, ", ".join(row.keys))
    return [*texts, numbers[0], row.types_by, numbers[1], row.remark]
