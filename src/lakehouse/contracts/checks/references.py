"""What the contracts must be to one another: every name that one uses, another has. Imports without pyspark."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from lakehouse.contracts.checks.gold_checks import gold_mistakes
from lakehouse.contracts.checks.mistakes import GOLD, ROW_GATE, TABLE_GATE, TABLES, TOPICS, Mistake, Path, unknown
from lakehouse.contracts.checks.upsert_checks import upsert_mistakes
from lakehouse.contracts.models import (
    NO_UNIFIED,
    Contracts,
    Expectation,
    Gate,
    TableExpectation,
)
from lakehouse.contracts.parts.column_types import DIGITS_OF_DOUBLE, HOLDERS, STRING, DecimalType
from lakehouse.contracts.published import GOLD_ADDS
from lakehouse.contracts.tables import Column, Metadata, SilverTable
from lakehouse.contracts.topics import FeedTopics, Source, StartAtOffsets
from lakehouse.errors import ContractError, ContractProblem
from lakehouse.quality.arguments import (
    ROW_RULES,
    argument_mistakes,
    row_rule_mistakes,
    table_rule_mistakes,
    table_rules,
    why_not_of_changes,
)


def mistakes(contracts: Contracts) -> Iterator[Mistake]:
    """Every mistake between the contracts, in the order of the flow; those of upsert topics when there is no other."""
    found = list(_mistakes(contracts))
    yield from found
    if not found:  # what the tables are is known
        yield from (Mistake(GOLD, path, what) for path, what in upsert_mistakes(contracts))


def _mistakes(contracts: Contracts) -> Iterator[Mistake]:
    yield from _topics(contracts)
    for name, table in contracts.silver.tables.items():
        yield from _table(contracts, name, table)
    yield from _gate(contracts, contracts.silver_gate, ROW_GATE)
    yield from gold_mistakes(contracts, contracts.gold)
    yield from _gate(contracts, contracts.gold_gate, TABLE_GATE)
    yield from _publication_gate(contracts)


def _topics(contracts: Contracts) -> Iterator[Mistake]:
    """Every feed is the only one of its name and has a table; feeds that share a topic can be distinguished."""
    sources = contracts.topics.sources
    owner_of_feed: dict[str, str] = {}
    for source_name, source in sources.items():
        for name in source.feeds:
            here: Path = ("sources", source_name, "feeds", name)
            if name in owner_of_feed:
                what = f"source {owner_of_feed[name]} has a feed {name} too: both would be silver.{name}"
                yield Mistake(TOPICS, here, what)
            owner_of_feed[name] = source_name
            declared = contracts.silver.tables.get(name.removesuffix("_history"))
            if name.endswith("_history") and declared is not None and declared.has_history:
                yield Mistake(TOPICS, here, f"silver.{name} is where the history of {name.removesuffix('_history')} is")
            if name not in contracts.silver.tables:
                yield Mistake(TOPICS, here, unknown("table", name, contracts.silver.tables, where=TABLES))
        yield from _start(source_name, source)
    yield from _shared_topics(sources)
    yield from _topics_of_rules(sources)
    yield from _ignored_topics(sources)
    publication = contracts.gold.publication
    for topic in () if publication is None else (publication.topic, publication.progress_topic):
        if any(source.names(topic) for source in sources.values()):
            what = f"{topic} is a topic that bronze reads: gold would feed itself"
            yield Mistake(GOLD, ("publication", "topic"), what)


def _feeds(sources: Mapping[str, Source]) -> Mapping[tuple[str, str], FeedTopics]:
    return {(source, name): feed for source, declared in sources.items() for name, feed in declared.feeds.items()}


def _shared_topics(sources: Mapping[str, Source]) -> Iterator[Mistake]:
    """Feeds have a topic in common only where their records can be distinguished."""
    feeds = list(_feeds(sources).items())
    for number, ((source, name), feed) in enumerate(feeds):
        for (other_source, other_name), other in feeds[:number]:
            named = [("topics", topic) for topic in filter(other.has_topic, feed.topics)]
            found = [("topic_patterns", topic) for topic in filter(feed.has_topic, other.topics)]
            same = [("topic_patterns", pattern) for pattern in feed.topic_patterns if pattern in other.topic_patterns]
            for where, topic in [*named, *found, *same][:1]:
                why = "of another source" if source != other_source else _not_told_apart(feed, other)
                if why is not None:
                    here = ("sources", source, "feeds", name, where)
                    yield Mistake(TOPICS, here, f"topic {topic} belongs to {other_name} too, {why}")


def require_distinguished(name: str, source: Source, topics: Iterable[str]) -> None:
    """Raise ContractError where feeds of the source share one of these topics and their records are indistinguishable.

    Which topics the patterns of two feeds have in common is known from the broker alone.
    """
    problems = []
    for topic in topics:
        sharing = [(feed, declared) for feed, declared in source.feeds.items() if declared.has_topic(topic)]
        for number, (feed, declared) in enumerate(sharing):
            for other, of_other in sharing[:number]:
                why = _not_told_apart(declared, of_other)
                if why is not None:
                    key = f"sources.{name}.feeds.{feed}"
                    problems.append(ContractProblem(TOPICS, None, key, f"topic {topic} belongs to {other} too, {why}"))
    if problems:
        raise ContractError(problems)


def _not_told_apart(feed: FeedTopics, other: FeedTopics) -> str | None:
    """Why the records of two feeds cannot be distinguished by their tables; None where they can."""
    if "outbox" in (feed.envelope, other.envelope):
        return "and records of an outbox do not name their table"
    if not all(one.tables or one.table_patterns for one in (feed, other)):
        return "so both need `tables` or `table_patterns`: they distinguish the records"
    if feed.other_tables != other.other_tables:
        return "so both need the same `other_tables`"
    both = [*{*feed.tables} & {*other.tables}]
    for one, named in ((feed, other), (other, feed)):
        both += [t for t in named.tables if any(re.fullmatch(pattern, t) for pattern in one.table_patterns)]
    if both:
        return f"and table {min(both)} as well"
    return "and `table_patterns` of both may name one table" if feed.table_patterns and other.table_patterns else None


def _topics_of_rules(sources: Mapping[str, Source]) -> Iterator[Mistake]:
    """No rule includes a topic that another source names: both would read it."""
    for name, source in sources.items():
        for rule, declared in source.by_rule.items():
            for other, of_other in sources.items():
                named = (*of_other.topic_names, *of_other.ignored_topics) if other != name else ()
                for topic in filter(declared.has_topic, named):
                    what = f"topic {topic} belongs to source {other}: name it in `exclude`"
                    yield Mistake(TOPICS, ("sources", name, "by_rule", rule, "include"), what)


def _ignored_topics(sources: Mapping[str, Source]) -> Iterator[Mistake]:
    """No topic that is to be ignored is a feed's."""
    for source, declared in sources.items():
        for topic in declared.ignored_topics:
            for name, feed in declared.feeds.items():
                if feed.has_topic(topic):
                    yield Mistake(
                        TOPICS,
                        ("sources", source, "ignored_topics"),
                        f"topic {topic} is to be ignored, and belongs to feed {name}",
                    )


def _start(name: str, source: Source) -> Iterator[Mistake]:
    if isinstance(source.start, StartAtOffsets):
        named = [topic for feed in source.feeds.values() for topic in feed.topics]
        for topic in source.start.offsets:
            if topic not in named and not any(feed.has_topic(topic) for feed in source.feeds.values()):
                here = ("sources", name, "start", "offsets", topic)
                yield Mistake(TOPICS, here, unknown("topic", topic, named, where=f"source {name}"))


def _on_schema_change(here: Path, table: SilverTable) -> Iterator[Mistake]:
    """What a table with a contract can say of changes: its types are those of the contract."""
    policy = table.on_schema_change
    for kind in ("widen", "narrow", "retype"):
        if kind in policy.model_fields_set:
            what = "is of tables by rule: a contract says the types, and parse_errors what becomes of other values"
            yield Mistake(TABLES, (*here, kind), what)
    if (policy.drop == "evolve") != (policy.rename == "evolve"):
        what = "drop and rename evolve together, or neither: no record says by itself which of them it shows"
        yield Mistake(TABLES, (*here, "rename"), what)


def _table(contracts: Contracts, name: str, table: SilverTable) -> Iterator[Mistake]:
    here = ("tables", name)
    feeds = {feed: declared for (_source, feed), declared in _feeds(contracts.topics.sources).items()}
    if name not in feeds:
        yield Mistake(TABLES, here, unknown("feed", name, feeds, where=TOPICS))
        return
    for key in table.keys:
        if key not in table.columns:
            yield Mistake(TABLES, (*here, "keys"), unknown("column", key, table.columns, where="columns"))
        elif table.columns[key].metadata is not None:
            what = "what says of a record where it comes from is no key: from_topic may be one"
            yield Mistake(TABLES, (*here, "columns", key, "metadata"), what)
        elif table.columns[key].optional:
            yield Mistake(TABLES, (*here, "columns", key, "optional"), "a column of the key cannot be optional")
    yield from _on_schema_change((*here, "on_schema_change"), table)
    for column, declared in table.columns.items():
        path = (*here, "columns", column)
        if declared.from_topic is not None:
            yield from _from_topic(path, declared)
        if declared.metadata is not None:
            yield from _metadata(path, declared, declared.metadata)
        yield from _source_type(path, declared)
        if feeds[name].envelope == "table":
            yield from _cut_digits(path, declared, feeds[name])
    if feeds[name].envelope == "table":
        yield from _table_of_changes(here, table)
    else:
        yield from _table_of_outbox(here, table)


def _from_topic(here: tuple[str, ...], declared: Column) -> Iterator[Mistake]:
    if re.compile(declared.from_topic or "").groups != 1:
        yield Mistake(TABLES, (*here, "from_topic"), "the pattern needs one group: the part that is the value")
    if declared.type != STRING:
        yield Mistake(TABLES, (*here, "type"), f"what stands in a topic's name is STRING, not {declared.type.ddl}")
    if declared.fields:
        yield Mistake(TABLES, (*here, "fields"), "the value stands in the topic's name, not in a field: leave it out")


# The type of each, as Spark has it: what Flink has as a map is its JSON.
_TYPES_OF_METADATA: Mapping[Metadata, str] = {
    **dict.fromkeys(("ingestion-timestamp", "source.timestamp", "timestamp"), "TIMESTAMP"),
    "partition": "INT",
    "offset": "BIGINT",
}


def _metadata(here: tuple[str, ...], declared: Column, name: Metadata) -> Iterator[Mistake]:
    wanted = _TYPES_OF_METADATA.get(name, "STRING")
    if declared.type.ddl != wanted:
        yield Mistake(TABLES, (*here, "type"), f"{name} is {wanted}, not {declared.type.ddl}")
    for other in ("fields", "from_topic", "source_type", "epoch_unit"):
        if getattr(declared, other):
            yield Mistake(TABLES, (*here, other), "the value is not of the row: leave it out")


def _source_type(here: tuple[str, ...], column: Column) -> Iterator[Mistake]:
    """The type holds every value that the database's type has."""
    source, held = column.source_type, column.element_type
    if source is None:
        return
    kind = "DECIMAL" if isinstance(held, DecimalType) else held.ddl
    if kind not in HOLDERS[source.name]:
        what = f"{source.text} is read into {' or '.join(HOLDERS[source.name])}, not into {held.ddl}"
        yield Mistake(TABLES, (*here, "source_type"), what)
    elif kind == "BOOLEAN" and source.sizes != (1,):
        yield Mistake(TABLES, (*here, "source_type"), f"only bit(1) fits BOOLEAN: read {source.text} into STRING")
    elif source.name == "unsigned_bigint" and isinstance(held, DecimalType) and held.precision - held.scale < 20:
        what = f"{held.ddl} is too small for unsigned_bigint: write DECIMAL(20,0)"
        yield Mistake(TABLES, (*here, "type"), what)


def _cut_digits(here: tuple[str, ...], column: Column, feed: FeedTopics) -> Iterator[Mistake]:
    """Where the connector itself cuts digits, the contract says that it may."""
    why = _why_cut(column, feed)
    if why is not None and not column.allow_cut_digits:
        what = f"{why}: write allow_cut_digits: true if that is accepted"
        yield Mistake(TABLES, (*here, "allow_cut_digits"), what)


def _why_cut(column: Column, feed: FeedTopics) -> str | None:
    held, source = column.element_type, column.source_name
    if feed.decimal_handling_mode == "double" and source != "unsigned_bigint":
        digits = _digits(column) if isinstance(held, DecimalType) or source == "numeric" else 0
        if digits is None or digits > DIGITS_OF_DOUBLE:
            most = "any number of" if digits is None else digits
            return f"decimal_handling_mode double keeps {DIGITS_OF_DOUBLE} digits, and this column has {most} digits"
    is_time = source in ("time", "timestamp") or (held.ddl == "TIMESTAMP" and source != "timestamptz")
    if is_time and feed.time_precision_mode == "connect" and column.epoch_unit != "millis":
        return "time_precision_mode connect cuts times to milliseconds (a column that has no more: epoch_unit: millis)"
    if source == "varbit":
        return "the connector cuts the leading zeros of varbit"
    return None


def _digits(column: Column) -> int | None:
    """How many digits the column has at most; None: any number."""
    if column.source_type and column.source_type.sizes:
        return column.source_type.sizes[0]
    return column.element_type.precision if isinstance(column.element_type, DecimalType) else None


def _table_of_changes(here: tuple[str, ...], table: SilverTable) -> Iterator[Mistake]:
    if table.payload != "full":
        yield Mistake(TABLES, (*here, "payload"), "only an outbox has partial payloads: write full, or leave it out")
    for option in ("apply_as_deletes", "apply_as_upserts"):
        if getattr(table, option):
            what = "in a table feed the operation d deletes, and no other: leave it out"
            yield Mistake(TABLES, (*here, option), what)


def _table_of_outbox(here: tuple[str, ...], table: SilverTable) -> Iterator[Mistake]:
    if table.sequence_by != "kafka_offset":
        what = "outbox events carry no position: write kafka_offset"
        yield Mistake(TABLES, (*here, "sequence_by"), what)
    for event_type in table.apply_as_upserts:
        if event_type in table.apply_as_deletes:
            what = f"{event_type} deletes the row (apply_as_deletes): take it out of one of the two"
            yield Mistake(TABLES, (*here, "apply_as_upserts"), what)
    if table.append_only:
        yield Mistake(TABLES, (*here, "append_only"), "an outbox states rows by their key: name it in `keys`")
    elif len([key for key in table.keys if key in table.columns and table.columns[key].from_topic is None]) != 1:
        what = "an outbox feed has exactly one key: the aggregateid stands for it where the payload lacks it"
        yield Mistake(TABLES, (*here, "keys"), what)


def _gate(contracts: Contracts, gate: Gate, file: str) -> Iterator[Mistake]:
    tables = contracts.silver.tables
    for feed in gate.feeds:
        if feed not in tables:
            yield Mistake(file, ("feeds",), unknown("feed", feed, tables, where=TABLES))
    yield from _expectations(file, "expectations", gate.expectations)
    if gate.expectations and not gate.feeds:
        yield Mistake(file, ("feeds",), "these rules are about no feed: name one, or leave the rules out")
    for number, rule in enumerate(gate.expectations):
        here = ("expectations", number)
        for feed in rule.feeds:
            if feed not in gate.feeds:
                yield Mistake(file, (*here, "feeds"), unknown("feed", feed, gate.feeds, where="this gate"))
        for feed in rule.feeds or gate.feeds:
            if feed in tables:
                yield from _columns(file, here, rule, tables[feed].columns, where=f"table {feed}")
                yield from _scope(file, here, rule, tables[feed].keys)


def _publication_gate(contracts: Contracts) -> Iterator[Mistake]:
    rules = contracts.gold_gate.publication
    if not contracts.gold.has_unified:
        for key in ("expectations", "publication"):
            if getattr(contracts.gold_gate, key):
                what = f"{NO_UNIFIED} So these rules are never asked: leave them out"
                yield Mistake(TABLE_GATE, (key,), what)
        return
    yield from _expectations(TABLE_GATE, "publication", rules)
    for number, rule in enumerate(rules):
        here = ("publication", number)
        if rule.feeds:
            what = "these rules are about every source, in gold.unified_orders: leave it out"
            yield Mistake(TABLE_GATE, (*here, "feeds"), what)
        columns = (*contracts.gold.columns, *GOLD_ADDS)
        yield from _columns(TABLE_GATE, here, rule, columns, where="gold.unified_orders")
        yield from _scope(TABLE_GATE, here, rule, ("composite_key",))


def _expectations(file: str, key: str, rules: Sequence[Expectation]) -> Iterator[Mistake]:
    """What is wrong with the rules of a gate by themselves, whatever their tables are."""
    of_rows = file == ROW_GATE
    known, possible = (ROW_RULES, ("warn", "quarantine", "fail")) if of_rows else (table_rules(), ("warn", "fail"))
    names = [rule.name for rule in rules]
    for number, rule in enumerate(rules):
        here = (key, number)
        if rule.name in names[:number]:
            yield Mistake(file, (*here, "name"), f"two expectations are named {rule.name}")
        if rule.on_failure not in possible:
            what = f"{rule.on_failure!r} is not possible at this gate; it is {' or '.join(possible)}"
            yield Mistake(file, (*here, "on_failure"), what)
        more = row_rule_mistakes if of_rows else table_rule_mistakes
        found = [*argument_mistakes(rule, known), *more(rule)]
        yield from (Mistake(file, (*here, *path), what) for path, what in found)


def _columns(file: str, here: Path, rule: Expectation, columns: Collection[str], *, where: str) -> Iterator[Mistake]:
    """The columns that the rule names, and its table does not have."""
    for argument in ("column", "column_A", "column_B", "column_list"):
        value = rule.kwargs.get(argument, ())
        for column in (value,) if isinstance(value, str) else value:
            if column not in columns:
                yield Mistake(file, (*here, "kwargs", argument), unknown("column", str(column), columns, where=where))


def _scope(file: str, here: Path, rule: Expectation, keys: Sequence[str]) -> Iterator[Mistake]:
    """Why the rule cannot be asked about the rows of changed keys alone."""
    if isinstance(rule, TableExpectation) and rule.scope == "changes":
        what = why_not_of_changes(rule, keys)
        if what:
            yield Mistake(file, (*here, "scope"), f"{what}: leave it out, or say `scope: table`")
