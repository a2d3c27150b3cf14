"""Cut or changed copies of recordings."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(recording: Path) -> list[Record]:
    """All records of a recording."""
    with gzip.open(recording, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(recording: Path, records: list[Record]) -> Path:
    """A recording of these records."""
    with gzip.open(recording, "wt", encoding="utf-8", compresslevel=1) as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    return recording


def per_partition(records: list[Record], keep: Callable[[int], bool]) -> list[Record]:
    """The records whose number within their topic-partition, from 0, is to be kept."""
    seen: Counter[tuple[str, int]] = Counter()
    kept = []
    for record in records:
        place = (record["topic"], record["partition"])
        if keep(seen[place]):
            kept.append(record)
        seen[place] += 1
    return kept


def with_last_value_changed(records: list[Record], *, topic: str, key: str, column: str, value: object) -> list[Record]:
    """The records, with one column of the last event of one key changed in `after`."""
    last = max(
        number
        for number, record in enumerate(records)
        if record["topic"] == topic and record["key"] == key and record["value"] is not None
    )
    event = json.loads(records[last]["value"])
    event["after"][column] = value
    return [*records[:last], {**records[last], "value": json.dumps(event)}, *records[last + 1 :]]
