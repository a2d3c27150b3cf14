"""Every recording ends as the database that was recorded, in every table, however it is read.

All recordings, each read in several ways, are cases that share one table and one MERGE a batch.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts
from lakehouse.spark.tables import Warehouse
from silver.apply import ensure_tables
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.captures import (
    AS_TEXT,
    CASE,
    KINDS,
    SMALL,
    Capture,
    case_of,
    changes_of,
    contracts_of_captures,
    feed_of,
    topic_of,
)
from tests.support.events import Record
from tests.support.final_state import final_events, final_rows, final_tables, text_of
from tests.support.model.batches import Batches, doubled, in_any_order, in_one
from tests.support.recordings import read, write
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MANY = 50
Row = Mapping[str, str | None]
Differences = list[tuple[str | None, Any, Any]]
Way = Callable[[Sequence[Record], Random], Batches]


def one_batch(records: Sequence[Record], _random: Random) -> Batches:
    return in_one(records)


def every_record_twice(records: Sequence[Record], random: Random) -> Batches:
    """In the same batch, or in the next."""
    return doubled([records, []], random)


def fifty_batches(records: Sequence[Record], _random: Random) -> Batches:
    """Every partition in equal parts, its offsets in order."""
    of_place: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        of_place[record["topic"], record["partition"]].append(record)
    batches: list[list[Record]] = [[] for _ in range(MANY)]
    for part in of_place.values():
        for number, record in enumerate(sorted(part, key=lambda one: int(one["offset"]))):
            batches[number * MANY // len(part)].append(record)
    return batches


def shuffled(records: Sequence[Record], random: Random) -> Batches:
    """In any order, about ten a batch."""
    return in_any_order(records, random, count=min(MANY, len(records) // 10 + 1))


QUICK: Sequence[Way] = (one_batch, every_record_twice)
THOROUGH: Sequence[Way] = (fifty_batches, shuffled)


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
    """What silver made of all cases: the rows of every table by case, and the account of what was read."""

    ways: Sequence[Way]
    cases: Mapping[str, tuple[Capture, Way, Sequence[Record]]]
    rows: Mapping[str, Mapping[str, Sequence[Row]]]
    audit: Mapping[str, Counter[str]]
    quarantined: Sequence[tuple[str, int, Sequence[str]]]
    seed: int

    def of(self, capture: Capture) -> Iterator[tuple[str, Way]]:
        """The cases of a recording."""
        return ((case, way) for case, (of, way, _records) in self.cases.items() if of == capture)


@pytest.fixture(scope="module")
def of_captures(contracts: Contracts) -> Contracts:
    return contracts_of_captures(contracts)


@pytest.fixture(
    scope="module",
    params=[pytest.param(QUICK, id="quick"), pytest.param(THOROUGH, id="thorough", marks=pytest.mark.whole)],
)
def silver(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    of_captures: Contracts,
    tmp_path_factory: pytest.TempPathFactory,
) -> Silver:
    """The same batches again: CAPTURES_SEED=<the number that a failed test printed>."""
    seed = int(os.environ.get("CAPTURES_SEED") or secrets.randbits(32))
    location = tmp_path_factory.mktemp("captures")
    warehouse = Warehouse(spark, str(location / "warehouse"), str(location / "checkpoints"))
    ensure_tables(warehouse, of_captures)
    cases, batches = read_in_all_ways(request.param, seed)

    def apply_source(source: str) -> None:
        for number, records in enumerate(batches[source]):
            apply_records(warehouse, of_captures, source, records, number, folder=location)

    with ThreadPoolExecutor() as pool:
        list(pool.map(apply_source, batches))
    return Silver(
        request.param,
        cases,
        rows={name: rows_by_case(warehouse, of_captures, name) for name in of_captures.feeds},
        audit=audit_by_topic(warehouse),
        quarantined=[
            (row["topic"], row["offset"], row["reasons"]) for row in warehouse.read("quality.quarantine").collect()
        ],
        seed=seed,
    )


def read_in_all_ways(
    ways: Sequence[Way], seed: int
) -> tuple[dict[str, tuple[Capture, Way, Sequence[Record]]], Mapping[str, list[list[Record]]]]:
    """The cases, and the batches of every source."""
    cases: dict[str, tuple[Capture, Way, Sequence[Record]]] = {}
    batches: dict[str, list[list[Record]]] = {source: [] for source in KINDS}
    for capture in SMALL:
        for way in ways:
            if way is shuffled and capture.is_outbox:
                continue
            case = case_of(capture.name, way.__name__)
            records = capture.records(way.__name__)
            parts = way(records, Random(f"{seed} {case}"))  # noqa: S311
            cases[case] = capture, way, [record for part in parts for record in part]
            shared = batches[capture.source]
            shared += [[] for _ in range(len(parts) - len(shared))]
            for number, part in enumerate(parts):
                shared[number] += part
    return cases, batches


def apply_records(
    warehouse: Warehouse, contracts: Contracts, source: str, records: list[Record], number: int, *, folder: Path
) -> None:
    file = write(folder / f"{source}{number}.jsonl.gz", records)
    topics = {record["topic"]: record["topic"] for record in records}
    apply(warehouse, contracts, source, bronze_rows(warehouse.spark, file, topics=topics), number)


def rows_by_case(warehouse: Warehouse, contracts: Contracts, feed: str) -> Mapping[str, Sequence[Row]]:
    """The rows of a table, as text, in the order of partition and offset."""
    columns = [text_of(F.col(name), declared).alias(name) for name, declared in contracts.feeds[feed].columns.items()]
    told = warehouse.read(f"silver.{feed}").where(~F.col("_is_deleted")).orderBy("_partition", "_offset")
    found: dict[str, list[Row]] = defaultdict(list)
    for row in told.select(*columns, "_op").collect():
        values = row.asDict()
        found[values.pop(CASE)].append(values)
    return found


def audit_by_topic(warehouse: Warehouse) -> Mapping[str, Counter[str]]:
    sums = [F.sum(name).alias(name) for name in ("read", *OUTCOMES)]
    rows = warehouse.read("ops.batches").where("read IS NOT NULL").groupBy("topic").agg(*sums).collect()
    return {row["topic"]: Counter({name: row[name] for name in ("read", *OUTCOMES)}) for row in rows}


def of_kind(*, outbox: bool) -> list[Capture]:
    return [capture for capture in SMALL if capture.is_outbox is outbox]


def named(capture: Capture) -> str:
    return capture.name


@pytest.mark.parametrize("capture", of_kind(outbox=False), ids=named)
def test_silver_is_the_database_in_the_end(silver: Silver, of_captures: Contracts, capture: Capture) -> None:
    suffix = AS_TEXT if capture.as_text else ""
    differing: dict[tuple[str, str], Differences] = {}
    for table in set(final_tables(capture.final)) - {"orders_nopk"}:
        feed = feed_of(of_captures, capture, f"{table}{suffix}")
        # Some of the recorded tables never had the column.
        absent = {name: None for name, declared in feed.columns.items() if declared.optional}
        truth = final_rows(capture.final, table, kind=capture.kind)
        expected = with_known_differences({key: {**absent, **row} for key, row in truth.items()}, capture, table)
        for case, _way in silver.of(capture):
            rows = [without_op(row) for row in silver.rows[feed.name][case]]
            differing[table, case] = differences(by_key(rows), expected)
    assert not said(differing), f"CAPTURES_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", of_kind(outbox=True), ids=named)
def test_silver_is_what_the_outbox_table_tells(silver: Silver, of_captures: Contracts, capture: Capture) -> None:
    differing: dict[tuple[str, str], Differences] = {}
    for aggregate_type in ("orders", "customers"):
        feed = feed_of(of_captures, capture, f"outbox_{aggregate_type}")
        columns = tuple(column for column in feed.columns if column != CASE)
        expected = dict(final_events(capture.final, aggregate_type, columns))
        if aggregate_type == "orders":
            assert not expected.keys() & KNOWN_EVENTS
            expected |= {key: {**dict.fromkeys(columns), "order_id": key, **row} for key, row in KNOWN_EVENTS.items()}
        for case, _way in silver.of(capture):
            rows = [without_op(row) for row in silver.rows[feed.name][case]]
            differing[aggregate_type, case] = differences(by_key(rows), expected)
    assert not said(differing), f"CAPTURES_SEED={silver.seed}: {said(differing)}"


@pytest.mark.parametrize("capture", [one for one in of_kind(outbox=False) if "ordering" not in one.name], ids=named)
def test_a_table_without_a_key_is_the_list_of_its_changes(
    silver: Silver, of_captures: Contracts, capture: Capture
) -> None:
    table = f"orders_nopk{AS_TEXT if capture.as_text else ''}"
    expected = events_without_a_key(capture, table)
    assert {event["_op"] for event in expected} >= (
        {"r", "c"} if capture.name in ONLY_INSERTS else {"r", "c", "u", "d"}
    )
    feed = feed_of(of_captures, capture, table)
    assert {case: list(silver.rows[feed.name][case]) for case, _way in silver.of(capture)} == {
        case: expected for case, _way in silver.of(capture)
    }, f"CAPTURES_SEED={silver.seed}"


def test_every_record_has_one_outcome(silver: Silver) -> None:
    read = Counter(record["topic"] for _capture, _way, records in silver.cases.values() for record in records)
    assert {topic: counted["read"] for topic, counted in silver.audit.items()} == read
    wrong = {
        topic: counted
        for topic, counted in silver.audit.items()
        if counted["read"] != sum(counted[outcome] for outcome in OUTCOMES)
    }
    assert not wrong, f"CAPTURES_SEED={silver.seed}"


def test_records_that_tell_of_no_row_are_ignored(silver: Silver) -> None:
    for capture, way, records in silver.cases.values():
        for name in ("heartbeats", "transactions", "schema_changes"):
            topic = topic_of(capture.name, way.__name__, name)
            read = sum(record["topic"] == topic for record in records)
            assert silver.audit.get(topic, Counter()) == Counter(read=read, ignored=read)


def test_nothing_is_quarantined(silver: Silver) -> None:
    assert silver.quarantined == [], f"CAPTURES_SEED={silver.seed}"


# In one batch only: of several, each counts what it knew.
@pytest.mark.parametrize("silver", [pytest.param(QUICK, id="quick")], indirect=True, scope="module")
@pytest.mark.parametrize("capture", of_kind(outbox=False), ids=named)
def test_changes_that_a_connector_sent_again_are_counted(silver: Silver, capture: Capture) -> None:
    for table in ("orders", "orders_nopk", "orders_trunc", "orders_types"):
        name = f"{table}{AS_TEXT if capture.as_text else ''}"
        counted = silver.audit.get(topic_of(capture.name, one_batch.__name__, name), Counter())
        repeated = 122 if "restart" in capture.name and table == "orders" else 0
        assert (counted["duplicate"], times_sent_again(capture, name)) == (repeated, repeated), name


@pytest.mark.parametrize("capture", ["pg_default", "pg_schema-include", "mysql", "mysql_schema-include"])
def test_records_that_tell_of_no_row_are_ignored_in_the_topic_of_a_feed_too(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, capture: str
) -> None:
    (of,) = [one for one in SMALL if one.name == capture]
    (topic,) = contracts.feeds[f"{of.source}_orders"].topics
    strange = [record for record in read(of.file) if of.table_of(record["topic"]) is None]
    assert {one["topic"].rpartition(".")[2] for one in strange} >= {"transaction"}
    records = [{**record, "topic": topic, "offset": offset} for offset, record in enumerate([*strange, MESSAGE])]
    warehouse = empty_silver()
    apply_records(warehouse, contracts, of.source, records, 0, folder=tmp_path)
    assert warehouse.read("quality.quarantine").isEmpty()
    assert audit_by_topic(warehouse) == {topic: Counter(read=len(records), ignored=len(records))}


# A logical decoding message, as PostgreSQL's connector sends it.
MESSAGE = {
    "partition": 0,
    "timestamp": 1_795_251_000_000,
    "key": '{"prefix":"audit"}',
    "value": (
        '{"op":"m","ts_ms":1795251000000,"source":{"connector":"postgresql","name":"pg","ts_ms":1795251000000,'
        '"snapshot":"false","sequence":"[null,\\"31908208\\"]","lsn":31908208,"schema":"","table":""},'
        '"message":{"prefix":"audit","content":"eyJhIjoxfQ=="}}'
    ),
    "headers": [],
}
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
