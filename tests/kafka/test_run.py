"""The whole flow on a real broker: what a first run leaves, that a second changes nothing, and that news arrive.

The runs after the first are those of `lakehouse run`, which begin when something has come or changed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from rich.console import Console

from bronze import ingest
from bronze.events import events_table
from bronze.ingest import append_batch
from cli.jobs import JOBS, RunContext, run_jobs
from demo.__main__ import DATA, RECORDINGS, contracts_of_recordings
from demo.check import compacted_view, read_topic, topic_differences
from demo.replay import replay
from lakehouse.batches import BATCHES
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TopicMissingError
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps
from monitoring.explain import Explanation, explain
from monitoring.readings import warehouse as seen
from monitoring.readings.freshness import freshness, read_times
from monitoring.readings.passes import last_passes
from monitoring.readings.tables import DeltaFiles, SparkTables, Tables
from silver.order.state import OUTCOMES
from tests.support.recordings import per_partition, read, write
from tests.support.unchanged import run_or_not

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TABLES = (
    *("bronze.postgres_events", "bronze.mysql_events"),
    *("silver.postgres_orders", "silver.mysql_orders", "silver.postgres_outbox_orders", "silver.mysql_outbox_orders"),
    *("gold.unified_orders", "gold.orders_daily", "quality.quarantine", "quality.results"),
    *("ops.batches", "ops.outbox_events"),
)
FIRST = 250  # records a partition that are there for the first run; as many come later


class EndedError(Exception):
    """A run was ended before its first job."""


def end_it() -> None:
    raise EndedError


@dataclass(frozen=True)
class Flow:
    """The flow after its first run."""

    warehouse: Warehouse
    chosen: Settings
    contracts: Contracts
    sent: Counter[str]

    def work(self, run_id: str, contracts: Contracts | None = None) -> RunContext:
        known = partitions(self.chosen.kafka())
        own = contracts or self.contracts
        return RunContext(self.warehouse.spark, self.chosen, own, Steps(Console(quiet=True)), known, run_id)

    def dry_run(self, *names: str) -> Mapping[str, Any]:
        """What the jobs of these names, or all, say that they would do."""
        outcome = run_jobs(names or tuple(JOBS), self.work("dry"), dry_run=True)
        assert outcome.failures == []
        return outcome.results

    def run(self, run_id: str, contracts: Contracts | None = None) -> Mapping[str, Any]:
        """The results of a run that begins, because something has come or changed, and says how it leaves things."""
        outcome = run_or_not(self.work(run_id, contracts), before_each=None)
        assert outcome.failures == []
        assert outcome.results["nothing_new"] is False
        assert {*JOBS} < {*outcome.results}
        return outcome.results

    def begins(self, contracts: Contracts | None = None, names: Sequence[str] = tuple(JOBS)) -> bool:
        """Whether a run of these jobs would begin now; it is ended before its first job."""
        try:
            outcome = run_or_not(self.work("begins", contracts), names, before_each=end_it)
        except EndedError:
            return True
        assert outcome.failures == []
        assert outcome.results == {"nothing_new": True}
        return False

    def versions(self) -> dict[str, int]:
        return {table: self.warehouse.version(table) for table in TABLES}

    def topic(self) -> list[tuple[bytes, bytes | None]]:
        return list(read_topic(self.chosen.kafka().bootstrap_servers, self.contracts.gold.unified_topic.topic))


def produce(bootstrap_servers: str, folder: Path, *, first: bool) -> Counter[str]:
    """The first or the second FIRST records of every partition of the demo's recordings."""
    sent: Counter[str] = Counter()
    start = 0 if first else FIRST
    for name, topics in RECORDINGS.items():
        records = [record for record in read(DATA / f"{name}.jsonl.gz") if record["topic"] in topics]
        part = per_partition(records, lambda number: start <= number < start + FIRST)
        present = {record["topic"] for record in part}
        if not part:
            continue
        cut = write(folder / f"{name}-{start}.jsonl.gz", part)
        sent.update(replay(bootstrap_servers, cut, topics={k: v for k, v in topics.items() if k in present}))
    return sent


@pytest.fixture(scope="module")
def flow(
    spark: SparkSession, bootstrap_servers: str, contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("flow")
    sent = produce(bootstrap_servers, folder, first=True)
    chosen = settings(warehouse=str(folder / "warehouse"), bootstrap_servers=bootstrap_servers)
    own = contracts_of_recordings(contracts)
    flow = Flow(Warehouse(spark, chosen.warehouse, chosen.checkpoints), chosen, own, sent)
    assert run_jobs(tuple(JOBS), flow.work("first")).failures == []
    yield flow
    shutil.rmtree(folder)


def test_bronze_holds_every_record_as_kafka_has_it(flow: Flow) -> None:
    for source, contract in flow.contracts.topics.sources.items():
        rows = flow.warehouse.read(f"bronze.{source}_events")
        for topic in contract.topic_names:
            stored = rows.where(F.col("topic") == topic).select("key", "value", "offset", "partition").collect()
            in_kafka = list(read_topic(flow.chosen.kafka().bootstrap_servers, topic))
            assert len(stored) == len(in_kafka) == flow.sent[topic]
            ordered = sorted(stored, key=lambda row: (row["partition"], row["offset"]))
            assert [(bytes(row["key"]), _bytes(row["value"])) for row in ordered] == in_kafka


def test_headers_and_the_kind_of_timestamp_reach_bronze(flow: Flow) -> None:
    rows = flow.warehouse.read("bronze.mysql_events").where("topic = 'outbox.event.mysql.orders'")
    names = {header["key"] for row in rows.select("headers").collect() for header in row["headers"]}
    assert {"id", "eventType", "__debezium.context.runId"} <= names
    assert rows.where("timestamp_type = 0 AND year(timestamp) = 2026").count() == rows.count()


def test_every_record_read_is_accounted_for(flow: Flow) -> None:
    audit = flow.warehouse.read("ops.batches").where("read IS NOT NULL")
    assert audit.where(f"read != {' + '.join(OUTCOMES)}").count() == 0
    read_by_topic = {row["topic"]: row["n"] for row in audit.groupBy("topic").agg(F.sum("read").alias("n")).collect()}
    assert read_by_topic == dict(flow.sent)


def test_with_and_without_spark_the_tables_say_the_same(flow: Flow) -> None:
    """What status, doctor and explain ask of the tables is of the SQL that Spark and delta-rs share."""
    now, contracts = datetime.now(UTC), flow.contracts
    since = now - timedelta(days=1)
    asked: dict[str, Callable[[Tables], object]] = {
        "bronze_offsets": seen.bronze_offsets,
        "pending_for_silver": seen.pending_for_silver,
        "records": seen.records,
        "suspended_tables": seen.suspended_tables,
        "passes": lambda tables: last_passes(tables, since=since),
        "quarantine": lambda tables: seen.quarantine(tables, now=now),
        "undecodable": seen.undecodable,
        "gates": seen.gates,
        "last_written": seen.last_written,
        "behind_of_gold": lambda tables: seen.behind_of_gold(tables, contracts),
        "reads": read_times,
        "freshness": lambda tables: freshness(tables, contracts, since=since, reads=read_times(tables)),
        "explain": lambda tables: without_commit_times(explain(tables, contracts, composite_key)),
    }
    composite_key = flow.warehouse.read("gold.unified_orders").agg(F.min("composite_key")).collect()[0][0]
    without, with_spark = DeltaFiles(flow.chosen.address), SparkTables(flow.warehouse)
    for name, ask in asked.items():
        said = ask(without)
        assert ask(with_spark) == said, name
        assert said or name in {"pending_for_silver", "suspended_tables", "undecodable"}, name
    for table in TABLES:
        facts, same = without.facts(table), with_spark.facts(table)
        assert (facts.version, facts.files, facts.bytes) == (same.version, same.files, same.bytes), table
        commits = [[replace(one, at=now) for one in tables.commits(table, limit=5)] for tables in (without, with_spark)]
        assert commits[0] == commits[1], table


def test_the_newest_rows_of_a_catalog_are_found_by_their_times(flow: Flow) -> None:
    tables, events = SparkTables(flow.warehouse), flow.warehouse.read("bronze.mysql_events")
    count = events.count()
    since = tables.newest_since("bronze.mysql_events", "timestamp", rows=count // 2)
    newer = events.where(F.col("timestamp") >= F.lit(since)).count()
    assert count * 0.4 < newer < count * 0.6
    assert tables.newest_since("bronze.mysql_events", "timestamp", rows=count) is None


def without_commit_times(found: Explanation) -> Explanation:
    """delta-rs takes the time of a commit from the log, Spark that of its file."""
    versions = {
        feed: [{name: value for name, value in row.items() if name != "_commit_timestamp"} for row in rows]
        for feed, rows in found.versions.items()
    }
    return replace(found, versions=versions)


def test_the_topic_is_gold(flow: Flow) -> None:
    topic = flow.contracts.gold.unified_topic.topic
    assert topic_differences(flow.warehouse, bootstrap_servers=flow.chosen.kafka().bootstrap_servers, topic=topic) == []
    assert len(compacted_view(flow.chosen.kafka().bootstrap_servers, topic)) > 0


def test_a_second_run_changes_no_table_and_publishes_nothing(flow: Flow) -> None:
    """It begins, since no run has said yet how it left things; that is all that it writes."""
    versions, topic = flow.versions(), flow.topic()
    flow.run("second")
    assert flow.versions() == {**versions, "ops.batches": versions["ops.batches"] + 1}
    assert flow.topic() == topic


def test_a_run_without_news_begins_no_job(flow: Flow) -> None:
    versions, jobs = flow.versions(), last_job(flow.warehouse.spark)
    assert not flow.begins()
    assert last_job(flow.warehouse.spark) == jobs
    assert flow.versions() == versions
    assert sum(flow.dry_run("bronze")["bronze"]["pending_records"].values()) == 0
    for name in JOBS:
        assert not flow.begins(names=[name]), f"{name} alone has nothing to do either"


def test_a_repeated_batch_is_appended_once(flow: Flow, warehouse: Warehouse) -> None:
    batch = flow.warehouse.read("bronze.mysql_events").limit(3).withColumnRenamed("timestamp_type", "timestampType")
    for spec in (events_table("mysql"), BATCHES):
        warehouse.ensure(spec)
    # The stream writes its plan down before the batch begins.
    shutil.copytree(f"{flow.chosen.checkpoints}/bronze/mysql", f"{warehouse.checkpoints}/bronze/mysql")
    for _ in range(2):
        append_batch(
            batch,
            0,
            source="mysql",
            job="bronze/mysql",
            sequence=0,
            topic_ids={},
            read_again={},
            address=warehouse.address,
        )
    assert warehouse.read("bronze.mysql_events").count() == 3


def test_a_missing_topic_stops_its_source_alone(flow: Flow, tmp_path: Path) -> None:
    known = dict(partitions(flow.chosen.kafka()))
    del known["outbox.event.mysql.orders"]
    elsewhere = settings(warehouse=str(tmp_path / "warehouse"), bootstrap_servers=flow.chosen.kafka().bootstrap_servers)
    warehouse = Warehouse(flow.warehouse.spark, elsewhere.warehouse, elsewhere.checkpoints)
    with pytest.raises(TopicMissingError, match=r"outbox\.event\.mysql\.orders"):
        ingest.run(warehouse.spark, elsewhere, flow.contracts.topics, known=known)
    assert warehouse.read("bronze.postgres_events").count() > 0
    assert warehouse.read("bronze.mysql_events").count() == 0


def test_a_dry_run_changes_nothing_and_says_what_waits(flow: Flow, tmp_path: Path) -> None:
    assert not flow.begins()
    versions, topic = flow.versions(), flow.topic()
    came = produce(flow.chosen.kafka().bootstrap_servers, tmp_path, first=False)
    results = flow.dry_run()
    assert flow.versions() == versions
    assert flow.topic() == topic
    assert set(results) == {"bronze", "silver", "gold", "publish"}
    assert sum(results["bronze"]["pending_records"].values()) == came.total() > 0
    assert results["silver"]["pending_records"] == {"postgres": 0, "mysql": 0}
    assert results["gold"]["pending_orders"] == {"postgres": 0, "mysql": 0}
    assert results["publish"]["pending_records"] == 0


def test_news_reach_the_topic_once(flow: Flow) -> None:
    versions, before = flow.versions(), flow.topic()
    waiting = flow.dry_run("bronze")["bronze"]["pending_records"]
    new = flow.run("news")["bronze"]["new_records"]
    assert sum(new.values()) == sum(waiting.values()) > 0
    news = Counter(flow.topic()) - Counter(before)
    keys = [key for key, _value in news.elements()]
    assert 0 < len(keys) == len(set(keys))
    assert flow.versions()["gold.unified_orders"] > versions["gold.unified_orders"]
    topic = flow.contracts.gold.unified_topic.topic
    assert topic_differences(flow.warehouse, bootstrap_servers=flow.chosen.kafka().bootstrap_servers, topic=topic) == []
    assert not flow.begins()


def other_contracts(flow: Flow) -> Contracts:
    """The contracts with one rule of the publication only."""
    gate = flow.contracts.gold_gate.model_copy(update={"publication": flow.contracts.gold_gate.publication[:1]})
    return flow.contracts.model_copy(update={"gold_gate": gate})


def test_a_run_begins_when_contracts_or_tables_have_changed(flow: Flow) -> None:
    others = other_contracts(flow)
    assert flow.begins(others)
    assert not flow.begins()
    by_hand = flow.warehouse.sql_name("gold.orders_daily")
    flow.warehouse.spark.sql(f"ALTER TABLE {by_hand} SET TBLPROPERTIES ('a' = 'b')")
    assert flow.begins(), "a commit by hand"
    flow.run("other contracts", others)
    assert not flow.begins(others)
    assert flow.begins(), "the contracts are the former ones again"
    looks = read_times(DeltaFiles(flow.chosen.address)).looks
    assert looks == read_times(SparkTables(flow.warehouse)).looks
    assert {topic for topic, _partition in looks} >= set(flow.contracts.topics.sources["postgres"].topic_names)


def test_without_its_checkpoint_bronze_reads_nothing_twice(flow: Flow) -> None:
    rows, topic = flow.warehouse.read("bronze.postgres_events").count(), flow.topic()
    shutil.rmtree(f"{flow.chosen.checkpoints}/bronze/postgres")
    outcome = run_jobs(tuple(JOBS), flow.work("without a checkpoint", other_contracts(flow)))
    assert (outcome.failures, outcome.results["silver"]["read"]) == ([], 0)
    assert flow.warehouse.read("bronze.postgres_events").count() == rows
    assert flow.topic() == topic


def last_job(spark: SparkSession) -> int:
    """How many jobs Spark has begun."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
