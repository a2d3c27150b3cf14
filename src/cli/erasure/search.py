"""The search for erased rows: in every table as it is now, and in every file that Delta still keeps of it.

No value is shown: a finding says in which table, where in it, how many rows and in how many files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from cli.erasure.carry_out import has_broker
from cli.erasure.request import ErasureRequest
from cli.options import CommandContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gold.topics.compare import Comparison
    from lakehouse.contracts.models import Feed

# rows: of the table as it is now. marked: in its files, marked as deleted. old files: of earlier versions, and change
# data. log: it describes files of before the erasure, with their lowest and highest values. topic: it differs from its
# table. unsearched: nothing can be listed there.
Where = Literal["rows", "marked", "old files", "log", "topic", "unsearched"]
Matching = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Finding:
    """Where rows of the keys are, or may be, still found; `rows` and `files`: how many, 0 where they are not known."""

    table: str
    where: Where
    rows: int = 0
    files: int = 0


@dataclass(frozen=True)
class SearchedTable:
    """How rows of the keys are found in a table: the `columns` that are asked about, and those rows among all.

    None of both: nothing in it names a key.
    """

    name: str
    columns: str | None = None
    matching: Matching | None = None


def search(chosen: CommandContext, request: ErasureRequest) -> list[Finding]:
    """Every place in which rows of the keys are found. Changes nothing."""
    from lakehouse.erasure.table import clean_since, salt_of
    from silver.fold.erased import key_digest

    warehouse, findings = request.warehouse, list[Finding]()
    salt = salt_of(warehouse)
    digests = [] if salt is None else [key_digest(salt, key) for key in request.keys.values]
    clean = clean_since(warehouse, digests)
    for table in _searched(request):
        findings += _find(request, table, clean)
    with request.matching_records() as records:
        number = sum(rows.count() for rows in records.values())
    if number:
        findings.append(Finding(f"bronze.{request.source}_events", "rows", number))
    if has_broker(chosen):
        findings += _topics(chosen, request)
    return findings


def _searched(request: ErasureRequest) -> Iterator[SearchedTable]:
    from bronze.erase import with_content
    from bronze.events import COLUMNS, events_table
    from gold.unify import UNIFIED
    from lakehouse.erasure.table import erased_records
    from lakehouse.quality.results import RESULTS
    from silver.accounts.audit import OUTBOX_EVENTS
    from silver.erasure.erase import rows_of, sample_texts, samples_of
    from silver.rejects.quarantine import QUARANTINE

    warehouse, keys = request.warehouse, request.keys
    found: dict[str, SearchedTable] = {}

    def add(name: str, columns: str, matching: Matching) -> None:
        found[name] = SearchedTable(name, columns, matching)

    erased = erased_records(warehouse, request.source)
    if erased is not None:
        add(events_table(request.source).name, COLUMNS, partial(with_content, erased=erased))
    for feed in request.feeds:
        for table in feed.silver_tables:
            add(table, _key_columns(feed), partial(rows_of, feed=feed, keys=keys))
    for name in request.joins:
        join = request.contracts.gold.joins[name]
        for feed in request.feeds:
            if feed.name == join.table:
                names = dict(zip(join.keys(feed.keys), feed.keys, strict=True))
                columns = ", ".join(f"`{column}` {feed.columns[key].type.ddl}" for column, key in names.items())
                add(f"gold.{name}", columns, partial(_renamed, feed=feed, request=request, names=names))
    if request.is_of_unified:
        add(UNIFIED, "composite_key STRING", partial(_orders, request=request))
    sample = sample_texts(request.feeds, keys, request.contracts)
    add(RESULTS.name, "feed STRING, sample_keys ARRAY<STRING>", partial(samples_of, sample=sample))
    if erased is not None:
        at = "topic STRING, topic_id STRING, partition INT, offset BIGINT"
        add(OUTBOX_EVENTS.name, f"{at}, first_key BIGINT", partial(_first_keys, erased=erased))
    at = "feed STRING, topic STRING, topic_id STRING, partition INT, offset BIGINT, row_key STRING"
    add(QUARANTINE.name, at, partial(_entries, request=request, erased=erased))
    yield from (found.get(name, SearchedTable(name)) for name in request.tables())


def _find(request: ErasureRequest, table: SearchedTable, clean: Mapping[str, int]) -> Iterator[Finding]:
    from pyspark.sql import functions as F

    from lakehouse.erasure.files import rows_in_files, stored_files

    warehouse, name = request.warehouse, table.name
    present = 0 if table.matching is None else table.matching(warehouse.read(name)).count()
    if present:
        yield Finding(name, "rows", present)
    files = stored_files(warehouse, name)
    if files is None:
        yield Finding(name, "unsearched")
        return
    if name not in clean or files.first_logged < clean[name]:
        yield Finding(name, "log")
    if table.matching is None or table.columns is None:
        return
    kinds: dict[Where, list[str]] = {"marked": [*files.current], "old files": [*files.others]}
    for where, paths in kinds.items():
        if not paths:
            continue
        stored = rows_in_files(warehouse, paths, table.columns).withColumn("_path", F.col("_metadata.file_path"))
        found = table.matching(stored).groupBy("_path").count().collect()
        rows = sum(row["count"] for row in found) - (present if where == "marked" else 0)
        if rows:
            yield Finding(name, where, rows, len(found))


def _topics(chosen: CommandContext, request: ErasureRequest) -> Iterator[Finding]:
    """The topics whose last values are not those of their tables: these have no row of the keys."""
    from gold.topics.compare import compare, compare_upsert
    from lakehouse.contracts.checks.upsert_checks import why_not_yet

    warehouse, contracts = request.warehouse, request.contracts
    compared: list[Comparison] = []
    tables = request.tables()
    if request.is_of_unified:
        compared.append(compare(warehouse, chosen.settings, contracts))
    for name, topic in contracts.gold.upsert_topics.items():
        if topic.table in tables and why_not_yet(contracts, name) is None:
            compared.append(compare_upsert(warehouse, chosen.settings, contracts, name))
    yield from (Finding(one.topic, "topic", one.differing) for one in compared if one.differing)
    for one in compared:
        # By source of the unified orders, by table of an upsert topic.
        if not {request.source, one.table}.isdisjoint([*one.unpublished, *one.unreadable]):
            yield Finding(one.topic, "unsearched")


def _key_columns(feed: Feed) -> str:
    return ", ".join(f"`{key}` {feed.columns[key].type.ddl}" for key in feed.keys)


def _renamed(rows: DataFrame, feed: Feed, request: ErasureRequest, names: Mapping[str, str]) -> DataFrame:
    from silver.erasure.erase import rows_of

    return rows_of(rows.withColumnsRenamed({**names}), feed, request.keys)


def _orders(rows: DataFrame, request: ErasureRequest) -> DataFrame:
    from pyspark.sql import functions as F

    from silver.erasure.erase import NUMBER

    keys = request.keys.rows.drop(NUMBER)
    named = F.concat(F.lit(f"{request.prefix()}-"), F.col(request.contracts.gold.key).cast("string"))
    return rows.join(F.broadcast(keys.select(named.alias("composite_key"))), on="composite_key", how="left_semi")


def _first_keys(rows: DataFrame, erased: DataFrame) -> DataFrame:
    from silver.rejects.quarantine import OF_RECORD

    known = rows.where("first_key IS NOT NULL")
    return known.join(erased.select(*OF_RECORD), on=OF_RECORD, how="left_semi")


def _entries(rows: DataFrame, request: ErasureRequest, erased: DataFrame | None) -> DataFrame:
    from functools import reduce

    from pyspark.sql import DataFrame

    from lakehouse.delta.tables import inline_rows
    from silver.erasure.erase import entries_of
    from silver.rejects.quarantine import OF_RECORD

    none = inline_rows(rows.sparkSession, [], "topic STRING, topic_id STRING, partition INT, offset BIGINT")
    records = none if erased is None else erased.select(*OF_RECORD)
    parts = [entries_of(rows, feed, request.keys, records) for feed in request.feeds]
    return reduce(DataFrame.unionByName, parts)
