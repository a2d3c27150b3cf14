"""What is wrong with `gold/tables.yaml` by what silver has: unified orders, marts, joins. Imports without pyspark."""

from __future__ import annotations

from collections.abc import Iterator

from lakehouse.contracts.checks.join_checks import join_mistakes
from lakehouse.contracts.checks.mistakes import GOLD, TABLES, TOPICS, Mistake, unknown
from lakehouse.contracts.checks.upsert_checks import ROW_OVERHEAD
from lakehouse.contracts.models import Contracts, GoldTables, Publication
from lakehouse.contracts.parts.column_types import STRING, WHOLE_NUMBERS, ColumnType, DecimalType
from lakehouse.contracts.published import GOLD_ADDS, UNIFIED_ORDERS, why_not_carried


def gold_mistakes(contracts: Contracts, gold: GoldTables) -> Iterator[Mistake]:
    """Every mistake of the file but those of its upsert topics."""
    if gold.publication is not None:
        yield from _unified(contracts, gold, gold.publication)
    yield from (Mistake(GOLD, path, what) for path, what in join_mistakes(contracts))


def _unified(contracts: Contracts, gold: GoldTables, publication: Publication) -> Iterator[Mistake]:
    if gold.key not in gold.columns:
        yield Mistake(GOLD, ("key",), unknown("column", gold.key, gold.columns, where="columns"))
    if gold.fulfillment is not None:
        column, here = gold.fulfillment.column, ("fulfillment", "column")
        if column not in gold.columns:
            yield Mistake(GOLD, here, unknown("column", column, gold.columns, where="columns"))
        elif gold.columns[column] != STRING:
            yield Mistake(GOLD, here, f"{column} is {gold.columns[column].ddl}, and only text can be looked up")
    for attribute in ("name", "prefix"):
        seen: dict[str, str] = {}
        for source, given in gold.sources.items():
            value = getattr(given, attribute)
            if value in seen:
                what = f"source {seen[value]} has the {attribute} {value} too: their orders would overwrite each other"
                yield Mistake(GOLD, ("sources", source, attribute), what)
            seen[value] = source
    yield from _gold_feeds(contracts, gold)
    yield from _gold_columns(contracts, gold)
    yield from _marts(gold)
    yield from _sizes(contracts, publication)
    yield from _connect_json(gold, publication)


def _gold_feeds(contracts: Contracts, gold: GoldTables) -> Iterator[Mistake]:
    for name, source in gold.sources.items():
        here = ("sources", name)
        if name not in contracts.topics.sources:
            yield Mistake(GOLD, here, unknown("source", name, contracts.topics.sources, where=TOPICS))
            continue
        own = contracts.topics.sources[name].feeds
        for feed in source.feeds:
            if feed not in own or feed not in contracts.silver.tables:
                yield Mistake(GOLD, (*here, "feeds"), unknown("feed", feed, own, where=f"source {name}"))
            elif contracts.silver.tables[feed].keys != (gold.key,):
                keys = ", ".join(contracts.silver.tables[feed].keys)
                what = f"the key of {feed} is {keys}, and gold goes by {gold.key} alone"
                yield Mistake(GOLD, (*here, "feeds"), what)
        for feed in {feed for feed in source.feeds if source.feeds.count(feed) > 1}:
            yield Mistake(GOLD, (*here, "feeds"), f"feed {feed} stands here twice")


def _gold_columns(contracts: Contracts, gold: GoldTables) -> Iterator[Mistake]:
    feeds = [feed for source in gold.sources.values() for feed in source.feeds if feed in contracts.silver.tables]
    every_column = {column for feed in feeds for column in contracts.silver.tables[feed].columns}
    for column, declared in gold.columns.items():
        here = ("columns", column)
        if column in GOLD_ADDS:
            yield Mistake(GOLD, here, "gold adds a column of this name by itself")
        elif feeds and column not in every_column:
            yield Mistake(GOLD, here, unknown("column", column, every_column, where="the feeds of gold"))
        for feed in feeds:
            silver_column = contracts.silver.tables[feed].columns.get(column)
            if silver_column is not None and silver_column.type != declared:
                what = (
                    f"{declared.ddl} here, and {silver_column.type.ddl} in silver table {feed}: they must be the same"
                )
                yield Mistake(GOLD, here, what)


def _marts(gold: GoldTables) -> Iterator[Mistake]:
    every = (*gold.columns, *GOLD_ADDS)
    for name, mart in gold.marts.items():
        here = ("marts", name)
        if name == UNIFIED_ORDERS:
            yield Mistake(GOLD, here, f"gold.{UNIFIED_ORDERS} is not a mart: name it otherwise")
        if mart.day is None and not mart.by:
            yield Mistake(GOLD, here, "a mart needs groups: give `day`, or `by`, or both")
        elif mart.day is not None and mart.day not in gold.columns:
            yield Mistake(GOLD, (*here, "day"), unknown("column", mart.day, gold.columns, where="columns"))
        elif mart.day is not None and gold.columns[mart.day].ddl not in {"TIMESTAMP", "DATE"}:
            what = f"{mart.day} is {gold.columns[mart.day].ddl}, and only a TIMESTAMP or a DATE has a day"
            yield Mistake(GOLD, (*here, "day"), what)
        for column in mart.by:
            if column not in every:
                yield Mistake(GOLD, (*here, "by"), unknown("column", column, every, where="gold.unified_orders"))
        for column, summed in mart.sums.items():
            if summed not in gold.columns:
                yield Mistake(GOLD, (*here, "sums", column), unknown("column", summed, gold.columns, where="columns"))
            elif not _is_exact(gold.columns[summed]):
                what = f"{summed} is {gold.columns[summed].ddl}: only whole numbers and DECIMAL have an exact sum"
                yield Mistake(GOLD, (*here, "sums", column), what)
        names = [*(["day"] if mart.day else []), *mart.by, mart.count, *mart.sums]
        for twice in sorted({column for column in names if names.count(column) > 1}):
            yield Mistake(GOLD, here, f"two of its columns would be named {twice}")


def _is_exact(declared: ColumnType) -> bool:
    return isinstance(declared, DecimalType) or declared.ddl in WHOLE_NUMBERS


def _sizes(contracts: Contracts, publication: Publication) -> Iterator[Mistake]:
    """What silver accepts fits the topic."""
    for feed in (feed for source in contracts.gold.sources.values() for feed in source.feeds):
        table = contracts.silver.tables.get(feed)
        if table is not None and publication.max_message_bytes < table.max_record_bytes + ROW_OVERHEAD:
            what = (
                f"{publication.max_message_bytes} is too low for feed {feed}, whose max_record_bytes in {TABLES} is "
                f"{table.max_record_bytes}: write {table.max_record_bytes + ROW_OVERHEAD} or more, or lower that one"
            )
            yield Mistake(GOLD, ("publication", "max_message_bytes"), what)


def _connect_json(gold: GoldTables, publication: Publication) -> Iterator[Mistake]:
    for column, declared in gold.columns.items():
        why = why_not_carried(publication.format, declared.ddl)
        if why is not None:
            what = f"connect-json cannot carry {declared.ddl}, {why}: leave the column out, or write format: json"
            yield Mistake(GOLD, ("columns", column), what)
