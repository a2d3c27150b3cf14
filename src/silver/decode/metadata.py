"""Columns that say of a record where it comes from: what the envelope or Kafka has of it, all of a batch at once.

`schema` and `source.properties` stand in the message itself: the definition reads them
(silver.decode.reference.decoder).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.models import Feed
from silver.decode.arrays import UTC
from silver.decode.fast.json_records import IN_MILLIS
from silver.decode.records import replaced
from silver.decode.reference.decoder import OF_DEFINITION
from silver.decode.reference.message import compact


def with_metadata(
    columns: Sequence[pa.Array], feed: Feed, records: pa.RecordBatch, stated: Mapping[str, pa.Array]
) -> list[pa.Array]:
    """The columns of the rows, with those that say what the envelope or Kafka says of the record."""
    found = list(columns)
    for number, column in enumerate(feed.columns.values()):
        if column.metadata is not None and column.metadata not in OF_DEFINITION:
            found[number] = _METADATA[column.metadata](records, stated)
    return found


def _of_block(name: str) -> Callable[[pa.RecordBatch, Mapping[str, pa.Array]], pa.Array]:
    return lambda _records, stated: stated["source"].field(name)


def _of_record_itself(name: str, records: pa.RecordBatch, _stated: Mapping[str, pa.Array]) -> pa.Array:
    return records.column(name)


def _read_at(_records: pa.RecordBatch, stated: Mapping[str, pa.Array]) -> pa.Array:
    """When the connector read the change; null of a number outside of years 1 to 9999."""
    ms = stated["read_ms"]
    is_time = pc.and_(pc.greater_equal(ms, IN_MILLIS[0]), pc.less(ms, IN_MILLIS[1]))
    return pc.multiply(pc.if_else(is_time, ms, None), 1000).cast(UTC)


def _headers_as_json(records: pa.RecordBatch, _stated: Mapping[str, pa.Array]) -> pa.Array:
    """The headers as an object of texts: of two of one name the last; what is no UTF-8 with U+FFFD."""
    found = []
    for headers in records.column("headers").to_pylist():
        values = {one["key"]: one["value"] for one in headers or ()}
        found.append(compact({name: replaced(value) for name, value in values.items()}))
    return pa.array(found, pa.string())


# What a record's metadata is, from the record and what it states.
_METADATA: Mapping[str, Callable[[pa.RecordBatch, Mapping[str, pa.Array]], pa.Array]] = {
    "ingestion-timestamp": _read_at,
    "source.timestamp": lambda _records, stated: stated["source_ts"],
    "source.database": _of_block("db"),
    "source.schema": _of_block("schema"),
    "source.table": _of_block("table"),
    "headers": _headers_as_json,
    **{name: partial(_of_record_itself, name) for name in ("topic", "partition", "offset", "timestamp")},
}
