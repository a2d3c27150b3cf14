"""The last passes, by what the layers wrote down: how long each took, and how many records it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from monitoring.model import Pass
from monitoring.readings.tables import Tables
from monitoring.readings.warehouse import Row, moment

LAST_PASSES = 20


def last_passes(tables: Tables, *, since: datetime) -> tuple[list[Pass], dict[str, dict[str, int]]]:
    """The last passes, the oldest first; and by their name, of every source the records that silver took."""
    rows = tables.rows(f"""
        SELECT layer, run, source, started_at, written_at, sum(coalesce(read, 0)) AS records
        FROM {{ops.batches}}
        WHERE started_at IS NOT NULL AND written_at >= {moment(since)}
        GROUP BY layer, run, source, started_at, written_at ORDER BY written_at
    """)
    grouped = list(_grouped(rows))[-LAST_PASSES:]
    by_source = {_name(of_pass): _records_by_source(of_pass) for of_pass in grouped}
    return [_pass(of_pass) for of_pass in grouped], by_source


def _grouped(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Batches as passes: after gold has written, whatever an earlier layer writes begins the next one."""
    order = ("bronze", "silver", "gold")
    current: list[Row] = []
    for row in rows:
        if row["layer"] not in order:
            continue
        if current and order.index(row["layer"]) < max(order.index(one["layer"]) for one in current):
            yield current
            current = []
        current.append(row)
    if current:
        yield current


def _name(of_pass: Sequence[Row]) -> str:
    return str(next((row["run"] for row in of_pass if row["run"]), of_pass[-1]["written_at"].isoformat()))


def _records_by_source(of_pass: Sequence[Row]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in of_pass:
        if row["layer"] == "silver":
            found[row["source"]] += row["records"]
    return dict(found)


def _pass(of_pass: Sequence[Row]) -> Pass:
    seconds = {}
    for layer in ("bronze", "silver", "gold"):
        own = [row for row in of_pass if row["layer"] == layer]
        if own:
            took = max(row["written_at"] for row in own) - min(row["started_at"] for row in own)
            seconds[layer] = took.total_seconds()
    taken = sum(row["records"] for row in of_pass if row["layer"] == "silver")
    return Pass(_name(of_pass), of_pass[-1]["written_at"], taken, seconds)


def drain_rates(passes_: Sequence[Pass], by_source: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """By source, how many records a second the pass took that had most of them: what the layers can drain."""
    found: dict[str, tuple[int, float]] = {}
    for one in passes_:
        seconds = sum(one.seconds.values())
        for source, count in by_source.get(one.run, {}).items():
            if seconds and count > found.get(source, (0, 0.0))[0]:
                found[source] = (count, count / seconds)
    return {source: rate for source, (_count, rate) in found.items()}


def layer_rates(passes_: Sequence[Pass], by_source: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], float]:
    """By source and layer, how many records a second the layer took in the last pass that had any of the source."""
    found: dict[tuple[str, str], float] = {}
    for one in passes_:
        for source, count in by_source.get(one.run, {}).items():
            if count:
                found |= {(source, layer): count / seconds for layer, seconds in one.seconds.items() if seconds}
    return found
