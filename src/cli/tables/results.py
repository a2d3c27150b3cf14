"""Tables for people: how the rules of the gates came out, and what is in quarantine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from lakehouse.process.terminal import new_table, styled
from lakehouse.quality.results import GATES, PUBLICATION, Result


def gate_results(results: Iterable[Result]) -> Iterator[Table]:
    """A table for each gate and table that was judged: every rule, and what came of it."""
    judged = groupby(results, key=lambda result: (result.gate, result.table, result.source))
    for (gate, name, source), of_table in judged:
        title = f"{GATES[gate]} · {name}" + (f" · {source}" if gate == PUBLICATION else "")
        numbers = ("evaluated", "failed", "share")
        table = new_table(title, "rule", "on failure", *numbers, "verdict", "what was found", numbers=numbers)
        for result in of_table:
            found = [result.message, result.observed and f"observed: {result.observed}"]
            found += [f"keys: {'; '.join(result.sample_keys)}" if result.sample_keys else None]
            table.add_row(
                result.rule,
                result.on_failure,
                _number(result.evaluated),
                _failed(result.failed),
                "" if result.share is None else f"{result.share:.2%}",
                _verdict(result),
                " ".join(text for text in found if text),
            )
        yield table


def records_by_feed(counts: Iterable[Mapping[str, Any]]) -> Table:
    """How many records are in quarantine."""
    rows = list(counts)
    table = new_table("In quarantine", *(rows[0] if rows else ("feed", "records")), numbers=("records",))
    for row in rows:
        table.add_row(*[_number(value) if isinstance(value, int) else str(value or "") for value in row.values()])
    return table


def _verdict(result: Result) -> Text:
    if result.passed:
        return styled("passed")
    return styled(("holds", "red") if result.on_failure == "fail" else ("not met", "yellow"))


def _failed(count: int) -> Text:
    return styled((_number(count), "yellow" if count else ""))


def _number(value: int) -> str:
    return f"{value:,}"
