"""The changes of a table, in every shape that Debezium and its transforms give them.

    envelope    {"before": …, "after": …, "source": {…}, "op": "c"}, with or without `source`, with or without `op`
    flattened   the row itself (ExtractNewRecordState), with `__deleted`, `__op`, `__source_…` or without

Debezium documentation: "Data change events" of the connectors, "New Record State Extraction", "Transaction metadata",
"Heartbeat".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.contracts.models import Feed, Sibling
from lakehouse.contracts.topics import FeedTopics
from silver.decode.reference.message import (
    NUMBERS_OF_SOURCE,
    SNAPSHOT_WORDS,
    Json,
    Key,
    MalformedError,
    MessageSchema,
    Object,
    Record,
    Source,
    Statement,
    has_twice,
    parsed,
    text_of,
    unknown_word,
    whole_number,
)
from silver.decode.reference.numbers import whole
from silver.decode.reference.shapes import other_shape
from silver.decode.reference.times import instant
from silver.decode.reference.wrapper import Unwrapping, read_key

OTHER_TABLE = "The source block names another table than the contract of this feed (tables, table_patterns)."
ANY_TABLE = "The tombstone's key may be of several tables of this topic: their keys have fields of the same names."
TWO_OPS = "The value has the field op more than once."
KEY_CHANGED = "The update has another key before than after: Debezium sends a delete and a create for that."
KEYS_DIFFER = "The record's key and its row have different values for a column of the key."
NEGATIVE = "The source position is negative."
NOT_OF_SHAPE = "The value is not JSON of the declared shape."
NO_EVENT = "The value is not a change event: it has no op, and none of the declared fields."
NO_OPERATION = "The operation is not one of r, c, u with its row, d, t or m."
NO_ROW = "The value is no row of the table: it lacks fields of the key, and of other columns."
OWN_OP = "The row has a field op that the contract declares no column of: it may be the row's operation, or a column."

# What a transaction topic's records may have; data_collections is there in each.
_TRANSACTION = {"status", "id", "event_count", "data_collections", "ts_ms"}
_SECTIONS = ("before", "after", "source")
# Of fields that have few: what ExtractNewRecordState adds to a row, and what a transaction topic's records state.
FLAT_OPERATIONS, DELETED, STATUS = ("r", "c", "u", "d"), ("true", "false"), ("BEGIN", "END")
# What ByLogicalTableRouter adds to keys of tables that share a topic (`key.field.name`): the topic the table had.
OF_ROUTER = "__dbz__physicalTableIdentifier"


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a feed's records may be of; none where the contract names none."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def __contains__(self, table: str | None) -> bool:
        """Whether the table is one of them."""
        return table is not None and (table in self.names or any(pattern.fullmatch(table) for pattern in self.patterns))

    def __bool__(self) -> bool:
        """Whether the contract names any."""
        return bool(self.names or self.patterns)


def tables_of(feed: FeedTopics) -> Tables:
    """The `Tables` of a feed."""
    return Tables(frozenset(feed.tables), tuple(re.compile(pattern) for pattern in feed.table_patterns))


@dataclass(frozen=True, slots=True)
class Fields:
    """What a contract says of the fields of its feed, looked up once for all records.

    `declared`: those that may hold its columns. `keys`: of each column of the key that the record has, its fields.
    `others`: of each other column that is not optional.
    `single_key`: whether that is one column: then a key that is a single value is its value. `tables`: those of the
    feed. `siblings`: the feeds that may share its topics.
    """

    feed: Feed
    declared: frozenset[str]
    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[str, ...], ...]
    tables: Tables
    siblings: tuple[tuple[Sibling, Tables], ...]

    @property
    def single_key(self) -> bool:
        """Whether one column of the key is in the record."""
        return len(self.keys) == 1


def fields_of(feed: Feed) -> Fields:
    """The `Fields` of a feed."""
    own = [name for name, column in feed.columns.items() if column.is_of_row]
    return Fields(
        feed=feed,
        declared=frozenset(field for name in own for field in feed.fields_of(name)),
        keys=feed.key_fields,
        others=tuple(feed.fields_of(name) for name in own if name not in feed.keys and not feed.columns[name].optional),
        tables=tables_of(feed),
        siblings=tuple((sibling, tables_of(sibling.topics)) for sibling in feed.siblings),
    )


def table_statement(record: Record, fields: Fields, unwrapped: Unwrapping) -> Statement:
    """What a record of a table's topic states."""
    try:
        found = _of_value(record, fields, read_key(record.key, unwrapped), unwrapped)
    except MalformedError as why:  # of the key
        return Statement("unreadable", str(why))
    if record.headers:
        found.old_key, found.new_key = record.header("__debezium.oldkey"), record.header("__debezium.newkey")
    return found


def _of_value(record: Record, fields: Fields, key: Key, unwrapped: Unwrapping) -> Statement:
    if not record.value:
        return Statement("tombstone", key=key)
    try:
        (body, schema, whole), text = unwrapped.message(record.value, name="The value")
    except MalformedError as why:
        return Statement("unreadable", str(why) or NOT_OF_SHAPE, key=key)
    if isinstance(body, dict) and list(body) == ["payload"]:
        body = body["payload"]
    if body is None:
        return Statement("tombstone", key=key)
    if isinstance(body, dict):
        found = _statement(record, fields, key, text=text, body=body, schema=schema)
    else:
        found = Statement("unreadable", NOT_OF_SHAPE, key=key)
    found.body, found.schema = body, whole
    return found


def _statement(
    record: Record, fields: Fields, key: Key, *, text: str, body: Object, schema: MessageSchema | None
) -> Statement:
    is_envelope = _is_envelope(body, fields)
    foreign = None if is_envelope else other_shape(body, fields.declared)
    if foreign is not None:
        return Statement("unreadable", foreign, key=key)
    op = _operation(body, fields, is_envelope=is_envelope)
    is_of_shape = _is_of_shape(body)
    if op is not None and is_of_shape:
        return _of_event(fields, key, op, text=text, body=body, schema=schema)
    if is_transaction(body) and text_of(body["status"]) not in STATUS:
        return Statement("unreadable", unknown_word("status", STATUS), key=key)
    if is_heartbeat(body, key) or is_transaction(body) or is_schema_change(body):
        return Statement("ignored", key=key)
    if not is_envelope and not fields.declared.isdisjoint(body):
        if "op" in fields.declared or "op" not in body:
            return _of_flat_row(record, fields, body, schema, key)
        return Statement("unreadable", OWN_OP, key=key)
    return Statement("unreadable", NO_EVENT if is_of_shape else NOT_OF_SHAPE, key=key)


def _is_envelope(body: Object, fields: Fields) -> bool:
    """Whether the object with the field op is an envelope: it has a row or a source too, or fields for them.

    An op alone may be a column of a flattened row; so may the others be, where the contract declares op and them.
    """
    sections = [section for section in _SECTIONS if "op" not in fields.declared or section not in fields.declared]
    return "op" in body and any(section in body for section in sections)


def _operation(body: Object, fields: Fields, *, is_envelope: bool) -> str | None:
    """The operation of an envelope; None where the object is none.

    Without an op its rows decide: there is one after a create, one before a delete, both of an update.
    """
    if is_envelope:
        return text_of(body["op"])
    before, after = body.get("before"), body.get("after")
    rows = [row for row in (before, after) if row is not None]
    is_pair = "after" in body and ("before" in body or isinstance(body.get("source"), dict))
    is_declared = not fields.declared.isdisjoint(_SECTIONS)
    if "op" in body or not is_pair or is_declared or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    return "d" if after is None else "c" if before is None else "u"


def _is_of_shape(body: Object) -> bool:
    """Whether the fields of an envelope are of the types that it has there."""
    source, after = body.get("source"), body.get("after")
    if not _is_whole(body.get("ts_ms")) or not isinstance(after, dict | None) or not isinstance(source, dict | None):
        return False
    return source is None or all(_is_whole(source.get(name)) for name in NUMBERS_OF_SOURCE)


def _is_whole(value: Json) -> bool:
    return value is None or whole_number(value) is not None


def _of_event(fields: Fields, key: Key, op: str, *, text: str, body: Object, schema: MessageSchema | None) -> Statement:
    after, before, source = body.get("after"), body.get("before"), source_of(body.get("source"))
    before = before if isinstance(before, dict) and op in ("u", "d") else None
    row = after
    if op == "d" and after is None and (fields.feed.append_only or not _has_whole_key(fields, key)):
        row = before
    found = Statement(
        kind="unreadable",
        op=op,
        is_delete=op == "d",
        row=row,
        key=key,
        schemas=None if schema is None else schema.nested.get("after", {}),
        source=source,
        source_ts=_time(source),
        read_ms=whole_number(body.get("ts_ms")),
        block=body.get("source"),
    )
    flaw = TWO_OPS if has_twice(text, "op") else _flaw(fields, op, key, row=row, before=before, source=source)
    if source is not None and source.table:
        found.table = table_name(source.table, source, fields.feed.kind)
    if flaw == OTHER_TABLE:
        _of_no_feed(found, fields)
    elif flaw is not None:
        found.problem = flaw
    elif op == "d" or (op in ("r", "c", "u") and after is not None):
        found.kind = "change"
    elif op in ("t", "m"):
        found.kind = "truncate" if op == "t" else "ignored"
    else:
        found.problem = NO_OPERATION
    return found


def _of_flat_row(record: Record, fields: Fields, row: Object, schema: MessageSchema | None, key: Key) -> Statement:
    op, unknown = flat_operation(row, record)
    source = _flat_source(row, record)
    flaw = _flaw(fields, op, key, row=row, before=None, source=source)
    if flaw != OTHER_TABLE:
        flaw = unknown or flaw or (None if _is_row(row, fields) else NO_ROW)
    found = Statement(
        kind="change" if flaw is None else "unreadable",
        problem=flaw,
        op=op,
        is_delete=op == "d",
        row=row,
        key=key,
        schemas=None if schema is None else schema.fields,
        source=source,
        source_ts=_time(source),
        table=table_name(source.table, source, fields.feed.kind) if source.table else None,
    )
    if flaw == OTHER_TABLE:
        _of_no_feed(found, fields)
    return found


def _is_row(row: Object, fields: Fields) -> bool:
    """Whether the object has the fields of the key; or all others, where the record's key alone has those."""
    return any(all(any(name in row for name in names) for names in columns) for columns in (fields.keys, fields.others))


def flat_operation(row: Object, record: Record) -> tuple[str | None, str | None]:
    """The operation of a flattened row, None where it states none; and what is wrong with the words that state it."""
    ops, deleted = _words(row, record, "__op"), _words(row, record, "__deleted")
    op = "d" if "true" in deleted else next(iter(ops), None)
    for name, found, words in (("__op", ops, FLAT_OPERATIONS), ("__deleted", deleted, DELETED)):
        if not {*found} <= {*words}:
            return op, unknown_word(name, words)
    return op, None


def _words(row: Object, record: Record, name: str) -> list[str]:
    """What the field of the name states, and then the header of it."""
    found = (text_of(row.get(name)), record.header(name) if record.headers else None)
    return [word for word in found if word is not None]


def _of_no_feed(found: Statement, fields: Fields) -> None:
    """Make it a record of a table that no feed names: its source block says nothing of this feed's history."""
    found.source = None
    is_ignored = fields.feed.other_tables == "ignore"
    found.kind, found.problem = ("ignored", None) if is_ignored else ("unreadable", OTHER_TABLE)


def _flaw(
    fields: Fields, op: str | None, key: Key, *, row: Object | None, before: Object | None, source: Source | None
) -> str | None:
    """What a change contradicts itself in, or why it is not one of this feed; None of most."""
    if source is not None:
        if is_of_other_table(source, fields):
            return OTHER_TABLE
        if source.snapshot is not None and source.snapshot not in SNAPSHOT_WORDS:
            return unknown_word("snapshot", SNAPSHOT_WORDS)
        if fields.feed.sequence_by == "source_position" and _is_negative(source, fields.feed):
            return NEGATIVE
    either = before if row is None else row
    for names in fields.keys:
        here = _text(row, names)
        if op == "u" and _are_different(_text(before, names), here):
            return KEY_CHANGED
    for names in fields.keys:
        if _are_different(key_text(key, names, fields), _text(either, names)):
            return KEYS_DIFFER
    return None


def is_of_other_table(source: Source, fields: Fields) -> bool:
    """Whether the source block names a table that is not one of the feed's; never where the contract names none."""
    # Of a logical message of PostgreSQL it is empty.
    if not source.table or not fields.tables:
        return False
    return table_name(source.table, source, fields.feed.kind) not in fields.tables


def is_surely_own(source: Source, fields: Fields) -> bool:
    """Whether the record is of a table of the feed, and no feed that shares its topic may have it."""
    return not is_of_other_table(source, fields) and bool(source.table or not fields.siblings)


def is_own(found: Statement, topic: str, fields: Fields) -> bool:
    """Whether the record is this feed's, and not that of a feed that shares its topic.

    A record is of the feed that names its table; a tombstone, which has no table, of the one whose key it has. Any
    other is of the first feed of the topic: what no feed names, and what says nothing of a table. A tombstone that may
    be of several tables is so too, and then unreadable: to take it for a delete could remove a row that is there.
    """
    sharing = [(sibling, tables) for sibling, tables in fields.siblings if sibling.topics.has_topic(topic)]
    if not sharing:
        return True
    is_first = not any(sibling.is_first for sibling, _tables in sharing)
    if found.kind == "tombstone":
        may_be_own = _has_key(found.key, fields.keys, fields.tables)
        others = [_has_key(found.key, sibling.keys, tables) for sibling, tables in sharing]
        if may_be_own + sum(others) == 1:
            return may_be_own
        if may_be_own or any(others):
            found.kind, found.problem = "unreadable", ANY_TABLE
        return is_first
    if found.table in fields.tables:
        return True
    return is_first and not any(found.table in tables for _sibling, tables in sharing)


def _has_key(key: Key, keys: Sequence[Sequence[str]], tables: Tables) -> bool:
    """Whether the key has the fields of these, and the router's mark, where it has one, names one of the tables."""
    if key.fields is None:
        return False
    marked = text_of(key.fields.get(OF_ROUTER))
    if marked is not None:
        return ".".join(marked.split(".")[-2:]) in tables
    has_all = all(any(name in key.fields for name in names) for names in keys)
    return has_all and len(key.fields) == len(keys)


def table_name(table: str, source: Source, kind: str) -> str:
    """The table of a source block as a contract names it; alone where the block does not say what it is in."""
    outer = source.schema if kind == "postgresql" else source.db
    return f"{outer}.{table}" if outer is not None else table


def key_text(key: Key, names: Sequence[str], fields: Fields) -> str | None:
    """The text of a column of the key in the record's own key; `names`: of its fields."""
    found = _text(key.fields, names)
    return key.value if found is None and fields.single_key else found


def _text(row: Object | None, names: Sequence[str]) -> str | None:
    """The text of the first of these fields that the row has."""
    if row is not None:
        for name in names:
            if row.get(name) is not None:
                return text_of(row[name])
    return None


def _are_different(one: str | None, other: str | None) -> bool:
    """Whether both are there, and are two values: -0 is 0."""
    if one is None or other is None or one == other:
        return False
    number = whole(one)
    return number is None or number != whole(other)


def _has_whole_key(fields: Fields, key: Key) -> bool:
    return key.fields is not None and all(name in key.fields for names in fields.keys for name in names)


def is_heartbeat(fields: Object, key: Key) -> bool:
    """Whether the value and key are those of a heartbeat."""
    return fields.keys() == {"ts_ms"} and "serverName" in (key.fields or {})


def is_transaction(fields: Object) -> bool:
    """Whether the value is of the transaction topic."""
    return {"status", "id", "data_collections"} <= fields.keys() <= _TRANSACTION


def is_schema_change(fields: Object) -> bool:
    """Whether the value is of the topic of schema changes."""
    return {"ddl", "databaseName", "source"} <= fields.keys()


def source_of(block: Object | None) -> Source | None:
    """The source block of an event, as far as it is asked for."""
    if block is None:
        return None
    return Source(
        name=text_of(block.get("name")),
        ts_ms=whole_number(block.get("ts_ms")),
        ts_us=whole_number(block.get("ts_us")),
        snapshot=text_of(block.get("snapshot")),
        sequence=sequence_of(text_of(block.get("sequence"))),
        lsn=whole_number(block.get("lsn")),
        file=text_of(block.get("file")),
        pos=whole_number(block.get("pos")),
        row=whole_number(block.get("row")),
        db=text_of(block.get("db")),
        schema=text_of(block.get("schema")),
        table=text_of(block.get("table")),
    )


def _flat_source(fields: Object, record: Record) -> Source:
    """What `add.fields` put beside the columns (`source.lsn` as `__source_lsn`, `lsn` as `__lsn`), or `add.headers`."""

    names = {name for name, _value in record.headers}

    def of(name: str) -> str | None:
        for section in (f"__source_{name}", f"__{name}"):
            found = text_of(fields.get(section))
            if found is None and section in names:
                found = record.header(section)
            if found is not None:
                return found
        return None

    return Source(
        name=of("name"),
        ts_ms=whole(of("ts_ms")),
        ts_us=whole(of("ts_us")),
        snapshot=of("snapshot"),
        sequence=sequence_of(of("sequence")),
        lsn=whole(of("lsn")),
        file=of("file"),
        pos=whole(of("pos")),
        row=whole(of("row")),
        db=of("db"),
        schema=of("schema"),
        table=of("table"),
    )


def sequence_of(text: str | None) -> list[str | None] | None:
    """PostgreSQL's `sequence`, which travels as the JSON text of an array; None of anything else."""
    if text is None:
        return None
    try:
        found = parsed(text, name="")
    except MalformedError:
        return None
    return [text_of(one) for one in found] if isinstance(found, list) else None


def _time(source: Source | None) -> int | None:
    if source is None:
        return None
    micros = instant(source.ts_us, epoch_unit="micros")
    return instant(source.ts_ms, epoch_unit="millis") if micros is None else micros


def _is_negative(source: Source, feed: Feed) -> bool:
    """Whether the source block names a position before the beginning of every log."""
    if feed.kind == "postgresql":
        commit, lsn = (whole(_element(source.sequence, number)) for number in (0, 1))
        numbers = [source.lsn if lsn is None else lsn, commit]
    else:
        numbers = [source.pos, source.row]
    return any(number is not None and number < 0 for number in numbers)


def _element(sequence: Sequence[str | None] | None, number: int) -> str | None:
    return sequence[number] if sequence is not None and len(sequence) > number else None
