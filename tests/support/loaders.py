"""The two ways in which BigQuery loads the unified topic, as far as they decide which row of a key stays.

A table is a dictionary: composite key, row. Both formats of a record give the same row.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import duckdb

from lakehouse.kafka.log import Record

Table = dict[str, dict[str, Any]]
SECTION = re.compile(r"[0-9A-Fa-f]{1,16}")


def change_data_capture(records: Iterable[Record]) -> Table:
    """What BigQuery's change data capture makes of the records, which arrive in this order.

    Of every key the change with the highest sequence stays, of equal ones the last to arrive.
    """
    latest: dict[str, tuple[tuple[int, ...], Record]] = {}
    for record in records:
        key, sequence = composite_key(record.key), change_sequence(record.headers["change_sequence"])
        if key not in latest or latest[key][0] <= sequence:
            latest[key] = (sequence, record)
    changes = {key: record for key, (_sequence, record) in latest.items()}
    return {key: row(record.value) for key, record in changes.items() if record.headers["change_type"] == "UPSERT"}


def change_sequence(text: str) -> tuple[int, ...]:
    """A `_CHANGE_SEQUENCE_NUMBER` as BigQuery compares it: section by section, each as an unsigned number."""
    sections = text.split("/")
    if len(sections) > 4 or not all(SECTION.fullmatch(section) for section in sections):
        raise ValueError(f"no _CHANGE_SEQUENCE_NUMBER: {text}")
    return tuple(int(section, 16) for section in sections)


INTERMEDIATE = """
    CREATE TABLE intermediate (key STRUCT(composite_key VARCHAR), value VARCHAR, i BIGINT, batch_number BIGINT)
"""
DESTINATION = "CREATE TABLE destination (kafka_key STRUCT(composite_key VARCHAR), value VARCHAR)"
ARRIVED = """
    INSERT INTO intermediate
    SELECT struct_pack(composite_key := unnest($keys)), unnest($values::VARCHAR[]), unnest($numbers), $batch
"""
# Of every key of a batch the record that came last decides, whatever its sequence is.
MERGE = """
    MERGE INTO destination USING (
        SELECT last.* FROM (
            SELECT arg_max(struct_pack(key := key, value := value), i) AS last
            FROM intermediate WHERE batch_number = $batch GROUP BY key.composite_key
        )
    ) AS source ON destination.kafka_key = source.key
    WHEN MATCHED AND source.value IS NOT NULL THEN UPDATE SET value = source.value
    WHEN MATCHED THEN DELETE
    WHEN NOT MATCHED AND source.value IS NOT NULL THEN INSERT VALUES (source.key, source.value)
"""


def sink(records: Sequence[Record], *, batches: Sequence[int]) -> Table:
    """What the sink connector makes of the records, which arrive in this order, in upsert and delete mode.

    `batches`: how many records go into each merge; the rest makes one more.
    """
    with duckdb.connect() as connection:
        connection.execute(INTERMEDIATE)
        connection.execute(DESTINATION)
        for number, batch in enumerate(_cut(records, batches)):
            arrived = {
                "keys": [composite_key(record.key) for record in batch],
                "values": [None if record.value is None else record.value.decode() for record in batch],
                "numbers": list(range(len(batch))),
                "batch": number,
            }
            connection.execute(ARRIVED, arrived)
            connection.execute(MERGE, {"batch": number})
        rows = connection.execute("SELECT kafka_key.composite_key, value FROM destination").fetchall()
    return {key: row(value.encode()) for key, value in rows}


def _cut(records: Sequence[Record], batches: Sequence[int]) -> Iterator[Sequence[Record]]:
    start = 0
    for size in (*batches, len(records)):
        batch = records[start : start + size]
        if batch:
            yield batch
        start += size


def composite_key(key: bytes) -> str:
    """The composite key in a record's key."""
    return str(_fields(key)["composite_key"])


def row(value: bytes | None) -> dict[str, Any]:
    """The fields of a record's value: decimals as Decimal; dates, times and bytes as flat JSON writes them."""
    if value is None:
        raise ValueError("a tombstone has no row")
    return _fields(value)


def _fields(text: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text, parse_float=Decimal)
    if told.keys() != {"schema", "payload"}:
        return told
    fields, payload = told["schema"]["fields"], told["payload"]
    assert [field["field"] for field in fields] == list(payload)
    return {field["field"]: _cell(field, payload[field["field"]]) for field in fields}


def _cell(schema: Mapping[str, Any], cell: Any) -> Any:
    """A cell of the payload as flat JSON has it."""
    if cell is None:
        return None
    match schema.get("name"):
        case "org.apache.kafka.connect.data.Decimal":
            unscaled = int.from_bytes(base64.b64decode(cell), "big", signed=True)
            digits = tuple(int(digit) for digit in str(abs(unscaled)))
            return Decimal((int(unscaled < 0), digits, -int(schema["parameters"]["scale"])))
        case "org.apache.kafka.connect.data.Date":
            return (date(1970, 1, 1) + timedelta(days=cell)).isoformat()
    return cell
