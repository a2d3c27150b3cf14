"""Every recording ends as the database that was recorded, in every table, however it is read."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts
from lakehouse.spark.tables import Warehouse
from silver.order.state import OUTCOMES
from tests.support.captures import (
    AS_TEXT,
    BIG,
    CASE,
    SMALL,
    Capture,
    case_of,
    changes_of,
    contracts_of_captures,
    feed_of,
    topic_of,
)
from tests.support.final_state import final_events, final_rows, final_tables, text_of
from tests.support.laws.played import Played, play
from tests.support.laws.recordings import (
    MANY,
    OF_BIG,
    THOROUGH,
    WITH_STRANGE_RECORDS,
    Recordings,
    one_batch,
    read_in_ways,
    read_recordings,
    strange_records,
    strange_topic,
)
from tests.support.model.batches import BATCHES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = Mapping[str, str | None]
Differences = list[tuple[str | None, Any, Any]]


@dataclass(frozen=True)
class Difference:
    """A cell in which the events differ from the database's last state. `ours`, `theirs`: its text in both."""

    recordings: Sequence[str]
    table: str
    keys: Sequence[int]
    column: str
    ours: str | None
    theirs: str | None
    reason: str


OF_POSTGRES = ("pg_default", "pg_full", "pg_default_restart", "pg_schema-include", "pg_decimal-string_time-isostring")
OF_MYSQL = ("mysql", "mysql_restart", "mysql_schema-include")
# Written before the column `channel` was added, and not since.
OLD_ORDERS = (
    *range(1, 9),
    *range(10, 17),
    *range(19, 40),
    *range(41, 52),
    5005,
    6001,
)
KNOWN_DIFFERENCES = (
    Difference(
        (*OF_POSTGRES, *OF_MYSQL),
        "orders",
        OLD_ORDERS,
        "channel",
        ours=None,
        theirs="web",
        reason="ALTER TABLE … ADD COLUMN … DEFAULT changes the rows and sends no event of them.",
    ),
    Difference(
        OF_POSTGRES,
        "orders",
        (54,),
        "channel",
        ours="web",
        theirs=None,
        reason="JsonConverter writes the column's default where the source has NULL.",
    ),
    Difference(
        OF_MYSQL,
        "orders",
        (6013,),
        "channel",
        ours="web",
        theirs=None,
        reason="JsonConverter writes the column's default where the source has NULL.",
    ),
    Difference(
        tuple(name for name in OF_POSTGRES if name != "pg_decimal-string_time-isostring"),
        "orders_types",
        (4,),
        "dnum",
        ours=None,
        theirs="NaN",
        reason="decimal.handling.mode=precise has no NaN: it sends null.",
    ),
)

# What events tell of keys that the final table of an outbox does not have.
KNOWN_EVENTS: Mapping[str, Row] = {
    # The rows were deleted from the outbox table.
    "60": {"total_amount": "100.00"},
    "777": {},
}


@dataclass(frozen=True)
class Silver:
    """What silver made of the recordings: the rows of every table by case, and the account of what was read."""

    played: Played
    recordings: Recordings
    rows: Mapping[str, Mapping[str, Sequence[Row]]]
    audit: Mapping[str, Counter[str]]
    seed: int


@pytest.fixture(
    scope="module",
    params=[pytest.param("quick", id="quick"), pytest.param("thorough", id="thorough", marks=pytest.mark.whole)],
)
def silver(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    contracts: Contracts,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Silver:
    if request.param == "quick":
        recordings, count = read_recordings(seed), BATCHES
    else:
        recordings, count = read_in_ways(SMALL, THOROUGH, seed), MANY
    folder = tmp_path_factory.mktemp("recordings")
    warehouse = Warehouse(spark, str(folder / "warehouse"), str(folder / "checkpoints"))
    played = play(warehouse, contracts_of_captures(contracts), [recordings.cases], folder=folder, count=count)
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


def of_kind(*, outbox: bool) -> list[Capture]:
    return [capture for capture in SMALL if capture.is_outbox is outbox]


def named(capture: Capture) -> str:
    return capture.name


@pytest.mark.parametrize("capture", of_kind(outbox=False), ids=named)
def test_silver_is_the_database_in_the_end(silver: Silver, capture: Capture) -> None:
    suffix = AS_TEXT if capture.as_text else ""
    differing: dict[tuple[str, str], Differences] = {}
    for table in set(final_tables(capture.final)) - {"orders_nopk"}:
        feed = feed_of(silver.played.contracts, capture, f"{table}{suffix}")
        # Some of the recorded tables never had the column.
        absent = {name: None for name, declared in feed.columns.items() if declared.optional}
        truth = final_rows(capture.final, table, kind=capture.kind)
        expected = with_known_differences({key: {**absent, **row} for key, row in truth.items()}, capture, table)
        for case, _way in silver.recordings.of(capture):
            rows = [without_op(row) for row in silver.rows[feed.name][case]]
            differing[table, case] = differences(by_key(rows), expected)
    assert not said(differing), f"LAWS_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", of_kind(outbox=True), ids=named)
def test_silver_is_what_the_outbox_table_tells(silver: Silver, capture: Capture) -> None:
    differing: dict[tuple[str, str], Differences] = {}
    for aggregate_type in ("orders", "customers"):
        feed = feed_of(silver.played.contracts, capture, f"outbox_{aggregate_type}")
        columns = tuple(column for column in feed.columns if column != CASE)
        expected = dict(final_events(capture.final, aggregate_type, columns))
        if aggregate_type == "orders":
            assert not expected.keys() & KNOWN_EVENTS
            expected |= {key: {**dict.fromkeys(columns), "order_id": key, **row} for key, row in KNOWN_EVENTS.items()}
        for case, _way in silver.recordings.of(capture):
            rows = [without_op(row) for row in silver.rows[feed.name][case]]
            differing[aggregate_type, case] = differences(by_key(rows), expected)
    assert not said(differing), f"LAWS_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", [one for one in of_kind(outbox=False) if "ordering" not in one.name], ids=named)
def test_a_table_without_a_key_is_the_list_of_its_changes(silver: Silver, capture: Capture) -> None:
    table = f"orders_nopk{AS_TEXT if capture.as_text else ''}"
    expected = events_without_a_key(capture, table)
    assert {event["_op"] for event in expected} >= (
        {"r", "c"} if capture.name in ONLY_INSERTS else {"r", "c", "u", "d"}
    )
    feed = feed_of(silver.played.contracts, capture, table)
    assert {case: list(silver.rows[feed.name][case]) for case, _way in silver.recordings.of(capture)} == {
        case: expected for case, _way in silver.recordings.of(capture)
    }, f"LAWS_SEED={silver.seed}"


def test_every_record_has_one_outcome(silver: Silver) -> None:
    read = Counter(
        record["topic"] for _capture, _way, records in silver.recordings.by_case.values() for record in records
    )
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
    for capture, way, records in silver.recordings.by_case.values():
        for name in ("heartbeats", "transactions", "schema_changes"):
            topic = topic_of(capture.name, way.__name__, name)
            read = sum(record["topic"] == topic for record in records)
            assert silver.audit.get(topic, Counter()) == Counter(read=read, ignored=read)


@pytest.mark.parametrize("silver", [pytest.param("quick", id="quick")], indirect=True, scope="module")
@pytest.mark.parametrize("capture", BIG, ids=named)
def test_many_batches_end_as_one(silver: Silver, capture: Capture) -> None:
    """The beginning of a big recording: all rows, deleted ones too, and which record each is from."""
    feed = feed_of(silver.played.contracts, capture, "orders")
    own = [name for name in feed.columns if name != CASE]
    rows = silver.played.table(feed.name).select(CASE, *own, "_is_deleted", "_op", "_partition", "_offset")
    in_one, in_many = (
        Counter(map(str, rows.where(F.col(CASE) == case_of(capture.name, way.__name__)).drop(CASE).collect()))
        for way in OF_BIG
    )
    assert len(in_one) > 100
    assert in_many == in_one


def test_nothing_is_quarantined(silver: Silver) -> None:
    for source in silver.played.contracts.topics.sources:
        found = silver.played.quarantine(source).select("topic", "offset", "reasons").collect()
        assert found == [], f"LAWS_SEED={silver.seed}"


# In one batch only: of several, each counts what it knew.
@pytest.mark.parametrize("silver", [pytest.param("quick", id="quick")], indirect=True, scope="module")
@pytest.mark.parametrize("capture", of_kind(outbox=False), ids=named)
def test_changes_that_a_connector_sent_again_are_counted(silver: Silver, capture: Capture) -> None:
    for table in ("orders", "orders_nopk", "orders_trunc", "orders_types"):
        name = f"{table}{AS_TEXT if capture.as_text else ''}"
        counted = silver.audit.get(topic_of(capture.name, one_batch.__name__, name), Counter())
        repeated = 122 if "restart" in capture.name and table == "orders" else 0
        assert (counted["duplicate"], times_sent_again(capture, name)) == (repeated, repeated), name


@pytest.mark.parametrize("silver", [pytest.param("quick", id="quick")], indirect=True, scope="module")
@pytest.mark.parametrize("capture", WITH_STRANGE_RECORDS, ids=named)
def test_records_that_tell_of_no_row_are_ignored_in_the_topic_of_a_feed_too(silver: Silver, capture: Capture) -> None:
    records = strange_records(capture)
    assert {one["value"] for one in records if one["value"] and '"status"' in one["value"]}, "transactions among them"
    topic = strange_topic(capture)
    assert silver.audit[topic] == Counter(read=len(records), ignored=len(records))


ONLY_INSERTS = ("pg_default", "pg_default_restart", "pg_schema-include", "pg_decimal-string_time-isostring")


def without_op(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "_op"}


def by_key(rows: Sequence[Row]) -> Mapping[str | None, Row]:
    found = {row["order_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def differences(found: Mapping[str | None, Row], expected: Mapping[str, Row]) -> Differences:
    """Key, silver, truth: of each row the columns that differ, or the whole row where the other has none."""
    told: Differences = []
    for key in dict.fromkeys([*expected, *found]):
        ours, theirs = found.get(key), expected.get(str(key))
        if ours is None or theirs is None:
            told.append((key, ours, theirs))
        elif ours != theirs:
            names = [name for name in {**theirs, **ours} if ours.get(name, ABSENT) != theirs.get(name, ABSENT)]
            told.append(
                (key, {n: short(ours.get(n, ABSENT)) for n in names}, {n: short(theirs.get(n, ABSENT)) for n in names})
            )
    return told


ABSENT = "no such column"


def short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


def said(differing: Mapping[tuple[str, str], Differences]) -> list[str]:
    """A sentence for every table and case that differs."""
    return [
        f"{table} of {case}: {len(found)} rows, as {found[:2]}" for (table, case), found in differing.items() if found
    ]


def with_known_differences(truth: Mapping[str, Row], capture: Capture, table: str) -> Mapping[str, Row]:
    """The final table as the events tell it. A known difference must be one: in the truth stands what it says."""
    expected = {key: dict(row) for key, row in truth.items()}
    for known in KNOWN_DIFFERENCES:
        if capture.name in known.recordings and table == known.table:
            for key in map(str, known.keys):
                assert expected[key][known.column] == known.theirs, (known, key)
                assert known.ours != known.theirs
                expected[key][known.column] = known.ours
    return expected


def events_without_a_key(capture: Capture, table: str) -> list[Row]:
    """The changes of a table, read here by hand, in the order of offsets."""
    found: list[Row] = []
    for _record, change in changes_of(capture, table):
        row = change["before"] if change["op"] == "d" else change["after"]
        amount = row["total_amount"] if capture.as_text else decimal_of(row["total_amount"])
        found.append(
            {
                "order_id": str(row["order_id"]),
                "status": row["status"],
                "total_amount": amount,
                "_op": change["op"],
            }
        )
    return found


def decimal_of(text: str) -> str:
    """A DECIMAL(10,2) in base64."""
    return str(Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True)).scaleb(-2))


def times_sent_again(capture: Capture, table: str) -> int:
    """How many changes only repeat an earlier one: the same place in the log, operation, key and row."""
    seen: set[str] = set()
    again = 0
    for record, change in changes_of(capture, table):
        place = {name: change["source"].get(name) for name in ("lsn", "file", "pos", "row", "snapshot")}
        said = json.dumps([record["partition"], record["key"], place, change["op"], change["after"]], sort_keys=True)
        again += said in seen
        seen.add(said)
    return again
