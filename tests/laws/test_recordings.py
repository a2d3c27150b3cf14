"""Recordings of every kind of feed and column type through Spark and Delta: silver is the database in the end.

What all recordings lead to, in whatever batches, is told in plain Python (tests/unit/silver/fold/test_recordings.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from silver.order.state import OUTCOMES
from tests.support.captures import AS_TEXT, CASE, OUTBOX_TABLES, Capture, contracts_of_captures, feed_of, topic_of
from tests.support.final_state import text_of
from tests.support.laws.played import Played, play
from tests.support.laws.recordings import (
    FEW,
    ON_SPARK,
    READ_ON_SPARK,
    TABLES_ON_SPARK,
    WITH_STRANGE_RECORDS,
    Recordings,
    case_on_spark,
    one_batch,
    read_recordings,
    strange_records,
    strange_topic,
)
from tests.support.recorded import (
    Row,
    differences,
    events_without_a_key,
    expected_of_outbox,
    expected_rows,
    said,
    times_sent_again,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OF_DATABASES = [capture for capture in READ_ON_SPARK if not capture.is_outbox]
OF_OUTBOXES = [capture for capture in READ_ON_SPARK if capture.is_outbox]
WITH_KEYLESS = [capture for capture in OF_DATABASES if not capture.as_text]


@dataclass(frozen=True)
class Silver:
    """What silver made of the recordings: the rows of every table by case, and the account of what was read."""

    played: Played
    recordings: Recordings
    rows: Mapping[str, Mapping[str, Sequence[Row]]]
    audit: Mapping[str, Counter[str]]
    seed: int


@pytest.fixture(scope="module")
def silver(spark: SparkSession, contracts: Contracts, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Silver:
    recordings, folder = read_recordings(seed), tmp_path_factory.mktemp("recordings")
    warehouse = Warehouse(spark, str(folder / "warehouse"), str(folder / "checkpoints"))
    own = contracts_of_captures(contracts, only=TABLES_ON_SPARK)
    played = play(warehouse, own, [recordings.cases], folder=folder, count=FEW)
    return Silver(
        played,
        recordings,
        rows={name: rows_by_case(played, name) for name in played.contracts.feeds},
        audit=audit_by_topic(played),
        seed=seed,
    )


def rows_by_case(played: Played, feed: str) -> Mapping[str, Sequence[Row]]:
    """The rows of a table, as text, in the order of partition and offset."""
    declared = played.contracts.feeds[feed].columns
    columns = [text_of(F.col(name), column).alias(name) for name, column in declared.items()]
    rows = played.table(feed).where(~F.col("_is_deleted")).orderBy("_partition", "_offset")
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows.select(*columns, "_op").collect():
        values = row.asDict()
        found[values.pop(CASE)].append(values)
    return found


def audit_by_topic(played: Played) -> Mapping[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for source in played.contracts.topics.sources:
        for entry in played.audit(source):
            found[entry["topic"]] += Counter({name: entry[name] for name in ("read", *OUTCOMES)})
    return found


def named(capture: Capture) -> str:
    return capture.name


def tables_of(capture: Capture) -> list[str]:
    """The tables of a recording that have a feed here, and a key."""
    suffix = AS_TEXT if capture.as_text else ""
    return [table for table in ("orders", "orders_types") if f"{table}{suffix}" in TABLES_ON_SPARK]


@pytest.mark.parametrize("capture", OF_DATABASES, ids=named)
def test_silver_is_the_database_in_the_end(silver: Silver, capture: Capture) -> None:
    suffix, case = AS_TEXT if capture.as_text else "", case_on_spark(capture)
    differing = {}
    for table in tables_of(capture):
        feed = feed_of(silver.played.contracts, capture, f"{table}{suffix}")
        found = by_key([without_op(row) for row in silver.rows[feed.name][case]])
        differing[table, case] = differences(found, expected_rows(capture, table, feed))
    assert differing
    assert not said(differing), f"LAWS_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", OF_OUTBOXES, ids=named)
def test_silver_is_what_the_outbox_table_tells(silver: Silver, capture: Capture) -> None:
    differing, case = {}, case_on_spark(capture)
    for table in OUTBOX_TABLES:
        feed = feed_of(silver.played.contracts, capture, table)
        columns = tuple(column for column in feed.columns if column != CASE)
        found = by_key([without_op(row) for row in silver.rows[feed.name][case]])
        expected = expected_of_outbox(capture, table.removeprefix("outbox_"), columns)
        differing[table, case] = differences(found, expected)
    assert not said(differing), f"LAWS_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", WITH_KEYLESS, ids=named)
def test_a_table_without_a_key_is_the_list_of_its_changes(silver: Silver, capture: Capture) -> None:
    expected = events_without_a_key(capture, "orders_nopk")
    assert {event["_op"] for event in expected} >= {"r", "c", "u", "d"}
    feed = feed_of(silver.played.contracts, capture, "orders_nopk")
    assert list(silver.rows[feed.name][case_on_spark(capture)]) == expected, f"LAWS_SEED={silver.seed}"


def test_every_record_has_one_outcome(silver: Silver) -> None:
    read = Counter(record["topic"] for _capture, records in silver.recordings.by_case.values() for record in records)
    strange = {strange_topic(capture) for capture in WITH_STRANGE_RECORDS}
    counted = {topic: of_topic for topic, of_topic in silver.audit.items() if topic not in strange}
    assert {topic: of_topic["read"] for topic, of_topic in counted.items()} == read
    wrong = {
        topic: of_topic
        for topic, of_topic in counted.items()
        if of_topic["read"] != sum(of_topic[outcome] for outcome in OUTCOMES)
    }
    assert not wrong, f"LAWS_SEED={silver.seed}"


def test_records_that_tell_of_no_row_are_ignored(silver: Silver) -> None:
    some = 0
    for capture, records in silver.recordings.by_case.values():
        for name in ("heartbeats", "transactions", "schema_changes"):
            topic = topic_of(capture.name, ON_SPARK[capture.name].__name__, name)
            read = sum(record["topic"] == topic for record in records)
            assert silver.audit.get(topic, Counter()) == Counter(read=read, ignored=read)
            some += read
    assert some > 100


def test_nothing_is_quarantined(silver: Silver) -> None:
    for source in silver.played.contracts.topics.sources:
        found = silver.played.quarantine(source).select("topic", "offset", "reasons").collect()
        assert found == [], f"LAWS_SEED={silver.seed}"


# In one batch only: of several, each counts what it knew.
@pytest.mark.parametrize("capture", [one for one in WITH_KEYLESS if ON_SPARK[one.name] is one_batch], ids=named)
def test_changes_that_a_connector_sent_again_are_counted(silver: Silver, capture: Capture) -> None:
    for table in ("orders", "orders_nopk", "orders_types"):
        counted = silver.audit.get(topic_of(capture.name, one_batch.__name__, table), Counter())
        repeated = 122 if "restart" in capture.name and table == "orders" else 0
        assert (counted["duplicate"], times_sent_again(capture, table)) == (repeated, repeated), table


@pytest.mark.parametrize("capture", WITH_STRANGE_RECORDS, ids=named)
def test_records_that_tell_of_no_row_are_ignored_in_the_topic_of_a_feed_too(silver: Silver, capture: Capture) -> None:
    records = strange_records(capture)
    assert {one["value"] for one in records if one["value"] and '"status"' in one["value"]}, "transactions among them"
    topic = strange_topic(capture)
    assert silver.audit[topic] == Counter(read=len(records), ignored=len(records))


def without_op(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "_op"}


def by_key(rows: Sequence[Row]) -> Mapping[str | None, Row]:
    found = {row["order_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found
