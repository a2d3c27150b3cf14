"""Batches of records into batches of events.

`decode_batches` gives a row for each record of a feed's topic, in the order of `columns`:
the record as it came, and what it states (`silver.decode.reference.decoder.Event`); of the row the feed's own struct
alone is not null. Records of topics without a feed are left out.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import STRING
from lakehouse.registered import RegisteredSchema
from silver.decode.arrays import TEXTS, UTC, array_of, empty_lists, in_bulk, sequences, type_of
from silver.decode.avro import is_confluent, schema_id
from silver.decode.fast.avro_records import FastAvroDecoder, typed_avro
from silver.decode.fast.json_records import FastDecoder, FastRows, typed
from silver.decode.metadata import with_metadata
from silver.decode.records import Headers, bytes_of, is_fast_path
from silver.decode.reference.decoder import Event, ReferenceDecoder, of_topic
from silver.decode.reference.message import NUMBERS_OF_SOURCE, MalformedError, Record, Source, compact
from silver.decode.reference.values import CONVERSION_ERROR
from silver.decode.reference.wrapper import MAX_KNOWN, WRAPPED, Unwrapping

# What is decoded at a time: one record may be as large as Kafka lets it be.
MAX_RECORDS, MAX_BYTES = 10_000, 32 * 1024 * 1024
# Of the name of a table that a record names, what is shown.
_NOT_OF_NAMES = re.compile(r"[^\w.$-]")
MAX_OF_NAME = 200

# Columns of the records, as bronze has them; `topic_id` is empty where it is not known.
RECORD: Mapping[str, str] = {
    "topic": "STRING",
    "topic_id": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
_SOURCE = {name: "BIGINT" if name in NUMBERS_OF_SOURCE else "STRING" for name in Source._fields} | {
    "sequence": "ARRAY<STRING>"
}
SOURCE = f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in _SOURCE.items())}>"
_STATED: Mapping[str, str] = {
    "run_id": "STRING",
    "kind": "STRING",
    "op": "STRING",
    "is_delete": "BOOLEAN",
    "source_ts": "TIMESTAMP",
    "read_ms": "BIGINT",
    "source": SOURCE,
    "event_id": "STRING",
    "old_key": "STRING",
    "new_key": "STRING",
    **dict.fromkeys(("absent", "unchanged_toast", "unsent_columns", "problems", "drift"), "ARRAY<STRING>"),
}
_SEQUENCE = Source._fields.index("sequence")

_WRAPPED = WRAPPED.encode()
_RECORD_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("topic", "topic_id"), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": UTC,
    **dict.fromkeys(("key", "value"), pa.binary()),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def columns(feeds: Iterable[Feed]) -> dict[str, str]:
    """The columns of the events of these feeds, with their Spark types: the row of each is `row_<feed>`."""
    rows = {
        row_of(feed.name): f"STRUCT<{', '.join(f'`{n}`: {c.type.ddl}' for n, c in feed.columns.items())}>"
        for feed in feeds
    }
    return {"feed": "STRING", **RECORD, **_STATED, **rows}


def row_of(feed: str) -> str:
    """The column that holds the rows of a feed."""
    return f"row_{feed}"


def decode_batches(
    batches: Iterable[pa.RecordBatch], *, feeds: Sequence[Feed], definition_alone: bool = False
) -> Iterator[pa.RecordBatch]:
    """The events of these records (RECORD), in `columns`. `definition_alone`: none is read the fast way."""
    decoders = [_Decoder(feed, feeds, definition_alone=definition_alone) for feed in feeds]
    for batch in batches:
        for part in _bounded(_of_record(batch)):
            for topic, rows in _by_topic(part):
                for decoder in decoders:
                    if decoder.feed.has_topic(topic):
                        with _no_collections():
                            events = list(decoder.events(topic, rows))
                        yield from events


def name_batches(batches: Iterable[pa.RecordBatch], *, feed: Feed) -> Iterator[pa.RecordBatch]:
    """`field`: the names of the fields that the rows in these records (RECORD) of a feed's topics have."""
    explaining = ReferenceDecoder(feed)
    for batch in batches:
        found = {name for record in _records(batch) for name in explaining.fields(record)}
        yield pa.RecordBatch.from_arrays([pa.array(sorted(found), pa.string())], names=["field"])


def table_batches(batches: Iterable[pa.RecordBatch], *, feed: Feed) -> Iterator[pa.RecordBatch]:
    """`name`: of each of these records (RECORD) of a feed's topics the table that it says it is of; null without one.

    A name may be anything: it is made safe to be shown.
    """
    explaining = ReferenceDecoder(feed)
    for batch in batches:
        tables = map(explaining.table, _records(batch))
        shown = [None if table is None else _NOT_OF_NAMES.sub("?", table)[:MAX_OF_NAME] for table in tables]
        yield pa.RecordBatch.from_arrays([pa.array(shown, pa.string())], names=["name"])


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    for topic, rows in _by_topic(_of_record(batch)):
        columns = (rows.column(name).to_pylist() for name in ("key", "value"))
        headers = Headers(rows.column("headers"))
        for number, (key, value) in enumerate(zip(*columns, strict=True)):
            yield Record(topic, key, value, headers.of(number))


def key_texts(keys: pa.Array, schemas: Mapping[int, RegisteredSchema]) -> pa.Array:
    """The text of each key in Avro as JSON without spaces; null of any other, and of one that cannot be read."""
    unwrapped, found = Unwrapping(schemas), []
    for key in keys.to_pylist():
        text = None
        if key and is_confluent(key):
            with suppress(MalformedError):
                text = compact(unwrapped.message(key, name="")[0].payload)
        found.append(text)
    return pa.array(found, pa.string())


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let Python look for no cycles in between: there are none, and to look takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most so many records, and so many bytes unless one record has more."""
    if batch.num_rows <= MAX_RECORDS and batch.nbytes <= MAX_BYTES:
        if batch.num_rows:
            yield batch
        return
    sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_pylist()
    first = size = 0
    for at, one in enumerate(sizes):
        if at > first and (size + one > MAX_BYTES or at - first >= MAX_RECORDS):
            yield batch.slice(first, at - first)
            first, size = at, 0
        size += one
    yield batch.slice(first)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = pc.unique(batch.column("topic")).to_pylist()
    for topic in topics:
        yield topic, batch if len(topics) == 1 else batch.filter(pc.equal(batch.column("topic"), topic))


class _Decoder:
    """Decodes the records of one feed: those that are as declared by `typed`, the others by `explain`."""

    def __init__(self, feed: Feed, feeds: Sequence[Feed], *, definition_alone: bool) -> None:
        self.feed, self._feeds = feed, feeds
        self._explaining = ReferenceDecoder(feed)
        self._is_quick = not definition_alone
        self._typed = typed(feed) if self._is_quick else None
        # By the schema that messages begin with.
        self._wrapped: dict[bytes, FastDecoder | None] = {}
        # By the ids of the schemas of value and key; of a key that is JSON none.
        self._avro: dict[tuple[int, int | None], FastAvroDecoder | None] = {}

    def events(self, topic: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The events of records of one topic."""
        headers = Headers(batch.column("headers"))
        keys, values = bytes_of(batch.column("key")), bytes_of(batch.column("value"))
        taken: set[int] = set()
        may_be = self._is_quick and _names_keys(self.feed, topic)
        plain = is_fast_path(batch, headers, most=self.feed.max_record_bytes) if may_be else [False] * batch.num_rows
        for reads, (at, of_keys, of_values) in self._as_declared(topic, keys, values, plain).items():
            rows, columns = _columns(reads, reads.read(of_keys, of_values), topic)
            if rows.at:
                here = [at[n] for n in rows.at]
                taken.update(here)
                stated = _stated_by_typed(rows, columns[0], headers.run_ids(here))
                yield self._batch(_at(batch, here), stated, columns[1:])
        rest = [n for n in range(batch.num_rows) if n not in taken]
        if rest:
            found = [self._explaining.own_event(Record(topic, keys[n], values[n], headers.of(n))) for n in rest]
            self._learn()
            own = [n for n, event in zip(rest, found, strict=True) if event is not None]
            events = [event for event in found if event is not None]
            if own:
                yield self._batch(_at(batch, own), _stated(events), _rows(events, self.feed))

    def _as_declared(
        self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], plain: Sequence[bool]
    ) -> Mapping[FastDecoder | FastAvroDecoder, tuple[list[int], list[bytes], list[bytes]]]:
        """The records that may be as declared, by the reader of their form: their numbers, keys and values."""
        found: dict[FastDecoder | FastAvroDecoder, tuple[list[int], list[bytes], list[bytes]]] = {}
        if not any(plain):
            return found
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            if not key or not value or not plain[number]:
                continue
            reads: FastDecoder | FastAvroDecoder | None
            if is_confluent(value):
                of_key, of_value, reads = key, value, self._of_avro(key, value)
            else:
                of_key, of_value, reads = self._without_schemas(key, value)
            if not (of_key and of_value) and len(self._wrapped) < MAX_KNOWN:
                # The first with its schema: the definition reads it, and then it is known.
                self._explaining.event(Record(topic, key, value))
                self._learn()
                of_key, of_value, reads = self._without_schemas(key, value)
            if reads is not None and of_key and of_value:
                at, of_keys, of_values = found.setdefault(reads, ([], [], []))
                at.append(number)
                of_keys.append(of_key)
                of_values.append(of_value)
        return found

    def _of_avro(self, key: bytes, value: bytes) -> FastAvroDecoder | None:
        """The reader of records with the schemas of these."""
        ids = schema_id(value), schema_id(key) if is_confluent(key) else None
        if ids not in self._avro:
            self._avro[ids] = self._new_of_avro(key, value)
        return self._avro[ids]

    def _new_of_avro(self, key: bytes, value: bytes) -> FastAvroDecoder | None:
        try:
            of_value = self._explaining.registered.of(value, name="")
            of_key = self._explaining.registered.of(key, name="") if is_confluent(key) else None
        except MalformedError:
            return None
        return typed_avro(self.feed, of_value, of_key)

    def _without_schemas(self, key: bytes, value: bytes) -> tuple[bytes, bytes, FastDecoder | None]:
        """Key and value without the schemas around them, and the reader of the value; no bytes where one is new."""
        of_key = self._unwrapped(key)[0] if key.startswith(_WRAPPED) else key
        of_value, reads = self._unwrapped(value) if value.startswith(_WRAPPED) else (value, self._typed)
        return of_key, of_value, reads

    def _unwrapped(self, message: bytes) -> tuple[bytes, FastDecoder | None]:
        """The payload of a message whose schema is known, and the reader for it; no bytes of any other."""
        for prefix, reads in self._wrapped.items():
            if message.startswith(prefix) and message.endswith(b"}"):
                return message[len(prefix) : -1], reads
        return b"", None

    def _learn(self) -> None:
        """Make readers for the schemas that the definition has met."""
        known = self._explaining.schemas()
        if self._is_quick and len(known) != len(self._wrapped):
            self._wrapped = {prefix.encode(): typed(self.feed, schema) for prefix, schema in known.items()}

    def _batch(self, records: pa.RecordBatch, stated: Sequence[pa.Array], rows: Sequence[pa.Array]) -> pa.RecordBatch:
        feed, number = self.feed, records.num_rows
        rows = [rows[0], *with_metadata(rows[1:], feed, records, dict(zip(_STATED, stated, strict=True)))]
        of_feeds = [
            _struct(rows[1:], rows[0], feed) if one.name == feed.name else pa.nulls(number, _struct_type(one))
            for one in self._feeds
        ]
        name = pa.repeat(pa.scalar(feed.name), number)
        columns = [name, *records.columns, *stated, *of_feeds]
        return pa.RecordBatch.from_arrays(
            columns, names=["feed", *RECORD, *_STATED, *(row_of(one.name) for one in self._feeds)]
        )


def _names_keys(feed: Feed, topic: str) -> bool:
    """Whether the topic's name has a value for every column of the key that it states."""
    patterns = [feed.columns[key].from_topic for key in feed.keys]
    return all(of_topic(re.compile(pattern), topic) is not None for pattern in patterns if pattern is not None)


def _at(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int32()))


def _columns(reads: FastDecoder | FastAvroDecoder, rows: FastRows, topic: str) -> tuple[FastRows, list[pa.Array]]:
    """The rows that are as declared after all, the `sequence` of their sources, and the arrays of their columns."""
    arrays: list[pa.Array] = []
    of_sources, errors = sequences([block[_SEQUENCE] for block in rows.source])
    cells = list(zip(*rows.rows, strict=True)) or [()] * len(reads.columns)
    for column, of_column in zip(reads.columns, cells, strict=True):
        if column.declared.metadata is not None:
            arrays.append(pa.nulls(len(rows.at), type_of(column.declared.type)))
            continue
        if column.from_topic is not None:
            arrays.append(pa.array([of_topic(column.from_topic, topic)] * len(rows.at), pa.string()))
            continue
        array = in_bulk(column, of_column)
        if array is None:
            values = reads.values(column, of_column)
            errors |= {number for number, value in enumerate(values) if value is CONVERSION_ERROR}
            array = None if errors else array_of(values, column.declared.type)
        arrays.append(array)
    if errors:
        return _columns(reads, rows.without(errors), topic)
    return rows, [of_sources, pa.array([True] * len(rows.at), pa.bool_()), *arrays]


def _stated_by_typed(rows: FastRows, sequences: pa.Array, run_ids: pa.Array) -> list[pa.Array]:
    """The columns of `_STATED` for records that were as declared."""
    number = len(rows.at)
    op = pa.array(rows.op, pa.string())
    none, empty = pa.nulls(number, pa.string()), empty_lists(number)
    blocks = list(zip(*rows.source, strict=True))
    parts = [
        sequences if name == "sequence" else pa.array(part, pa.int64() if name in NUMBERS_OF_SOURCE else pa.string())
        for name, part in zip(Source._fields, blocks, strict=True)
    ]
    return [
        run_ids,
        pa.repeat(pa.scalar("change"), number),
        op,
        pc.equal(op, "d"),
        pa.array(rows.source_ts, pa.int64()).cast(UTC),
        pa.array(rows.read_ms, pa.int64()),
        pa.StructArray.from_arrays(parts, names=list(Source._fields)),
        *(none, none, none),
        *(empty, empty, empty, empty, empty),
    ]


def _stated(events: Sequence[Event]) -> list[pa.Array]:
    """The columns of `_STATED` for events of the definition."""
    texts = {name: pa.array([getattr(event, name) for event in events], pa.string()) for name in _OF_TEXT}
    lists = {name: pa.array([getattr(event, name) for event in events], TEXTS) for name in _OF_TEXTS}
    blocks = [event.source for event in events]
    parts = [
        pa.array(
            [None if block is None else block[number] for block in blocks],
            TEXTS if name == "sequence" else pa.int64() if name in NUMBERS_OF_SOURCE else pa.string(),
        )
        for number, name in enumerate(Source._fields)
    ]
    is_absent = pa.array([block is None for block in blocks], pa.bool_())
    source = pa.StructArray.from_arrays(parts, names=list(Source._fields), mask=is_absent)
    found: dict[str, pa.Array] = {
        **texts,
        **lists,
        "is_delete": pa.array([event.is_delete for event in events], pa.bool_()),
        "source_ts": pa.array([event.source_ts for event in events], pa.int64()).cast(UTC),
        "read_ms": pa.array([event.read_ms for event in events], pa.int64()),
        "source": source,
    }
    return [found[name] for name in _STATED]


def _rows(events: Sequence[Event], feed: Feed) -> list[pa.Array]:
    """Whether each event has a row, and the arrays of the contract's columns."""
    has_row = pa.array([event.row is not None for event in events], pa.bool_())
    return [
        has_row,
        *(
            array_of(
                [None if event.row is None else event.row[number] for event in events],
                STRING if declared.from_topic is not None else declared.type,
            )
            for number, declared in enumerate(feed.columns.values())
        ),
    ]


def _struct(columns: Sequence[pa.Array], has_row: pa.Array, feed: Feed) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(_struct_type(feed)), mask=pc.invert(has_row))


def _struct_type(feed: Feed) -> pa.StructType:
    """Of a row; a column that the topic's name states is text."""
    return pa.struct([(name, type_of(declared.type)) for name, declared in feed.columns.items()])


def _of_record(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records with columns of the types of RECORD: a session may have larger ones."""
    columns = [batch.column(name) for name in RECORD]
    kinds = [_RECORD_TYPES[name] for name in RECORD]
    cast = [column if column.type == kind else column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(cast, names=list(RECORD))


_OF_TEXT = tuple(name for name, kind in _STATED.items() if kind == "STRING")
_OF_TEXTS = tuple(name for name, kind in _STATED.items() if kind == "ARRAY<STRING>")
