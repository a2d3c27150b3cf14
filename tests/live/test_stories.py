"""Silver equals the source tables after everything that databases and connectors do, told live.

All stories are told once, by all connectors at the same time; each test looks at one table of one database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from bronze.events import events_table
from demo.stack.stack import Stack
from lakehouse.batches import batches
from lakehouse.contracts.models import Contracts
from silver.order.state import OUTCOMES
from silver.rejects.quarantine import QUARANTINE
from tests.support.final_state import Rows, text_of
from tests.support.live.connectors import VARIANTS, Config, Variant
from tests.support.live.contracts import CASE
from tests.support.live.source_rows import source_rows
from tests.support.live.stories import LOGGED, ROWS
from tests.support.live.told import ALL, PLACES, Told, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live]

# What is asked of an event without a schema.
FIELDS = {"op": "$.op", "snapshot": "$.source.snapshot", "note": "$.after.note"}
TABLES = [(source, table) for source, tables in ALL.items() for table in tables]


@pytest.fixture(scope="module")
def told(
    stack: Stack,
    packaged_connectors: Mapping[str, Config],
    spark: SparkSession,
    contracts: Contracts,
    tmp_path_factory: pytest.TempPathFactory,
) -> Told:
    stories = Told(stack, spark, contracts, tmp_path_factory.mktemp("stories"))
    tell(stories, packaged_connectors)
    return stories


def silver_rows(told: Told, feed: str) -> Mapping[str, Rows]:
    """The live rows of a silver table as text, by connector and key."""
    columns = told.contracts.feeds[feed].columns
    rows = told.warehouse.read(f"silver.{feed}").where("NOT _is_deleted")
    texts = rows.select(*[text_of(F.col(name), column).alias(name) for name, column in columns.items()]).collect()
    found: dict[str, dict[str, Mapping[str, str | None]]] = {}
    for row in texts:
        values = {name: value for name, value in row.asDict().items() if name != CASE}
        found.setdefault(row[CASE], {})[row["order_id"]] = values
    return found


@pytest.mark.parametrize(("source", "table"), TABLES)
def test_silver_is_the_source_table(told: Told, source: str, table: str) -> None:
    ours = silver_rows(told, f"{source}_{table}")
    theirs = source_rows(told.databases[source], PLACES[source], table)
    assert theirs
    for variant in VARIANTS:
        if variant.source == source:
            assert differing(ours[variant.name], theirs) == [], variant.name


@pytest.mark.parametrize("table", LOGGED)
@pytest.mark.parametrize("source", PLACES)
def test_the_history_is_the_log_of_versions_that_the_database_kept(told: Told, source: str, table: str) -> None:
    """The same versions of each key, one after the other, as each connector has told them."""
    names = ("is_deleted", "status", "total_amount", "note")
    log = told.databases[source].rows(f"SELECT order_id, {', '.join(names)} FROM {table}_log ORDER BY number")
    theirs = versions((row["order_id"], [bool(row["is_deleted"]), *(row[name] for name in names[1:])]) for row in log)
    assert any(len(of_key) > 2 for of_key in theirs.values())
    rows = told.warehouse.read(f"silver.{source}_{table}_history").orderBy("order_id", "_from_position").collect()
    for variant in VARIANTS:
        if variant.source == source:
            own = [row for row in rows if row[CASE] == variant.name]
            ours = versions((row["order_id"], [row[f"_{names[0]}"], *(row[name] for name in names[1:])]) for row in own)
            assert {key: of_key for key, of_key in ours.items() if of_key != theirs.get(key)} == {}, variant.name
            assert ours.keys() == theirs.keys(), variant.name


def versions(states: Iterable[tuple[int, list[object]]]) -> Mapping[int, list[list[object]]]:
    """The states of each key, those that follow one another and are equal once."""
    found: dict[int, list[list[object]]] = {}
    for key, state in states:
        of_key = found.setdefault(key, [])
        if not of_key or of_key[-1] != state:
            of_key.append(state)
    return found


@pytest.mark.parametrize(("source", "table"), TABLES)
def test_the_last_versions_are_the_rows_of_silver(told: Told, source: str, table: str) -> None:
    feed = told.contracts.feeds[f"{source}_{table}"]
    columns = [*feed.columns, "_is_deleted"]
    last = told.warehouse.read(feed.history_table).where("_is_current").select(columns)
    rows = told.warehouse.read(f"silver.{feed.name}").select(columns)
    assert rows.exceptAll(last).count() == last.exceptAll(rows).count() == 0


def differing(ours: Rows, theirs: Rows) -> list[tuple[str, str, str | None, str | None]]:
    """Key, column and both texts of every cell that is not the same."""
    assert ours.keys() == theirs.keys()
    return [
        (key, name, ours[key][name], value)
        for key, row in theirs.items()
        for name, value in row.items()
        if _spaced(name, ours[key][name]) != _spaced(name, value)
    ]


def _spaced(name: str, text: str | None) -> str | None:
    """JSON of MySQL has other spaces in a snapshot than in the binary log."""
    return json.dumps(json.loads(text)) if name == "js" and text is not None else text


@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.way == "plain"], ids=lambda variant: variant.name)
def test_everything_was_told_that_the_stories_are_about(told: Told, variant: Variant) -> None:
    """Else the comparison of the tables would show nothing."""
    value = F.col("value").cast("string")
    fields = {name: F.get_json_object(value, path).alias(name) for name, path in FIELDS.items()}
    events = told.warehouse.read(events_table(variant.source).name).where(F.col("topic").startswith(variant.name))
    counted = events.select("topic", *fields.values()).groupBy("topic", *fields).count().collect()

    def count(table: str, **wanted: str) -> int:
        topic = variant.topic(table)
        return sum(
            row["count"] for row in counted if row["topic"] == topic and all(row[k] == v for k, v in wanted.items())
        )

    assert count("again", op="r") > ROWS["again"], "a second snapshot"
    assert count("emptied", op="t") == 1
    if "opened" in variant.dialect.stories:
        assert count("opened", op="r") > 0
        # Of the transactions that were open while the snapshot was made, at least the last came as changes.
        assert count("opened", op="u") > 0
        assert count("opened", op="d") > 0
        # Not all of them: a row that changes while its chunk is read comes as a change alone.
        assert count("signalled", snapshot="incremental") > ROWS["signalled"] // 2
    if "large_default" in variant.dialect.stories:
        assert count("large_default", note="__debezium_unavailable_value") > 0
        assert count("large_full", note="__debezium_unavailable_value") == 0


@pytest.mark.parametrize("source", ["live_postgres", "live_mysql"])
def test_transactions_and_schema_changes_are_ignored_and_counted(told: Told, source: str) -> None:
    name = f"{source}_schemas"
    sums = [F.sum(outcome).alias(outcome) for outcome in ("read", "ignored")]
    rows = batches(told.warehouse, "silver").where("read IS NOT NULL").groupBy("topic").agg(*sums).collect()
    audit = {row["topic"]: (row["read"], row["ignored"]) for row in rows}
    topics = [f"{name}.transaction", *([name] if source == "live_mysql" else [])]
    for topic in topics:
        read, ignored = audit[topic]
        assert read == ignored > 0, topic


@pytest.mark.parametrize("source", PLACES)
def test_every_record_is_accounted_for(told: Told, source: str) -> None:
    sums = [F.sum(name).alias(name) for name in ("read", *OUTCOMES)]
    (row,) = batches(told.warehouse, "silver").where(F.col("source") == source).agg(*sums).collect()
    stored = told.warehouse.read(events_table(source).name).count()
    assert row["read"] == stored == sum(row[name] for name in OUTCOMES)
    assert told.warehouse.read(QUARANTINE.name).where(F.col("source") == source).count() == 0
