"""What is wrong with the upsert topics of `gold/tables.yaml`. Imports without pyspark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakehouse.contracts.checks.join_checks import mistakes_of_join
from lakehouse.contracts.checks.mistakes import Path, unknown
from lakehouse.contracts.models import Contracts, UpsertTopic
from lakehouse.contracts.published import (
    KeyedTable,
    is_by_rule,
    key_fields,
    keyed_table,
    not_there,
    value_fields,
    why_not_carried,
)

# A key has the same bytes every time: of these types, values that are equal may be written in two ways.
UNSTABLE = ("DOUBLE", "FLOAT", "ARRAY")
# A row may be larger than its record by so much: the schema of connect-json, times as text, the headers.
ROW_OVERHEAD = 65_536


def upsert_mistakes(contracts: Contracts) -> Iterator[tuple[Path, str]]:
    """Where in `gold/tables.yaml` a mistake is, and what it is. All else in the contracts has none."""
    yield from _topics(contracts)
    for name, topic in contracts.gold.upsert_topics.items():
        if not not_there(contracts, topic.table):
            yield from ((("upsert_topics", name, *path), what) for path, what in _of_topic(contracts, topic))


def why_not_yet(contracts: Contracts, name: str) -> str | None:
    """Why the upsert topic cannot be published yet: a rule has not made a table, or made it otherwise than it must be.

    None where it can be.
    """
    topic = contracts.gold.upsert_topics[name]
    absent = not_there(contracts, topic.table)
    if absent:
        return f"not there yet: {', '.join(absent)}"
    return next((what for _path, what in _of_discovered(contracts, topic)), None)


def mistakes_of_discovered(contracts: Contracts) -> Iterator[tuple[Path, str]]:
    """What is wrong in joins and upsert topics of tables that rules have made: known when these are there."""
    for name in contracts.gold.joins:
        if is_by_rule(contracts, f"gold.{name}") and not not_there(contracts, f"gold.{name}"):
            yield from ((("joins", name, *path), what) for path, what in mistakes_of_join(contracts, name))
    for name, topic in contracts.gold.upsert_topics.items():
        if not not_there(contracts, topic.table):
            yield from ((("upsert_topics", name, *path), what) for path, what in _of_discovered(contracts, topic))


def _of_discovered(contracts: Contracts, topic: UpsertTopic) -> Iterator[tuple[Path, str]]:
    if not is_by_rule(contracts, topic.table):  # checked with all others
        return
    schema, table = topic.table.split(".")
    of_join = list(mistakes_of_join(contracts, table)) if schema == "gold" and table in contracts.gold.joins else []
    yield from of_join or _of_topic(contracts, topic)


def _of_topic(contracts: Contracts, topic: UpsertTopic) -> Iterator[tuple[Path, str]]:
    table = keyed_table(contracts, topic.table)
    if table is None:
        yield ("table",), _no_table(contracts, topic.table)
        return
    unheard = [column for column in topic.columns if column not in table.every_column]
    for column in unheard:
        yield ("columns",), unknown("column", column, table.every_column, where=topic.table)
    if not unheard:
        yield from _fields(table, topic)
    yield from _size(contracts, topic)


def _topics(contracts: Contracts) -> Iterator[tuple[Path, str]]:
    """Every topic is written by one publication alone, and read by no source."""
    gold = contracts.gold
    own = gold.publication
    owners = {} if own is None else dict.fromkeys((own.topic, own.progress_topic), "publication")
    for name, topic in gold.upsert_topics.items():
        here = ("upsert_topics", name, "topic")
        written = (topic.topic, topic.progress_topic)
        shared = [one for one in written if one in owners]
        read = [one for one in written if any(source.names(one) for source in contracts.topics.sources.values())]
        if shared:
            yield here, f"{shared[0]} is a topic of {owners[shared[0]]} too: each would delete the other's rows"
        if read:
            yield here, f"{read[0]} is a topic that bronze reads: the lakehouse would feed itself"
        owners |= {one: f"upsert_topics.{name}" for one in written if one not in shared}


def _no_table(contracts: Contracts, name: str) -> str:
    schema, table = name.split(".")
    if schema == "silver" and table in contracts.feeds:
        return f"{name} is append_only, a list of changes without a key: only a table with a key can be published so"
    known = [f"silver.{feed}" for feed, declared in contracts.feeds.items() if not declared.append_only]
    known += [f"gold.{one}" for one in contracts.gold.joins]
    known += contracts.gold.unified_tables
    return unknown("table", name, known, where="the contracts")


def _fields(table: KeyedTable, topic: UpsertTopic) -> Iterator[tuple[Path, str]]:
    keys, values = key_fields(table, topic), value_fields(table, topic)
    for column in table.keys:
        if column in table.sensitive and column not in topic.columns:
            what = f"{column} is sensitive, and stands in the key of {topic.table}: name it in `columns` to publish it"
            yield ("columns",), what
    for column, times in Counter(topic.columns).items():
        if times > 1:
            yield ("columns",), f"{column} stands here twice"
    if not values:
        yield ("columns",), "no column is left for the value: name one that is not in the key, or value_fields: all"
    columns = {field.name: field.column for field in keys}
    for field in values:
        if columns.get(field.name, field.column) != field.column:
            what = (
                f"with these prefixes {columns[field.name]} of the key and {field.column} of the value would both be "
                f"named {field.name}"
            )
            yield ("value_prefix" if topic.value_prefix else "key_prefix",), what
    for field in keys:
        why = "it has no bytes of its own" if field.sql_type.startswith(UNSTABLE) else None
        why = why or why_not_carried(topic.format, field.sql_type)
        if why is not None:
            yield ("table",), f"{field.column} is {field.sql_type}, which cannot be in a record's key: {why}"
    for field in values:
        why = why_not_carried(topic.format, field.sql_type)
        if why is not None:
            what = f"{topic.format} cannot carry {field.sql_type} ({field.column}), {why}: leave it out of `columns`"
            yield ("columns" if topic.columns else "format",), f"{what}, or write format: json"


def _size(contracts: Contracts, topic: UpsertTopic) -> Iterator[tuple[Path, str]]:
    """What silver accepts fits the topic."""
    schema, name = topic.table.split(".")
    if schema != "silver":
        return
    least = contracts.feeds[name].max_record_bytes + ROW_OVERHEAD
    if topic.max_message_bytes < least:
        what = (
            f"{topic.max_message_bytes} is too low for {topic.table}, whose max_record_bytes in silver/tables.yaml is "
            f"{least - ROW_OVERHEAD}: write {least} or more, or lower that one"
        )
        yield ("max_message_bytes",), what
