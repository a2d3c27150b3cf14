"""What reading a record costs: processor time a record with its Arrow columns, by the shape that it has.

python -m benchmarks.decode [--records 20000] [--turns 5] [--write-docs]

The orders of `benchmarks.load` in seven shapes, each through `silver.decode.arrow.decode_batches` in this process, as
Spark's Python workers run it: as it is, where the declared shapes go the fast way, and with the definition alone.
Prints the fastest turn of each; `--write-docs` writes the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from io import BytesIO
from itertools import islice
from typing import Any

import fastavro
import pyarrow as pa
from rich.table import Table as Result

from benchmarks.load import TOPICS, Table, contracts_of_load
from benchmarks.report import add_option, write
from lakehouse.contracts.models import Feed
from lakehouse.process.steps import wide_console
from lakehouse.registered import AVRO, RegisteredSchema
from silver.decode import arrow

# The key and the value as the shape has them; a value that is none stays so.
Shape = Callable[[bytes, Mapping[str, Any]], tuple[bytes, bytes]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    add_option(parser)
    options = parser.parse_args(argv)
    table = Result("shape", "bytes a record", "as it is, µs", "the definition alone, µs")
    for name, feed, batch in shapes(options.records):
        bytes_a_record = (batch.column("value").nbytes + batch.column("key").nbytes) / batch.num_rows
        quick, slow = (cost(batch, feed, options.turns, explain=explain) for explain in (False, True))
        table.add_row(name, f"{bytes_a_record:,.0f}", f"{quick:.1f}", f"{slow:.1f}")
    wide_console().print(table)
    if options.write_docs:
        asked = f"{options.records:,} records a shape, the fastest of {options.turns} turns, processor time"
        write("decode", table, [], asked=asked)


def cost(batch: pa.RecordBatch, feed: Feed, turns: int, *, explain: bool) -> float:
    """Microseconds of processor time a record: the fastest of so many turns. `explain`: by the definition alone."""
    found: list[float] = []
    for _turn in range(turns):
        begin = time.process_time()
        events = sum(one.num_rows for one in arrow.decode_batches([batch], feeds=[feed], definition_alone=explain))
        found.append((time.process_time() - begin) / events * 1e6)
        if events != batch.num_rows:
            raise RuntimeError(f"{events} events of {batch.num_rows} records")
    return min(found)


def shapes(records: int) -> Iterator[tuple[str, Feed, pa.RecordBatch]]:
    """The shapes: their name, the feed that reads them, and so many records."""
    feeds = contracts_of_load().feeds.values()
    table = {feed.kind: feed for feed in feeds if feed.envelope == "table"}
    outbox = next(feed for feed in feeds if feed.envelope == "outbox" and feed.kind == "postgresql")
    yield "envelope, PostgreSQL", table["postgresql"], batch_of("postgresql", records, enveloped)
    yield "envelope, MySQL", table["mysql"], batch_of("mysql", records, enveloped)
    in_avro = table["postgresql"].model_copy(update={"schemas": REGISTERED})
    yield "envelope, Avro of the Confluent wire format", in_avro, batch_of("postgresql", records, avro)
    yield "envelope with its schema", table["postgresql"], batch_of("postgresql", records, with_schema)
    yield "flattened", table["postgresql"], batch_of("postgresql", records, flattened)
    yield "outbox, expanded", outbox, batch_of("postgresql", records, expanded, topic=outbox.topics[0])
    yield "outbox, plain", outbox, batch_of("postgresql", records, plain, topic=outbox.topics[0])


def batch_of(kind: str, records: int, shape: Shape, *, topic: str = "") -> pa.RecordBatch:
    """So many records of a source that have a row, with the headers that its connector sends."""
    source = Table(kind, seed=1, keys=2000)
    with_row = ((key, json.loads(value)) for key, value in source.events() if value and b'"op":"d"' not in value)
    messages = [shape(key, event) for key, event in islice(with_row, records)]
    headers = [
        {"key": name, "value": value.encode() if isinstance(value, str) else value} for name, value in source.headers()
    ]
    of_records: dict[str, pa.Array] = {
        "topic": pa.array([topic or TOPICS[kind]] * records),
        "topic_id": pa.array([""] * records),
        "partition": pa.array([0] * records, pa.int32()),
        "offset": pa.array(range(records), pa.int64()),
        "timestamp": pa.array([0] * records, pa.timestamp("us", tz="UTC")),
        "key": pa.array([key for key, _value in messages], pa.binary()),
        "value": pa.array([value for _key, value in messages], pa.binary()),
        "headers": pa.array([headers] * records, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return pa.RecordBatch.from_arrays([of_records[name] for name in arrow.RECORD], names=list(arrow.RECORD))


def enveloped(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """As it came."""
    return key, _json(event)


def _optional(*kinds: Any) -> Any:
    return {"type": ["null", *kinds], "default": None}


_LONG = _optional("long")
_TEXT = _optional("string")
_TIME = _optional({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp", "connect.version": 1})
_AMOUNT = _optional(
    {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": 10,
        "scale": 2,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
    }
)
# As Debezium's connector and Connect's Avro converters write it.
_KEY_SCHEMA = {"type": "record", "name": "Key", "fields": [{"name": "order_id", "type": "long"}]}
_ROW = {"customer_id": _LONG, "product_id": _LONG, "status": _TEXT, "total_amount": _AMOUNT}
_ROW |= {"created_at": _TIME, "updated_at": _TIME, "note": _TEXT}
_VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "order_id", "type": "long"}, *({"name": name, **one} for name, one in _ROW.items())],
}
_BLOCK: dict[str, Any] = {name: {"type": "string"} for name in ("version", "connector", "name")}
_BLOCK |= {"ts_ms": {"type": "long"}}
_BLOCK |= {"snapshot": _TEXT, "db": {"type": "string"}, "sequence": _TEXT, "ts_us": _LONG, "ts_ns": _LONG}
_BLOCK |= {"schema": {"type": "string"}, "table": {"type": "string"}, "txId": _LONG, "lsn": _LONG, "xmin": _LONG}
_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", **_optional(_VALUE)},
        {"name": "after", **_optional("Value")},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": name, **one} for name, one in _BLOCK.items()],
            },
        },
        {"name": "op", "type": "string"},
        *({"name": name, **_LONG} for name in ("ts_ms", "ts_us", "ts_ns")),
    ],
}
REGISTERED = {1: RegisteredSchema(AVRO, json.dumps(_KEY_SCHEMA)), 2: RegisteredSchema(AVRO, json.dumps(_ENVELOPE))}


def avro(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """In the Confluent wire format, as Debezium's connector writes it through Connect's Avro converter."""
    rows = {name: row and {**row, "total_amount": Decimal(row["total_amount"])} for name, row in _rows(event).items()}
    return _datum(1, _KEY_SCHEMA, json.loads(key)), _datum(2, _ENVELOPE, {**event, **rows})


def _rows(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in ("before", "after")}


def _datum(number: int, schema: Any, value: Any) -> bytes:
    datum = BytesIO()
    datum.write(b"\0" + number.to_bytes(4, "big"))
    fastavro.schemaless_writer(datum, schema, value)
    return datum.getvalue()


def with_schema(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """With the schema that JsonConverter puts before it by default, its decimals as text."""
    int64, text = {"type": "int64", "optional": True}, {"type": "string", "optional": True}
    time_ = {**int64, "name": "io.debezium.time.MicroTimestamp"}
    kinds = {"order_id": int64, "customer_id": int64, "product_id": int64, "created_at": time_, "updated_at": time_}
    fields = [{**kinds.get(name, text), "field": name} for name in event["after"]]
    row = {"type": "struct", "optional": True, "fields": fields}
    places = [{**row, "field": "before"}, {**row, "field": "after"}, {**text, "field": "op"}]
    key_schema = {"type": "struct", "fields": [{**int64, "field": "order_id"}]}
    return (
        _json({"schema": key_schema, "payload": json.loads(key)}),
        _json({"schema": {"type": "struct", "fields": places}, "payload": event}),
    )


def flattened(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """As ExtractNewRecordState leaves it, with the fields of a position."""
    source = {f"__source_{name}": event["source"][name] for name in ("lsn", "sequence", "ts_ms", "snapshot")}
    return key, _json({**event["after"], "__deleted": "false", "__op": event["op"], **source})


def expanded(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """As an outbox's payload, expanded."""
    return _json(str(json.loads(key)["order_id"])), _json(event["after"])


def plain(key: bytes, event: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """As an outbox's payload, a text."""
    return _json(str(json.loads(key)["order_id"])), _json(_json(event["after"]).decode())


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


if __name__ == "__main__":
    main()
