"""The tables that rules have made, in `ops.tables`: a version a change of a table; the last one counts.

A batch that brings a topic without a table makes it, from a sample of the batch; one whose records have other columns
changes it (silver.by_rule.changed). So a batch without such news asks nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.errors import TableError
from lakehouse.registered import RegisteredSchema
from silver.batch.merge import silver_table
from silver.by_rule.changed import Change, by_definition, changed, is_waiting
from silver.by_rule.definitions import Definition, definitions
from silver.by_rule.discovered import Rule, Sample, discovered_table
from silver.by_rule.events import Event, events_of
from silver.decode.drift import BY_DEFINITION, MAX_MARKS
from silver.decode.reference.message import Record
from silver.lookback.earlier_records import in_parts
from silver.order.runs import TopicPartition
from silver.rejects.suspended import COLUMNS, ENCODING, NOT_MADE, OTHER_KEY, Suspension
from silver.row_history.table import history_table
from silver.views import ensure_view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_COLUMNS = "name STRING, version INT, source STRING, topic STRING, discovered STRING, run STRING"
DISCOVERED_TABLES = TableSpec(name="ops.tables", columns=f"{_COLUMNS}, written_at TIMESTAMP")
# Of the beginning and of the end of what a batch has of a topic-partition.
SAMPLED = 20

Ranges = Mapping[TopicPartition, tuple[int, int]]
Registered = Mapping[int, RegisteredSchema] | None
# Topic, topic id, partition, offset.
Place = tuple[str, str, int, int]
# By mark (silver.decode.drift) where the first and the last record are that have it.
Marked = Mapping[str, Collection[Place]]


def discovered_tables(warehouse: Warehouse, contracts: Contracts) -> list[DiscoveredTable]:
    """The tables that rules have made in this warehouse; one query, and none without a rule."""
    has_rules = any(source.by_rule for source in contracts.topics.sources.values())
    if not has_rules or not warehouse.exists(DISCOVERED_TABLES.name):
        return []
    last = (
        warehouse.read(DISCOVERED_TABLES.name)
        .groupBy("name")
        .agg(F.max_by("discovered", "version").alias("discovered"))
    )
    return sorted(
        (DiscoveredTable.model_validate_json(row["discovered"]) for row in last.collect()), key=lambda one: one.name
    )


def with_discovered_tables(warehouse: Warehouse, contracts: Contracts) -> Contracts:
    """The contracts with the tables that rules have made in this warehouse."""
    discovered = discovered_tables(warehouse, contracts)
    return contracts.with_discovered(discovered) if discovered or contracts.discovered else contracts


@dataclass
class DiscoveredTables:
    """Those that a run knows, which grow. `run`: its id.

    `names`: which source and topic each name is for, also of a table that is not written down yet.
    """

    known: dict[str, DiscoveredTable] = field(default_factory=dict)
    run: str = ""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    changes: int = 0

    def of_source(self, source: str) -> list[DiscoveredTable]:
        """Those of one source."""
        # A copy: another source may make a table meanwhile.
        return [one for one in list(self.known.values()) if one.source == source]

    def store(self, warehouse: Warehouse, tables: Iterable[DiscoveredTable]) -> None:
        """Write these versions down, and know them."""
        written = list(tables)
        if not written:
            return
        warehouse.ensure(DISCOVERED_TABLES)
        rows = [
            {
                "name": one.name,
                "version": one.version,
                "source": one.source,
                "topic": one.topic,
                "discovered": one.model_dump_json(),
                "run": self.run,
            }
            for one in written
        ]
        table = inline_rows(warehouse.spark, rows, _COLUMNS)
        warehouse.append(DISCOVERED_TABLES.name, table.withColumn("written_at", F.current_timestamp()))
        self.known.update({one.name: one for one in written})
        self.changes += 1


@dataclass(frozen=True)
class TableInference:
    """What is needed to make and change the tables of one source."""

    warehouse: Warehouse
    source: str
    contracts: Contracts
    tables: DiscoveredTables
    registered: Registered
    _definitions: dict[str, dict[str, Definition]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def make(self, records: DataFrame, ranges: Ranges) -> None:
        """Make a table of every topic of a rule that has none; see again to those whose definition has changed.

        `records`: bronze rows, which have these `ranges`.
        """
        source = self.contracts.topics.sources[self.source]
        topics = {topic_partition[0] for topic_partition in ranges}
        by_topic = {one.topic: one for one in self.tables.of_source(self.source)}
        rules = {topic: name for topic in sorted(topics) if (name := source.rule_of(topic)) is not None}
        new = [topic for topic in rules if topic not in by_topic or not by_topic[topic].is_made]
        changed_rules = {
            name for name, rule in source.by_rule.items() if rule.schema_changes in topics or self._is_asked(name)
        }
        written = []
        if new:
            sampled = sample_of(
                records, {topic_partition: at for topic_partition, at in ranges.items() if topic_partition[0] in new}
            )
            written += [
                one
                for topic in new
                if (one := self._infer(rules[topic], topic, sampled.get(topic, []), by_topic.get(topic))) is not None
            ]
        for name in sorted(changed_rules):
            written += self._revised(name)
        self.tables.store(self.warehouse, written)

    def _is_asked(self, rule: str) -> bool:
        """Whether a table of the rule need not wait any more, by what was approved or by the rule; or waits for what
        nobody can approve, so that the rule's options alone may let it go on.
        """
        policy_of = self.contracts.topics.sources[self.source].by_rule[rule].policy_of
        stopped = [one for one in self._known() if one.rule == rule and one.why and one.is_made]
        return any(not one.may_be_accepted or not is_waiting(one, policy_of(one.table)) for one in stopped)

    def _known(self) -> list[DiscoveredTable]:
        return self.tables.of_source(self.source)

    def _infer(
        self, rule_name: str, topic: str, records: Sequence[Record], before: DiscoveredTable | None
    ) -> DiscoveredTable | None:
        """The table of a topic; None where that says nothing new."""
        source = self.contracts.topics.sources[self.source]
        rule = Rule(self.source, source.kind, rule_name, source.by_rule[rule_name])
        defined = self.definitions(rule_name)
        while True:
            own = self.source, topic
            others = {*self.tables.known, *(name for name, of in list(self.tables.names.items()) if of != own)}
            taken = {*self.contracts.feeds, *others} - ({before.name} if before else set())
            discovered = discovered_table(
                rule, topic, records, taken=taken, registered=self.registered, defined=defined
            )
            if before is not None:
                if (discovered.why, discovered.table) == (before.why, before.table):
                    return None
                return discovered.model_copy(update={"name": before.name, "version": before.version + 1})
            # Another source may take the name at the same time.
            if self.tables.names.setdefault(discovered.name, own) == own:
                return discovered

    def definitions(self, rule: str) -> dict[str, Definition] | None:
        """The tables as the rule's topic of schema changes defines them, in all of bronze; None where it names none.

        Read once, when a batch has news of tables: such records are few.
        """
        topic = self.contracts.topics.sources[self.source].by_rule[rule].schema_changes
        if topic is None:
            return None
        if rule not in self._definitions:
            stored = self.warehouse.read(f"bronze.{self.source}_events").where(F.col("topic") == topic)
            self._definitions[rule] = definitions(definition_records(stored), self.registered)
        return self._definitions[rule]

    def _revised(self, rule_name: str) -> list[DiscoveredTable]:
        """The tables whose definition has changed, as they are now, or with what an operator must approve."""
        rule = self.contracts.topics.sources[self.source].by_rule[rule_name]
        defined = self.definitions(rule_name) or {}
        written = []
        for discovered in self._known():
            if discovered.rule != rule_name or not discovered.is_made or discovered.known_by != BY_DEFINITION:
                continue
            change = by_definition(discovered, Sample(rule, (), discovered.known_by, defined.get(discovered.table)))
            if is_news(change.table, discovered):
                written.append(change.table)
        return written

    def change(
        self, discovered: DiscoveredTable, records: DataFrame, ranges: Ranges, *, marked: Marked, gone: Collection[str]
    ) -> Change:
        """What becomes of a table by records that are `marked`; `ranges`: of its topic, and `records` of these."""
        rule = self.contracts.topics.sources[self.source].by_rule[discovered.rule]
        topic_partitions = {topic_partition for of_mark in marked.values() for topic_partition in of_mark}
        sampled = sample_of(records, ranges, also=topic_partitions).get(discovered.topic, [])
        events = [one for one in events_of(sampled, self.registered) if isinstance(one, Event)]
        definition = (self.definitions(discovered.rule) or {}).get(discovered.table)
        return changed(
            discovered, Sample(rule, events, discovered.known_by, definition), marks=marked.keys(), gone=gone
        )


def is_news(table: DiscoveredTable, before: DiscoveredTable) -> bool:
    """Whether the one says anything else than the other."""
    return table.model_copy(update={"version": before.version}) != before


_OF_RECORD = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def record_of(row: Row) -> Record:
    """A bronze row as a record."""
    headers = [(one["key"], None if one["value"] is None else bytes(one["value"])) for one in row["headers"] or ()]
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Record(str(row["topic"]), key, value, headers)


def definition_records(stored: DataFrame) -> list[Record]:
    """Bronze rows of topics of schema changes in the order in which they were written: few.

    In a topic-partition that is the order of offsets: a worker's clock may go back.
    """
    rows = stored.select("_topic_id", *_OF_RECORD).collect()
    topic_partitions = [(row["topic"], row["_topic_id"], row["partition"]) for row in rows]
    begins: dict[tuple[str, str | None, int], datetime] = {}
    for topic_partition, row in zip(topic_partitions, rows, strict=True):
        begins[topic_partition] = min(row["timestamp"], begins.get(topic_partition, row["timestamp"]))
    ordered = sorted(zip(topic_partitions, rows, strict=True), key=lambda one: (begins[one[0]], one[1]["offset"]))
    return [record_of(row) for _place, row in ordered]


def sample_of(records: DataFrame, ranges: Ranges, *, also: Collection[Place] = ()) -> dict[str, list[Record]]:
    """Of every topic the first and last records of each partition, and `also` these, in the order of time.

    `ranges`: of the records.
    """
    parts = [(topic_partition, low, min(low + SAMPLED - 1, high)) for topic_partition, (low, high) in ranges.items()]
    parts += [(topic_partition, max(low, high - SAMPLED + 1), high) for topic_partition, (low, high) in ranges.items()]
    parts += [((topic, topic_id, partition), at, at) for topic, topic_id, partition, at in also]
    sampled = in_parts(records, parts).select(*_OF_RECORD).collect()
    rows = {(row["topic"], row["partition"], row["offset"]): row for row in sampled}
    found: dict[str, list[Record]] = {}
    for _at, row in sorted(rows.items(), key=lambda one: (one[1]["timestamp"], one[0])):
        found.setdefault(row["topic"], []).append(record_of(row))
    return found


def marked_records(judged: DataFrame) -> Marked:
    """Of each mark of a feed's decoded records the first and the last record that have it."""
    at = F.struct("topic", "topic_id", "partition", "offset")
    of_marks = judged.where("size(drift) > 0").select(
        F.explode("drift").alias("mark"), "timestamp", "offset", at.alias("at")
    )
    order = F.struct("timestamp", "offset")
    ends = of_marks.groupBy("mark").agg(F.min_by("at", order).alias("first"), F.max_by("at", order).alias("last"))
    # A damaged record may have any number of fields.
    ends = ends.orderBy("mark").limit(MAX_MARKS)
    return {row["mark"]: {tuple(row["first"]), tuple(row["last"])} for row in ends.collect()}


def ensure_discovered(feed: Feed, *, warehouse: Warehouse) -> bool | TableError:
    """Create the silver table of a feed that a rule has made, or add the columns that it lacks. And its view.

    Whether it was created, or why it cannot be used: it differs otherwise.
    """
    specs = [replace(silver_table(feed), comment=_comment(feed))]
    if feed.has_history:
        specs.append(history_table(feed))
    is_new = not warehouse.exists(specs[0].name)
    try:
        for spec in specs:
            if not is_new:
                warehouse.add_columns(spec)
            warehouse.ensure(spec)
        ensure_view_of(warehouse, feed)
    except TableError as error:
        return error
    return is_new


def _comment(feed: Feed) -> str:
    """What the table says of itself: where its columns come from, and which of them are guessed."""
    if feed.discovered is None:
        return ""
    of_rule = f"Made by the rule {feed.discovered.rule} of bronze/topics.yaml from topic {feed.discovered.topic}."
    guessed = [name for name, column in feed.discovered.columns.items() if not column.came_as]
    if not guessed:
        return f"{of_rule} Its types are those of the {feed.discovered.known_by}."
    return f"{of_rule} Types inferred from values, to be checked: {', '.join(guessed)}."


def suspension(discovered: DiscoveredTable, why: str) -> Suspension:
    """That a table waits for a person, or for what says what it is."""
    if not discovered.may_be_accepted:
        return Suspension(ENCODING, "All values of a column are written in one way.", why)
    if any(one.kind == "key" for one in discovered.waiting):
        return Suspension(OTHER_KEY, "The key of the records is that of the table.", why)
    if discovered.is_made:
        return Suspension(COLUMNS, "The table's columns are those of its events.", why)
    return Suspension(NOT_MADE, "The events say what the table is.", why)
