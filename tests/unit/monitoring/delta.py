"""Small Delta tables in a folder, with the columns that a look at a warehouse reads, named as the jobs name them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from lakehouse.delta.address import Address
from monitoring.readings.tables import DeltaFiles

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
LONGS, TEXTS = pa.list_(pa.int64()), pa.list_(pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_PLACE = [("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32())]

BATCHES = pa.schema(
    [
        *((name, pa.string()) for name in ("layer", "run", "source", "generation", "writer", "feed")),
        *((name, pa.int64()) for name in ("batch", "sequence", "first_offset", "last_offset", "read")),
        *_PLACE,
        *((name, pa.int64()) for name in ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")),
        ("run_id", pa.string()),
        ("snapshot_at", LONGS),
        (
            "segment",
            pa.struct(
                [
                    *((name, pa.int64()) for name in ("first_offset", "last_offset")),
                    *(("lowest", LONGS), ("highest", LONGS), ("has_end", pa.bool_())),
                    *((name, pa.int64()) for name in ("first_ms", "read_from_ms", "read_to_ms")),
                    ("source_names", TEXTS),
                    *((name, pa.int64()) for name in ("highest_timestamp_ms", "last_key")),
                    ("last_is_delete", pa.bool_()),
                    *((name, pa.int64()) for name in ("with_unchanged_toast", "judged")),
                    ("absent_columns", pa.map_(pa.string(), pa.int64())),
                ]
            ),
        ),
        (
            "epochs",
            pa.list_(pa.struct([("epoch", pa.int64()), ("run_id", pa.string()), *_PLACE, ("from_offset", pa.int64())])),
        ),
        (
            "cutoffs",
            pa.list_(
                pa.struct(
                    [
                        *((name, pa.string()) for name in ("reason", "topic", "at_topic")),
                        *(("at_partition", pa.int32()), ("at_offset", pa.int64()), ("position", pa.string())),
                    ]
                )
            ),
        ),
        (
            "suspended",
            pa.struct(
                [
                    *((name, pa.int64()) for name in ("first_offset", "last_offset", "records")),
                    *(("rule", pa.string()), ("why", pa.string())),
                ]
            ),
        ),
        ("resumed", pa.bool_()),
        ("planned", pa.struct([(name, pa.int64()) for name in ("from_offset", "until_offset", "records")])),
        (
            "step",
            pa.struct(
                [
                    *((name, pa.int64()) for name in ("change", "from_offset", "to_offset", "skipped", "read_again")),
                    ("reason", pa.string()),
                ]
            ),
        ),
        ("state", pa.string()),
        (
            "fingerprint",
            pa.struct(
                [
                    ("made_by", pa.string()),
                    ("ends", pa.map_(pa.string(), pa.int64())),
                    ("published", pa.map_(pa.string(), pa.string())),
                    ("tables", pa.map_(pa.string(), pa.string())),
                ]
            ),
        ),
        *(("started_at", TIME), ("written_at", TIME)),
    ]
)
QUARANTINE = pa.schema(
    [
        *(("source", pa.string()), ("feed", pa.string()), *_PLACE, ("offset", pa.int64())),
        *(("reasons", TEXTS), ("rules", TEXTS), ("is_damaged", pa.bool_())),
        *(("first_seen", TIME), ("state", pa.string())),
    ]
)
RESULTS = pa.schema(
    [
        *((name, pa.string()) for name in ("gate", "source", "feed", "rule", "on_failure")),
        *(("passed", pa.bool_()), ("evaluated_at", TIME)),
    ]
)
LEASE = pa.schema(
    [
        *((name, pa.string()) for name in ("token", "command", "run_id", "host", "user")),
        *(("pid", pa.int64()), ("started_at", TIME), ("expires_at", TIME)),
    ]
)
SILVER = pa.schema(
    [
        *(("order_id", pa.int64()), ("status", pa.string()), ("note", pa.string())),
        *(("_source_ts", TIME), ("_applied_at", TIME)),
        *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
    ]
)
GOLD = pa.schema(
    [
        *(("composite_key", pa.string()), ("order_id", pa.int64()), ("source_database", pa.string())),
        *(("status", pa.string()), ("processed_at", TIME)),
    ]
)
BRONZE = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", TIME)),
        *(("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("_topic_id", pa.string())),
    ]
)
CHANGE_DATA: Mapping[str, str | None] = {"delta.enableChangeDataFeed": "true"}


def at(minutes: float) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=minutes)


def write(
    folder: Path,
    name: str,
    schema: pa.Schema,
    rows: Iterable[Mapping[str, Any]],
    *,
    configuration: Mapping[str, str | None] | None = None,
) -> Path:
    """Append rows to a table as one commit; a column that a row does not have is null. The table's folder."""
    path = folder.joinpath(*name.split("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    given = [*rows]
    assert not {key for row in given for key in row} - set(schema.names)
    columns = {field.name: pa.array([row.get(field.name) for row in given], field.type) for field in schema}
    write_deltalake(path, pa.table(columns, schema), mode="append", configuration=configuration)
    return path


def write_batches(folder: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to `ops.batches`."""
    write(folder, "ops.batches", BATCHES, rows)


def tables_in(folder: Path) -> DeltaFiles:
    """The tables of a folder, as they are now."""
    return DeltaFiles(Address(location=str(folder), checkpoints=str(folder / "checkpoints")))


def restate(table: Path, version: int, operation: str, when: datetime, **metrics: int) -> None:
    """Let a commit's history say what Spark would have said of it."""
    log = table / "_delta_log" / f"{version:020}.json"
    actions: Sequence[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"] |= {
                "operation": operation,
                "timestamp": int(when.timestamp() * 1000),
                "operationMetrics": {key: str(value) for key, value in metrics.items()},
            }
    log.write_text("\n".join(json.dumps(action) for action in actions))
