"""The demo's own check: silver against the recorded final tables, the topic against gold. It alone opens the truth."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

MAX_KEYS_NAMED = 5

# The silver table of each table feed, and the recording whose final state of `orders` it must equal.
TRUTH = {"silver.postgres_orders": "pg_big_20k", "silver.mysql_orders": "mysql_big_20k"}

Rows = Mapping[Any, Mapping[str, Any]]


def silver_differences(warehouse: Warehouse, *, data: Path, truth: Mapping[str, str] = TRUTH) -> list[str]:
    """A sentence for every table of `truth` whose live rows are not exactly the source's, naming keys.

    `data`: the folder of the recordings.
    """
    sentences = []
    for table, recording in truth.items():
        expected = final_rows(data / f"{recording}.final.json.gz", "orders", key="order_id")
        columns = list(next(iter(expected.values())))
        live = warehouse.read(table).where(~F.col("_is_deleted"))
        sentences += differences(as_text(live, columns, key="order_id"), expected, of=table, against="its source")
    return sentences


def topic_differences(warehouse: Warehouse, *, bootstrap_servers: str, topic: str) -> list[str]:
    """A sentence naming keys when the topic's last value per key is not gold."""
    gold = warehouse.read("gold.unified_orders")
    expected = as_text(gold, gold.columns, key="composite_key")
    compacted = compacted_view(bootstrap_servers, topic)
    actual = {key: {name: topic_text(value[name]) for name in gold.columns} for key, value in compacted.items()}
    return differences(actual, expected, of=f"topic {topic}", against="gold.unified_orders")


def differences(actual: Rows, expected: Rows, *, of: str, against: str) -> list[str]:
    """At most one sentence: how many keys differ, and the first of them. No values."""
    keys = [key for key in {**expected, **actual} if actual.get(key) != expected.get(key)]
    if not keys:
        return []
    named = ", ".join(str(key) for key in sorted(keys)[:MAX_KEYS_NAMED])
    more = f" and {len(keys) - MAX_KEYS_NAMED} more" if len(keys) > MAX_KEYS_NAMED else ""
    return [f"{of} differs from {against} in {len(keys)} of {len(expected)} keys: {named}{more}."]


def final_rows(file: Path, table: str, *, key: str) -> Rows:
    """The source table after the recorded workload, by key: numbers and text, decimals and times as text."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        final = json.load(text)[table]
    rows = [dict(zip(final["columns"], row, strict=True)) for row in final["rows"]]
    return {row[key]: row for row in rows}


def as_text(rows: DataFrame, columns: list[str], *, key: str) -> Rows:
    """A table by key in the form of the recorded truth. Collects it: for tables as small as the demo's."""
    types = dict(rows.dtypes)
    time = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    as_truth = [
        F.regexp_replace(F.date_format(name, time), r"\.0{6}$", "").alias(name)
        if types[name] == "timestamp"
        else (F.col(name).cast("string").alias(name) if types[name].startswith("decimal") else F.col(name))
        for name in columns
    ]
    return {row[key]: row.asDict() for row in rows.select(*as_truth).collect()}


def compacted_view(bootstrap_servers: str, topic: str) -> dict[str, dict[str, Any]]:
    """What a reader holds who has read the whole topic: the last value of every key, without the deleted ones."""
    view: dict[str, dict[str, Any]] = {}
    for key, value in read_topic(bootstrap_servers, topic):
        composite_key = json.loads(key)["composite_key"]
        if value is None:
            view.pop(composite_key, None)
        else:
            view[composite_key] = json.loads(value, parse_float=Decimal)
    return view


def read_topic(bootstrap_servers: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of every committed record that is on the topic now, each partition in its order."""
    for record in committed_records(KafkaConnection(bootstrap_servers=bootstrap_servers), topic):
        yield record.key, record.value


def topic_text(value: object) -> object:
    """A value of the flat JSON in the form of `as_text`."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, str) and value.endswith("Z") and len(value) == len("2026-01-01T00:00:00.000000Z"):
        return value.removesuffix("Z").removesuffix(".000000")
    return value
