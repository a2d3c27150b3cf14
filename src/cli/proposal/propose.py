"""Contracts for a topic, proposed from a sample of its records: commented YAML to be checked, and loadable as it is.

The comments say why something was guessed in counts and shapes; no value of a row is in them. Imports without pyspark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import TypeAdapter, ValidationError

from cli.proposal.text import comment, line, scalar, schema_line
from lakehouse.contracts.files import MODELS, OPTIONAL
from lakehouse.contracts.mistakes import GOLD, ROW_GATE, TABLE_GATE, TABLES, TOPICS
from lakehouse.contracts.names import TableName, as_name, column_name, unique
from lakehouse.contracts.published import GOLD_ADDS
from lakehouse.contracts.topics import SourceKind
from lakehouse.errors import SettingsError
from lakehouse.registered import RegisteredSchema
from silver.by_rule.events import Event, NoEvent, events_of
from silver.by_rule.events import seen as records_seen
from silver.by_rule.types import DecimalMode, Guess, from_schemas, from_values, is_integer
from silver.decode.message import Json, Number, Record
from silver.decode.table import table_name

KINDS: tuple[str, ...] = get_args(SourceKind)
# What a topic's own words say of the database, where no record does.
_WORDS = {"postgres": "postgresql", "postgresql": "postgresql", "pg": "postgresql", "mysql": "mysql"}
_BY_HAND = "or begin without a sample: lakehouse init DIR."
_REMEDIES = {
    # Such a row does not say which of its fields the transform has added, nor what was there before.
    NoEvent.FLAT_ROW: "Silver reads flattened rows (ExtractNewRecordState), but a contract is proposed from whole"
    " envelopes only: begin without a sample, lakehouse init DIR, and declare the table by hand; with"
    " sequence_by: kafka_offset unless the transform adds op and the source position (add.fields).",
    NoEvent.BINARY: "Of Avro, name schema_registry in the file of --kafka-config (docs/kafka.md). Anything else is not "
    "read: let the connector write JSON, value.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.UNREADABLE_KEY: "Let the connector write keys as JSON: "
    "key.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.NOT_JSON: "Let the connector write JSON: value.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.OTHER_SHAPE: "Name a topic that Debezium publishes change events or outbox events to.",
    NoEvent.HEARTBEAT: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.TRANSACTION: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.SCHEMA_CHANGE: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.MESSAGE: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.TOMBSTONE: f"Try again when the topic has an insert or an update, {_BY_HAND}",
    NoEvent.TRUNCATE: f"Try again when the topic has an insert or an update, {_BY_HAND}",
}


@dataclass(frozen=True)
class _Said:
    """Something that a contract says, and why."""

    value: str
    why: str


@dataclass(frozen=True)
class _Key:
    """The key: the fields of the events that make it up, and why these."""

    fields: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class _Column:
    """A column of the silver table, the field that it comes from, and how many events lack that."""

    name: str
    field: str
    guess: Guess
    lacking: int


@dataclass(frozen=True)
class _Proposal:
    """All that the five files say."""

    topic: str
    seen: str
    """What the records of the sample are."""
    envelope: Literal["table", "outbox"]
    events: int
    source: _Said
    kind: _Said
    table: str
    key: str
    key_why: str
    tables: _Said | None
    """Which table the events are of."""
    columns: tuple[_Column, ...]
    ignored_topics: tuple[str, ...]

    @property
    def feed(self) -> str:
        return f"{self.source.value}_{self.table}"


def propose(
    topic: str,
    records: Sequence[Record],
    *,
    ignored_topics: Iterable[str] = (),
    registered: Mapping[int, RegisteredSchema] | None = None,
) -> Mapping[str, str]:
    """The files of a folder of contracts (keys: `contracts.files.MODELS`) for one topic, as commented YAML.

    One source, feed, silver table, gate of its rows, gold table and gate of the table; `load_contracts` takes them as
    they are. They name their JSON schemas in `../schemas`. `registered`: the registry's schemas that records name.
    Raises SettingsError when the records state no row, rows without a key, a key of several columns, which gold cannot
    take, or changes of a database that silver does not know.
    """
    proposal = _proposal(topic, records, ignored_topics, registered)
    texts = {
        TOPICS: _topics(proposal),
        TABLES: _tables(proposal),
        ROW_GATE: _row_gate(proposal),
        GOLD: _gold(proposal),
        TABLE_GATE: _table_gate(proposal),
    }
    return {file: "\n".join([schema_line(file), *texts[file], ""]) for file in MODELS if file not in OPTIONAL}


# What the records say


def _proposal(
    topic: str,
    records: Sequence[Record],
    ignored_topics: Iterable[str],
    registered: Mapping[int, RegisteredSchema] | None,
) -> _Proposal:
    readings = events_of(records, registered)
    seen = records_seen(readings)
    events = _events(topic, readings, seen)
    envelope = events[0].envelope
    table = _table(topic, events)
    names = _names(_fields(events))
    key = _table_key(topic, events) if envelope == "table" else _outbox_key(table, events, names)
    if len(key.fields) > 1:
        raise SettingsError(
            f"The key of {topic} has several columns ({', '.join(key.fields)}), and gold goes by one.",
            remedy="Begin with a topic whose table has a key of one column, then add this one to bronze/topics.yaml and"
            " silver/tables.yaml by hand: silver takes such keys.",
        )
    fields = tuple(dict.fromkeys([*(one for one in key.fields if one not in names), *names]))
    names = _names(fields)
    rows = [event.row for event in events if event.row is not None]
    kind = _kind(topic, events)
    return _Proposal(
        topic=topic,
        seen=seen,
        envelope=envelope,
        events=len(rows),
        source=_source(topic, events),
        kind=kind,
        table=table,
        key=names[key.fields[0]],
        key_why=key.why,
        tables=_table_of_source(events, kind.value),
        columns=tuple(
            _Column(
                name=names[one],
                field=one,
                guess=_guess(names[one], one, events, key=key),
                lacking=0 if one in key.fields else sum(one not in row for row in rows),
            )
            for one in fields
        ),
        ignored_topics=tuple(ignored_topics),
    )


def _events(topic: str, readings: Sequence[Event | NoEvent], seen: str) -> Sequence[Event]:
    """The events of the envelope that most of them have. Raises SettingsError when none has a row."""
    if not readings:
        raise SettingsError(
            f"Topic {topic} has no records.",
            remedy=f"Try again when the connector has published its first ones, {_BY_HAND}",
        )
    events = [reading for reading in readings if isinstance(reading, Event)]
    envelopes = Counter(event.envelope for event in events if event.row is not None or event.schemas)
    if not envelopes:
        others = [reading for reading in readings if isinstance(reading, NoEvent)]
        most_frequent = Counter(others).most_common(1)[0][0] if not events else NoEvent.TOMBSTONE
        raise SettingsError(f"Nothing in {topic} states a row. {seen}.", remedy=_REMEDIES[most_frequent])
    envelope = envelopes.most_common(1)[0][0]
    return [event for event in events if event.envelope == envelope]


def _fields(events: Iterable[Event]) -> list[str]:
    """The fields of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(field for event in events for part in (event.schemas, event.row or {}) for field in part))


def _table_key(topic: str, events: Sequence[Event]) -> _Key:
    keys = [event.key.fields for event in events if event.key.fields]
    fields = tuple(dict.fromkeys(field for key in keys for field in key))
    if not fields:
        raise SettingsError(
            f"The events of {topic} have no key: silver could not know which row a change is about.",
            remedy="Give the table a primary key, or the connector message.key.columns, and take a new snapshot.",
        )
    return _Key(fields, f"the key of {len(keys)} of {len(events)} events")


def _outbox_key(table: str, events: Sequence[Event], names: Mapping[str, str]) -> _Key:
    """The field that is the aggregateid; else one of a key's name, best one that differs in every event."""
    rows = [(event.row, event.key.value) for event in events if event.row is not None]
    own = f"{_singular(table)}_id"
    by_name = [field for like in (own, "order_id", "id") for field, name in names.items() if name == like]
    for field in [*by_name, *(field for field in names if field not in by_name)]:
        pairs = [(row[field], key) for row, key in rows if field in row and key is not None]
        if pairs and all(_is_scalar(value) and str(value) == str(key) for value, key in pairs):
            return _Key((field,), f"in {len(pairs)} of {len(rows)} events equals the aggregateid (the record's key)")
    for field in by_name:
        values = [row[field] for row, _key in rows if field in row]
        if all(_is_scalar(value) for value in values) and len({str(value) for value in values}) == len(values):
            why = f"another value in each of {len(values)} events, but not the aggregateid: check"
            return _Key((field,), why)
    if by_name:
        return _Key((by_name[0],), "by its name alone, and it is not the aggregateid (the record's key): check")
    return _Key((own,), "no field of the payload looks like a key: the aggregateid (the record's key) is taken")


def _is_scalar(value: Json) -> bool:
    return type(value) is str or is_integer(value)


def _guess(name: str, field: str, events: Sequence[Event], *, key: _Key) -> Guess:
    schemas = [event.schemas[field] for event in events if field in event.schemas]
    if schemas:
        return from_schemas(schemas)
    values = [event.row[field] for event in events if event.row is not None and field in event.row]
    of_table = events[0].envelope == "table"
    if field in key.fields and (of_table or not values):
        values = _values_of_key(field, events)
    return from_values(name, values, of_table=of_table)


def _values_of_key(field: str, events: Sequence[Event]) -> list[Json]:
    """What the records' keys say of a column of the key: the aggregateid of an outbox is text, maybe of a number."""
    if events[0].envelope == "table":
        return [event.key.fields[field] for event in events if event.key.fields and field in event.key.fields]
    ids = [event.key.value for event in events if event.key.value is not None]
    numbers = [Number(one) for one in ids if re.fullmatch(r"-?[0-9]{1,18}", one)]
    return numbers if len(numbers) == len(ids) else ids


def _source(topic: str, events: Sequence[Event]) -> _Said:
    logical = Counter(event.logical_name for event in events if event.logical_name)
    if logical:
        name, count = logical.most_common(1)[0]
        return _Said(as_name(name) or "source", f"the connector's topic.prefix, in {count} of {len(events)} events")
    return _Said(as_name(topic.partition(".")[0]) or "source", "the topic's first part: no record names its connector")


def _kind(topic: str, events: Sequence[Event]) -> _Said:
    connectors = Counter(event.connector for event in events if event.connector)
    if connectors:
        connector, count = connectors.most_common(1)[0]
        if connector not in KINDS:
            raise SettingsError(
                f"The events of {topic} are from the connector {connector!r}: silver cannot order its positions.",
                remedy=f"Name a topic of {', '.join(KINDS)}.",
            )
        return _Said(connector, f"the connector of {count} of {len(events)} events")
    words = re.split(r"[^a-z0-9]+", topic.lower())
    guessed = next((_WORDS.get(word, word) for word in words if word in _WORDS or word in KINDS), KINDS[0])
    return _Said(guessed, "no record names the database: check")


def _table(topic: str, events: Sequence[Event]) -> str:
    tables = {event.source.table for event in events if event.source and event.source.table}
    last = topic.rsplit(".", 1)[-1]
    return as_name(tables.pop() if len(tables) == 1 else last) or "rows"


def _table_of_source(events: Sequence[Event], kind: str) -> _Said | None:
    """The table that all source blocks name, if they agree: records of another one are then no rows of the feed."""
    blocks = [event.source for event in events if event.source is not None]
    names = [table_name(source.table, source, kind) for source in blocks if source.table]
    if len(set(names)) != 1 or not _is_table_name(names[0]):
        return None
    return _Said(
        names[0], f"in {len(names)} of {len(events)} events; a record of another table goes to quarantine: check"
    )


def _is_table_name(name: str) -> bool:
    try:
        TypeAdapter(TableName).validate_python(name)
    except ValidationError:
        return False
    return True


def _singular(plural: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ss", "ss")):
        if plural.endswith(ending):
            return plural.removesuffix(ending) + instead
    return plural.removesuffix("s") or plural


# Names


def _names(fields: Iterable[str]) -> dict[str, str]:
    """A name of its own for every field, the field's own where a contract and gold can have it."""
    names: dict[str, str] = {}
    for number, field in enumerate(fields, start=1):
        name = column_name(field, number=number)
        names[field] = unique(f"{name}_of_source" if name in GOLD_ADDS else name, names.values())
    return names


# The five files


def _topics(proposal: _Proposal) -> list[str]:
    mode = _decimal_mode(proposal)
    return [
        *comment(f"Proposed from a sample of {proposal.topic}:"),
        *comment(f"{proposal.seen}."),
        *comment("Check what the comments say of every guess, then: lakehouse validate --contracts DIR."),
        "sources:",
        *line(2, f"{scalar(proposal.source.value)}:", proposal.source.why),
        *line(4, f"kind: {proposal.kind.value}", proposal.kind.why),
        *line(4, "start: earliest", "of the very first run; every later one continues"),
        "    feeds:",
        *line(6, f"{proposal.feed}:", f"its silver table is silver.{proposal.feed}"),
        f"        topics: [{scalar(proposal.topic)}]",
        *line(8, f"envelope: {proposal.envelope}", _why_envelope(proposal)),
        *(line(8, f"tables: [{scalar(proposal.tables.value)}]", proposal.tables.why) if proposal.tables else []),
        *(line(8, f"decimal_handling_mode: {mode.value}", mode.why) if mode else []),
        *_ignored(proposal),
    ]


def _why_envelope(proposal: _Proposal) -> str:
    if proposal.envelope == "outbox":
        return f"what the EventRouter writes in {proposal.events} records"
    if {"aggregateid", "payload"} <= {column.field for column in proposal.columns}:
        return "check: it looks like an outbox table that the connector sends without the EventRouter"
    return f"op, source and a row in {proposal.events} records"


def _decimal_mode(proposal: _Proposal) -> _Said | None:
    """How decimals travel, when the sample shows it; None for an outbox and for what the default says."""
    modes: Counter[DecimalMode] = Counter(one.guess.decimals for one in proposal.columns if one.guess.decimals)
    if proposal.envelope == "outbox" or not modes or "precise" in modes:
        return None
    mode: DecimalMode = "string" if "string" in modes else "double"
    how = "text of numbers" if mode == "string" else "numbers with a fraction"
    count = modes[mode]
    return _Said(mode, f"{count} column{' is' if count == 1 else 's are'} {how}, none could be base64 of a decimal")


def _ignored(proposal: _Proposal) -> list[str]:
    why = "heartbeats, transactions, schema changes of this connector; read when they exist"
    if proposal.ignored_topics:
        return [*line(4, "ignored_topics:", why), *(f"      - {scalar(topic)}" for topic in proposal.ignored_topics)]
    return line(4, "ignored_topics: []", why)


def _tables(proposal: _Proposal) -> list[str]:
    return [
        *comment("The silver table of the feed, its columns in the order in which the events first have them."),
        "tables:",
        f"  {proposal.feed}:",
        *line(4, f"keys: [{scalar(proposal.key)}]", proposal.key_why),
        *(_order_of_table() if proposal.envelope == "table" else _order_of_outbox(proposal)),
        "    columns:",
        *[one for column in proposal.columns for one in _column(proposal, column)],
    ]


def _order_of_table() -> list[str]:
    return line(4, "sequence_by: source_position", "change events carry their place in the database's log")


def _order_of_outbox(proposal: _Proposal) -> list[str]:
    partial = max((column.lacking for column in proposal.columns), default=0)
    whole = (
        "every event has every column" if not partial else f"up to {partial} of {proposal.events} events lack a column"
    )
    return [
        *line(4, "sequence_by: kafka_offset", "outbox events carry no place in the database's log"),
        *line(4, "payload: full", f"{whole}; partial, if what an event leaves out stays as it is"),
        *line(4, "apply_as_deletes: []", "add the event types that delete the row; then every event needs a type"),
    ]


def _column(proposal: _Proposal, column: _Column) -> list[str]:
    guess = column.guess
    parts = [
        *(
            [_Said(f"fields: [{scalar(column.field)}]", "its name in the events")]
            if column.field != column.name
            else []
        ),
        *([_Said(f"source_type: {guess.source_type}", "")] if guess.source_type else []),
        # micros is the default
        *([_Said(f"epoch_unit: {guess.epoch_unit}", "")] if guess.epoch_unit not in (None, "micros") else []),
        *([_Said("optional: true", f"{column.lacking} of {proposal.events} events lack it")] if column.lacking else []),
    ]
    name = scalar(column.name)
    if not parts:
        return line(6, f"{name}: {guess.type}", guess.why)
    below = [_Said(f"type: {guess.type}", ""), *parts]
    return [*line(6, f"{name}:", guess.why), *[one for part in below for one in line(8, part.value, part.why)]]


def _row_gate(proposal: _Proposal) -> list[str]:
    return [
        *comment(
            "Gate 1: every row on its way into silver; one that fails goes to quality.quarantine. Add your rules."
        ),
        f"feeds: [{proposal.feed}]",
        "expectations:",
        "  - name: key_present",
        "    type: expect_column_values_to_not_be_null",
        f"    kwargs: {{ column: {scalar(proposal.key)} }}",
        *line(4, "on_failure: quarantine", "or warn: the row goes on, and is counted"),
        f"    description: {scalar(f'Every row has its {proposal.key}.')}",
    ]


def _table_gate(proposal: _Proposal) -> list[str]:
    return [
        *comment("Gate 2: the silver table as a whole, before gold takes it. Add your rules."),
        f"feeds: [{proposal.feed}]",
        "expectations:",
        "  - name: key_unique",
        "    type: expect_column_values_to_be_unique",
        f"    kwargs: {{ column: {scalar(proposal.key)} }}",
        *line(4, "on_failure: fail", "gold does not take the source until it is met; or warn"),
        f"    description: {scalar(f'No two live rows have the same {proposal.key}.')}",
        *comment("The rows of gold after gold has taken them, before they are published."),
        "publication:",
        "  - name: orders_conserved",
        "    type: unexpected_rows_expectation",
        "    kwargs:",
        "      unexpected_rows_query: >-",
        "        SELECT composite_key FROM orders_of_silver LEFT ANTI JOIN {batch} USING (composite_key)",
        "        UNION ALL",
        "        SELECT composite_key FROM {batch} LEFT ANTI JOIN orders_of_silver USING (composite_key)",
        "    on_failure: fail",
        "    description: Gold has every live row of silver, and no other.",
    ]


def _gold(proposal: _Proposal) -> list[str]:
    prefix = proposal.source.value.upper().replace("_", "")
    return [
        *comment("The gold table, and the topic that it is published to."),
        *line(0, f"key: {scalar(proposal.key)}", "the key of the silver table"),
        *line(0, "columns:", "all of the silver table, in its types: change both together; take out what nobody reads"),
        *[f"  {scalar(column.name)}: {column.guess.type}" for column in proposal.columns],
        "sources:",
        f"  {scalar(proposal.source.value)}:",
        *line(4, f"name: {proposal.kind.value}", "source_database"),
        *line(
            4, f"prefix: {scalar(prefix)}", f"composite_key: {prefix}-<{proposal.key}>; it cannot change later: check"
        ),
        f"    feeds: [{proposal.feed}]",
        *_fulfillment(proposal),
        "publication:",
        *line(2, f"topic: {scalar(f'bigquery.unified.{proposal.table}')}", "created, compacted, when it is absent"),
        "  partitions: 3",
        *line(2, "replication_factor: 1", "as many copies as your other topics have: check"),
    ]


def _fulfillment(proposal: _Proposal) -> list[str]:
    """fulfillment_status follows from a text column `status`; without one there is none to follow."""
    if not any((column.name, column.guess.type) == ("status", "STRING") for column in proposal.columns):
        why = "fulfillment (column, values, otherwise) is left out, no text column is named status"
        return comment(f"{why}: fulfillment_status is NULL.")
    return [
        *line(0, "fulfillment:", "fulfillment_status"),
        *line(2, "column: status", "the column of that name"),
        *line(2, "values:", "value of the column: fulfillment_status; check"),
        "    completed: FULFILLED",
        "    cancelled: CANCELLED",
        "  otherwise: PENDING",
    ]
