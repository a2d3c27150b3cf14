"""Change events as Debezium sends them, made from rows in plain text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

Record = dict[str, Any]
Order = Mapping[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def order(order_id: int, **columns: Any) -> dict[str, Any]:
    """A row of the orders table: numbers and text, decimals and times as text."""
    return {
        "order_id": order_id,
        "customer_id": 7,
        "product_id": 70,
        "status": "pending",
        "total_amount": "10.00",
        "created_at": "2026-01-01T00:00:00",
        "updated_at": None,
        "note": None,
        **columns,
    }


def base64_decimal(text: str, *, scale: int = 2) -> str:
    """A decimal as Connect sends it: base64 of the unscaled number, in as few bytes as it needs."""
    unscaled = int(Decimal(text).scaleb(scale))
    length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()


def micros(text: str) -> int:
    """A time without a zone, counted from the epoch."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def postgres_image(row: Order) -> dict[str, Any]:
    """The row as the PostgreSQL connector sends it."""
    return _image(row, time=micros)


def mysql_image(row: Order) -> dict[str, Any]:
    """The row as the MySQL connector sends it: TIMESTAMP columns as ISO text."""
    return _image(row, time=lambda text: f"{text}Z")


def postgres_source(
    lsn: int, *, last_commit: int | None, snapshot: str = "false", ts_ms: int = 1_767_225_600_000, **more: Any
) -> dict[str, Any]:
    """The `source` block: `last_commit` is the LSN of the last commit, None in a run without stored offsets.

    `more`: fields that few tests look at, as they stand.
    """
    return {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "postgres_prod_tables",
        "ts_ms": ts_ms,
        "snapshot": snapshot,
        "db": "ecommerce",
        "sequence": json.dumps([None if last_commit is None else str(last_commit), str(lsn)], separators=(",", ":")),
        "ts_us": ts_ms * 1000,
        "schema": "public",
        "table": "orders",
        "lsn": lsn,
        **more,
    }


def mysql_source(
    pos: int,
    *,
    file: str = "mysql-bin.000002",
    row: int = 0,
    snapshot: str = "false",
    ts_ms: int = 1_767_225_600_000,
    **more: Any,
) -> dict[str, Any]:
    """The `source` block: rows of one statement share `pos` and differ in `row`.

    `more`: fields that few tests look at, as they stand.
    """
    return {
        "version": "3.6.1.Final",
        "connector": "mysql",
        "name": "mysql_prod_tables",
        "ts_ms": ts_ms,
        "snapshot": snapshot,
        "db": "ecommerce",
        "sequence": None,
        "ts_us": ts_ms * 1000,
        "table": "orders",
        "file": file,
        "pos": pos,
        "row": row,
        **more,
    }


def snapshot_marker(*, first_table: bool, last_table: bool, first_row: bool, last_row: bool) -> str:
    """`source.snapshot` of a row: only one of several tables carries `first`, and only one `last`.

    A lone row has one marker: that of a last row, unless it is the first of the whole snapshot and not its last.
    """
    if last_row and last_table:
        return "last"
    if first_row and first_table:
        return "first"
    if last_row:
        return "last_in_data_collection"
    return "first_in_data_collection" if first_row else "true"


def change(
    op: str,
    source: Mapping[str, Any],
    image: Mapping[str, Any] | None,
    *,
    before: Mapping[str, Any] | None = None,
    ts_ms: int | None = None,
) -> str:
    """The value of a change event; `before` is never data. `ts_ms`: when the connector told it."""
    told = source["ts_ms"] if ts_ms is None else ts_ms
    return compact({"before": before, "after": image, "source": source, "op": op, "ts_ms": told})


def run_headers(run: str, *, source: Mapping[str, Any], links: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """The headers of a change: `links` to the other key of a changed one, then which run of which connector told it."""
    return [
        *links,
        ("__debezium.context.connectorLogicalName", source["name"]),
        ("__debezium.context.taskId", "0"),
        ("__debezium.context.connectorName", source["connector"]),
        ("__debezium.context.runId", run),
    ]


def record(
    topic: str,
    offset: int,
    *,
    key: object,
    value: str | None,
    partition: int = 0,
    timestamp: int = 1_767_225_600_000,
    headers: Sequence[tuple[str, str | None]] = (),
) -> Record:
    """A Kafka record in the form of the recordings."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": None if key is None else compact(key),
        "value": value,
        "headers": [list(header) for header in headers],
    }


def compact(value: object) -> str:
    """JSON without spaces."""
    return _COMPACT.encode(value)


_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def _image(row: Order, *, time: Any) -> dict[str, Any]:
    image = dict(row)
    if image.get("total_amount") is not None:
        image["total_amount"] = base64_decimal(image["total_amount"])
    for column in ("created_at", "updated_at"):
        if image.get(column) is not None:
            image[column] = time(image[column])
    return image
