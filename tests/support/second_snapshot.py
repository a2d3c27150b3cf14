"""A recording whose connector has lost its offsets: its second run opens with a full snapshot."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.support.events import Record, compact

RUN = "__debezium.context.runId"
OF_SNAPSHOT = "ffffffff-0000-7000-8000-000000000000"
Coordinates = tuple[int, ...]


def with_second_snapshot(records: Sequence[Record], *, share: float = 0.5) -> list[Record]:
    """The records of a table's topic, by partition and offset.

    What the second run has changed in a first `share` of its log is told by no record: the rows of its snapshot say it.
    """
    of_runs: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: (one["partition"], one["offset"])):
        of_runs.setdefault(dict(record["headers"])[RUN], []).append(record)
    first, second = of_runs.values()
    told = [record for record in (*first, *second) if record["value"] is not None]
    log = sorted({at for record in second if (at := _coordinates(record)) is not None})
    until = log[int(len(log) * share)]
    rows: dict[str, tuple[Any, Record]] = {}
    for record in told:
        at = _coordinates(record)
        assert at is not None
        position = (at, json.loads(record["value"])["op"] != "r", record["offset"])
        if at <= until and (record["key"] not in rows or position > rows[record["key"]][0]):
            rows[record["key"]] = position, record
    (source,) = [_source(record) for record in told if _coordinates(record) == until][-1:]
    live = [record for _position, record in rows.values() if json.loads(record["value"])["op"] != "d"]
    began = min(record["timestamp"] for record in second)
    snapshot = [_row(record, source, until, began, is_last=record is live[-1]) for record in live]
    return _numbered([*first, *snapshot, *_from(second, until)])


def _from(second: Sequence[Record], until: Coordinates) -> list[Record]:
    """What the second run streams behind its snapshot, tombstones with their deletes."""
    found: list[Record] = []
    is_kept = False
    for record in second:
        at = _coordinates(record)
        is_kept = is_kept if at is None else at > until
        if is_kept:
            found.append({**record, "headers": _of_run(record)})
    return found


def _row(record: Record, source: Any, at: Coordinates, timestamp: int, *, is_last: bool) -> Record:
    snapshot = {**source, "snapshot": "last" if is_last else "true"}
    if "lsn" in source:
        snapshot |= {"lsn": at[0], "sequence": compact([None, str(at[0])])}
    else:
        snapshot |= {"pos": at[1], "row": 0}
    after = json.loads(record["value"])["after"]
    value = {"before": None, "after": after, "source": snapshot, "op": "r", "ts_ms": timestamp}
    return {**record, "value": compact(value), "timestamp": timestamp, "headers": _of_run(record)}


def _of_run(record: Record) -> list[list[str]]:
    return [[name, OF_SNAPSHOT if name == RUN else value] for name, value in record["headers"]]


def _numbered(records: Sequence[Record]) -> list[Record]:
    """With offsets of their own."""
    ends: dict[int, int] = {}
    found = []
    for record in records:
        offset = ends.get(record["partition"], 0)
        ends[record["partition"]] = offset + 1
        found.append({**record, "offset": offset})
    return found


def _source(record: Record) -> Any:
    return json.loads(record["value"])["source"]


def _coordinates(record: Record) -> Coordinates | None:
    if record["value"] is None:
        return None
    source = _source(record)
    if "lsn" in source:
        commit, lsn = (int(text or 0) for text in json.loads(source["sequence"]))
        return max(commit, lsn), lsn
    number = re.search(r"[0-9]+$", source["file"])
    assert number is not None
    return int(number[0]), source["pos"], source["row"]
