"""Every directory here is a scenario: the records of `events.jsonl` must lead to the expected files beside them.

why.md                  the story, and the rule that it is about
events.jsonl            the Kafka records in the order they are read, one a line, in the form of the recordings
silver.<feed>.jsonl     the live rows of that feed's table; decimals and times as text
deleted.<feed>.jsonl    the keys of the rows that are kept as deleted
quarantine.jsonl        topic, partition, offset and reasons of every record that goes to quarantine

The order of lines matters in `events.jsonl` alone, and a file that is absent expects nothing there. All scenarios share
one warehouse: each is a shard of every feed, with topics of its own. They are read in one batch, then the same batch
again, and in many batches; and the rows of the first are derived anew from all events, by the definition of silver.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from demo.check import as_text
from lakehouse.contracts.models import Contracts, Expectation, Gate
from lakehouse.contracts.tables import SilverTable
from lakehouse.contracts.topics import FeedTopics
from lakehouse.spark.tables import Warehouse
from silver.apply import ensure_tables
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.sharded import CASE, sharded, topic_of
from tests.support.silver import apply as apply_batch
from tests.support.silver import derive_anew

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCENARIOS = sorted(file.parent for file in Path(__file__).parent.glob("*/events.jsonl"))
MOST_BATCHES = 4
KEYLESS = "_event_id"
# The packaged contracts' topics.
TOPICS = {
    "postgres_orders": "postgres_prod_tables.public.orders",
    "postgres_outbox_orders": "outbox.event.postgres.orders",
    "plain_orders": "plain.orders",
    "keyless_orders": "postgres_prod_tables.public.orders_nopk",
    "mysql_orders": "mysql_prod_tables.ecommerce.orders",
    "mysql_outbox_orders": "outbox.event.mysql.orders",
}
WITH_POSITIONS = ("postgres_orders", "mysql_orders")
TOGETHER = ("one batch", "the same batch twice")
APART = "many batches"
WAYS = (*TOGETHER, pytest.param(APART, marks=pytest.mark.slow))

# A rule about a column that some events lack.
NOTED = Expectation(
    name="noted",
    type="expect_column_values_to_not_be_null",
    kwargs={"column": "note", "row_condition": "order_id BETWEEN 5300 AND 5399", "condition_parser": "spark"},
    on_failure="quarantine",
    description="An order of this table has a note.",
    feeds=("plain_orders",),
)

Line = dict[str, Any]
# The lines of each file of a scenario, by the file's name.
Files = Mapping[str, Sequence[Line]]


@dataclass(frozen=True)
class Outcome:
    """What all scenarios together have led to."""

    silver: Mapping[str, Sequence[Line]]
    quarantine: Sequence[Line]
    audit: Sequence[Line]

    def of(self, scenario: Path) -> Files:
        """The part of one scenario, in the form of its files."""
        files = {}
        for feed, rows in self.silver.items():
            own = [row for row in rows if row[CASE] == scenario.name]
            files[f"silver.{feed}.jsonl"] = [_without(row) for row in own if not row["_is_deleted"]]
            files[f"deleted.{feed}.jsonl"] = [{"order_id": row["order_id"]} for row in own if row["_is_deleted"]]
        files["quarantine.jsonl"] = [
            {**entry, "topic": TOPICS[entry["topic"].split(".")[2]]}
            for entry in self.quarantine
            if entry["topic"].split(".")[1] == scenario.name
        ]
        return {name: _sorted(lines) for name, lines in files.items() if lines}


@pytest.fixture(scope="module")
def cases(contracts: Contracts) -> Contracts:
    """The packaged contracts, a feed that goes by Kafka's offsets (of 2,000 bytes at most), and one without a key."""
    orders = vars(contracts.silver.tables["postgres_orders"])
    few = {name: orders["columns"][name] for name in ("order_id", "status", "total_amount")}
    tables = {
        **contracts.silver.tables,
        "plain_orders": SilverTable.model_validate({**orders, "sequence_by": "kafka_offset", "max_record_bytes": 2000}),
        "keyless_orders": SilverTable.model_validate({**orders, "keys": (), "append_only": True, "columns": few}),
    }
    postgres = contracts.topics.sources["postgres"]
    outbox = postgres.feeds["postgres_outbox_orders"].model_copy(update={"aggregate_types": ("orders",)})
    more = {
        name: FeedTopics(topics=(TOPICS[name],), tables=("public.orders",), envelope="table")
        for name in ("plain_orders", "keyless_orders")
    }
    feeds = {**postgres.feeds, "postgres_outbox_orders": outbox, **more}
    sources = {**contracts.topics.sources, "postgres": postgres.model_copy(update={"feeds": feeds})}
    packaged = contracts.silver_gate
    gate = packaged.model_copy(
        update={"feeds": (*packaged.feeds, "plain_orders"), "expectations": (*_of_feeds(packaged), NOTED)}
    )
    changed = {
        "silver": contracts.silver.model_copy(update={"tables": tables}),
        "topics": contracts.topics.model_copy(update={"sources": sources}),
        "silver_gate": gate,
    }
    return sharded(contracts.model_copy(update=changed))


def _of_feeds(gate: Gate) -> Iterable[Expectation]:
    """The gate's rules, each with the feeds that it is about."""
    return [rule.model_copy(update={"feeds": rule.feeds or gate.feeds}) for rule in gate.expectations]


@pytest.fixture(scope="module")
def read(request: pytest.FixtureRequest) -> Sequence[Path]:
    """The scenarios that are read: those of the tests that were chosen (`pytest -k truncate`)."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {given["scenario"] for given in parameters if "scenario" in given}
    return sorted(chosen) or SCENARIOS


Apply = Callable[[Warehouse, Iterable[int], Callable[[int, int], int]], Outcome]


@pytest.fixture(scope="module")
def apply(
    spark: SparkSession, cases: Contracts, read: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> Apply:
    """Applies the scenarios' records to a warehouse in batches of these numbers, each record in the one chosen."""
    folder = tmp_path_factory.mktemp("batches")

    def apply(warehouse: Warehouse, batches: Iterable[int], chosen: Callable[[int, int], int]) -> Outcome:
        def apply_source(source: str) -> None:
            feeds = cases.topics.sources[source].feeds
            records = _batches(read, [TOPICS[feed] for feed in feeds], chosen)
            for batch in batches:
                if not records[batch]:
                    continue
                file = folder / f"{source}-{batch}.jsonl"
                file.write_text("".join(f"{json.dumps(record)}\n" for record in records[batch]), encoding="utf-8")
                topics = {record["topic"]: record["topic"] for record in records[batch]}
                apply_batch(warehouse, cases, source, bronze_rows(spark, file, topics=topics), batch)

        with ThreadPoolExecutor() as pool:
            list(pool.map(apply_source, cases.topics.sources))
        return _outcome(warehouse, cases)

    return apply


@pytest.fixture(scope="module")
def empty(spark: SparkSession, cases: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Warehouse]:
    """Makes warehouses without a row."""

    def make() -> Warehouse:
        folder = tmp_path_factory.mktemp("warehouse")
        warehouse = Warehouse(spark, str(folder), str(folder / "_checkpoints"))
        ensure_tables(warehouse, cases)
        return warehouse

    return make


@dataclass(frozen=True)
class Anew:
    """The tables before and after all of their rows were derived anew, and how many records came to which outcome.

    `moved`: how many records were found damaged that were not known to be.
    """

    before: Mapping[str, Counter[str]]
    after: Mapping[str, Counter[str]]
    outcomes: Counter[tuple[str, int, str]]
    moved: int


@dataclass(frozen=True)
class Together:
    """A warehouse that was told all records in one batch, and the same batch once more; what came of each."""

    warehouse: Warehouse
    outcomes: Mapping[str, Outcome]


@pytest.fixture(scope="module")
def together(apply: Apply, empty: Callable[[], Warehouse]) -> Together:
    """What came of all records in one batch, and of the same batch once more."""
    warehouse = empty()
    results = (apply(warehouse, [0], lambda _number, _count: 0), apply(warehouse, [1], lambda _number, _count: 1))
    return Together(warehouse, dict(zip(TOGETHER, results, strict=True)))


@pytest.fixture(scope="module")
def anew(together: Together, cases: Contracts) -> Anew:
    """What came of deriving all rows anew after that."""
    warehouse = together.warehouse
    before, outcomes, moved = _whole_rows(warehouse, cases), Counter[tuple[str, int, str]](), 0
    for source in cases.topics.sources:
        of_source = derive_anew(warehouse, cases, source)
        outcomes.update(of_source.outcomes)
        moved += of_source.moved
    return Anew(before, _whole_rows(warehouse, cases), outcomes, moved)


@pytest.fixture(scope="module")
def apart(apply: Apply, empty: Callable[[], Warehouse]) -> Outcome:
    """What came of the records of every scenario in several batches."""
    return apply(empty(), range(MOST_BATCHES), lambda number, count: number * MOST_BATCHES // max(count, MOST_BATCHES))


@pytest.fixture
def outcome(way: str, request: pytest.FixtureRequest) -> Outcome:
    """What came of reading the scenarios in this way."""
    if way == APART:
        found: Outcome = request.getfixturevalue("apart")
        return found
    both: Together = request.getfixturevalue("together")
    return both.outcomes[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_records_lead_to_the_expected_files(outcome: Outcome, scenario: Path) -> None:
    actual, expected = outcome.of(scenario), _expected(scenario)
    assert actual.keys() == expected.keys()
    for name, lines in expected.items():
        assert actual[name] == lines, name


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
def test_every_record_is_accounted_for(outcome: Outcome, read: Sequence[Path]) -> None:
    counted: Counter[tuple[str, int]] = Counter()
    for entry in outcome.audit:
        kinds = [entry[outcome] for outcome in OUTCOMES]
        assert sum(kinds) == entry["read"], entry
        counted[entry["topic"], entry["partition"]] += entry["read"]
    records = [record for scenario in read for record in _records(scenario, list(TOPICS.values()))]
    assert counted == Counter((record["topic"], record["partition"]) for record in records)


def test_a_row_derived_anew_from_all_its_events_is_the_same(anew: Anew) -> None:
    assert sum(sum(rows.values()) for rows in anew.before.values()) > len(SCENARIOS)
    for table, rows in anew.before.items():
        assert anew.after[table] == rows, table
    assert not anew.moved, "what is damaged was found by the batch"


def test_an_event_folded_by_definition_comes_to_the_same_outcome(
    anew: Anew, together: Together, read: Sequence[Path]
) -> None:
    records = [record for scenario in read for record in _records(scenario, list(TOPICS.values()))]
    # A truncate has no key, and is folded with none.
    left_out = {record["topic"] for record in records if _is_truncate(record)}
    kinds = ("applied", "superseded", "duplicate", "tombstone")
    by_batch = {
        (entry["topic"], entry["partition"], kind): entry[kind]
        for entry in together.outcomes[TOGETHER[0]].audit
        for kind in kinds
        if entry[kind] and entry["topic"] not in left_out and entry["feed"] in WITH_POSITIONS
    }
    folded = {of: number for of, number in anew.outcomes.items() if of[2] in kinds and of[0] not in left_out}
    assert by_batch
    assert folded == by_batch


def test_every_scenario_says_why() -> None:
    assert [scenario.name for scenario in SCENARIOS if not (scenario / "why.md").read_text().strip()] == []


def _batches(
    scenarios: Sequence[Path], topics: Sequence[str], chosen: Callable[[int, int], int]
) -> Mapping[int, Sequence[Line]]:
    """The records of the topics by batch; `chosen` gives the batch of a scenario's n-th record of so many."""
    batches: dict[int, list[Line]] = defaultdict(list)
    for scenario in scenarios:
        records = _records(scenario, topics)
        for number, record in enumerate(records):
            batches[chosen(number, len(records))].append(record)
    return batches


def _records(scenario: Path, topics: Sequence[str]) -> Sequence[Line]:
    """The scenario's records of these topics, in topics that no other scenario has."""
    feed_of = {topic: feed for feed, topic in TOPICS.items()}
    records = [record for record in _lines(scenario / "events.jsonl") if record["topic"] in topics]
    return [{**record, "topic": topic_of(scenario.name, feed_of[record["topic"]])} for record in records]


def _expected(scenario: Path) -> Files:
    return {file.name: _sorted(_lines(file)) for file in scenario.glob("*.jsonl") if file.name != "events.jsonl"}


def _lines(file: Path) -> list[Line]:
    # Not splitlines: text in JSON may hold other characters that end lines.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _sorted(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: json.dumps(line, sort_keys=True))


def _outcome(warehouse: Warehouse, contracts: Contracts) -> Outcome:
    return Outcome(
        silver={
            feed: _silver_rows(warehouse.read(f"silver.{feed}"), list(declared.columns))
            for feed, declared in contracts.feeds.items()
        },
        quarantine=[
            row.asDict()
            for row in warehouse.read("quality.quarantine")
            .where("state = 'open'")
            .select("topic", "partition", "offset", "reasons")
            .collect()
        ],
        audit=[row.asDict() for row in warehouse.read("ops.batches").where("read IS NOT NULL").collect()],
    )


def _is_truncate(record: Line) -> bool:
    return record["key"] is None and '"t"' in (record["value"] or "")


def _whole_rows(warehouse: Warehouse, contracts: Contracts) -> Mapping[str, Counter[str]]:
    """The rows of each table, with all their columns but when they were applied."""
    tables = {feed: warehouse.read(f"silver.{feed}").drop("_applied_at") for feed in contracts.feeds}
    return {
        feed: Counter(row["row"] for row in table.select(F.to_json(F.struct("*")).alias("row")).collect())
        for feed, table in tables.items()
    }


def _silver_rows(table: DataFrame, columns: list[str]) -> list[Line]:
    # One row a key; of a table without one, one a record.
    rows = table.withColumn(
        "id", F.concat_ws(" ", CASE, "order_id", *(["_event_id"] if KEYLESS in table.columns else []))
    )
    told = [name for name in (*columns, "_is_deleted", KEYLESS, "_unresolved_columns", "_op") if name in table.columns]
    return [dict(row) for row in as_text(rows, ["id", *told], key="id").values()]


def _without(row: Line) -> Line:
    """The row without its case and what it is from; with its columns that are not resolved, or its operation."""
    told = {name: value for name, value in row.items() if not name.startswith("_") and name not in {CASE, "id"}}
    unresolved = {"_unresolved_columns": row["_unresolved_columns"]} if row.get("_unresolved_columns") else {}
    return {**told, **unresolved, **({"_op": row["_op"]} if KEYLESS in row else {})}
