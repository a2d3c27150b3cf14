"""A deployment without unified orders, from the topics to an upsert topic: every job and command works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from rich.console import Console

from cli import running
from cli.jobs import JOBS, RunContext, RunOutcome, run_jobs
from cli.main import main
from lakehouse.batches import mark_format
from lakehouse.config import Settings, settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import NO_UNIFIED, Contracts, GoldTables
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import client_config, partitions
from lakehouse.kafka.log import committed_records
from lakehouse.process.steps import Steps
from tests.support.events import change, compact, mysql_source, run_headers
from tests.support.shop import create, delete
from tests.support.unchanged import run_or_not
from tests.support.unified import ITEMS, JOINED, UPSERT, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@dataclass(frozen=True)
class Flow:
    """Two tables of MySQL, and an upsert topic of one."""

    warehouse: Warehouse
    chosen: Settings
    contracts: Contracts
    folder: Path

    def send(self, table: str, *rows: tuple[str, int, int, str | None]) -> None:
        """The operation, the position, the row and its name; without a name the row is deleted."""
        (topic,) = self.contracts.topics.sources["shop"].feeds[table].topics
        producer = Producer(client_config(self.chosen.kafka()))
        for op, pos, key, name in rows:
            source = mysql_source(pos, table=table, db="shop")
            row = {"id": key, "name": name, **({"kind_id": 1} if table == "items" else {})}
            value = change(op, source, None if name is None else row, before=row if name is None else None)
            headers: list[tuple[str, str | bytes | None]] = [*run_headers("first", source=source)]
            producer.produce(topic, key=compact({"id": key}), value=value, headers=headers)
        assert producer.flush(30) == 0

    def work(self, run_id: str) -> RunContext:
        known = partitions(self.chosen.kafka())
        return RunContext(self.warehouse.spark, self.chosen, self.contracts, Steps(Console(quiet=True)), known, run_id)

    def run(self, run_id: str) -> RunOutcome:
        outcome = run_or_not(self.work(run_id), before_each=None)
        assert outcome.failures == []
        return outcome

    def published(self) -> dict[str, Any]:
        """The last value of every key."""
        topic = self.contracts.gold.upsert_topics["items"].topic
        records = committed_records(self.chosen.kafka(), topic)
        return {record.key.decode(): record.value and json.loads(record.value) for record in records}

    def options(self) -> list[str]:
        chosen = ["--contracts", str(self.folder), "--bootstrap-servers", self.chosen.kafka().bootstrap_servers]
        return [*chosen, "--warehouse", self.chosen.warehouse]


@pytest.fixture(scope="module")
def flow(spark: SparkSession, bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    own, folder = uuid4().hex, tmp_path_factory.mktemp("flow")
    topics = [f"{own}.{table}" for table in ("items", "kinds")]
    feeds = {topic.split(".")[1]: {"topics": [topic], "envelope": "table"} for topic in topics}
    upsert = {"items": {**UPSERT["items"], "topic": f"{own}.upsert"}}
    files = {
        **ITEMS,
        "bronze/topics.yaml": {"sources": {"shop": {"kind": "mysql", "feeds": feeds}}},
        "gold/tables.yaml": {"upsert_topics": upsert},
    }
    chosen = settings(warehouse=str(folder / "warehouse"), bootstrap_servers=bootstrap_servers)
    written(folder, files)
    contracts = load_contracts(folder / "contracts")
    for topic in topics:
        create(chosen.kafka(), topic, 1)
    flow = Flow(Warehouse(spark, chosen.warehouse, chosen.checkpoints), chosen, contracts, folder / "contracts")
    flow.send("items", ("c", 100, 1, "a"), ("u", 200, 1, "b"), ("c", 250, 2, "deleted later"))
    flow.send("kinds", ("c", 300, 1, "k"))
    yield flow
    known = partitions(chosen.kafka())
    delete(chosen.kafka(), *(topic for topic in known if topic.startswith(own)))


def test_a_dry_run_before_the_first_run_says_what_it_would_do(flow: Flow) -> None:
    outcome = run_jobs(tuple(JOBS), flow.work("dry"), dry_run=True)
    assert outcome.failures == []
    results = outcome.results
    assert results["gold"] == {"pending_orders": {}, "pending_joins": {}}
    assert results["publish"] == {"topic": None, "pending_records": None, "pending_in_upsert_topics": {"items": 0}}


def test_a_run_brings_what_is_there_to_the_upsert_topic(flow: Flow) -> None:
    before = {*partitions(flow.chosen.kafka())}
    mark_format(flow.warehouse)  # as a command does when it has the lock
    outcome = flow.run("first")
    assert outcome.results["silver"]["applied"] == 3
    assert outcome.results["gold"]["changed_orders"] == 0
    assert outcome.results["publish"]["topic"] is None
    assert outcome.results["publish"]["upsert_topics"]["items"]["sent"] == 2
    assert flow.published() == {
        '{"id":1}': {"id": 1, "name": "b", "kind_id": 1},
        '{"id":2}': {"id": 2, "name": "deleted later", "kind_id": 1},
    }
    for table in ("gold.unified_orders", "gold.orders_daily"):
        assert not flow.warehouse.exists(table)
    (topic,) = flow.contracts.gold.upsert_topics.values()
    created = {name for name in partitions(flow.chosen.kafka()) if name not in before and not name.startswith("__")}
    assert created == {topic.topic, topic.progress_topic}


def test_when_there_is_no_news_none_of_the_jobs_begins(flow: Flow) -> None:
    assert flow.run("unchanged").results == {"nothing_new": True}


def test_nor_does_the_command_start_spark(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_given: object, **_more: object) -> None:
        raise AssertionError("a session was started")

    monkeypatch.setattr(running, "opened", opened)
    main(["run", *flow.options(), "--json"])
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert (answer["ok"], answer["nothing_new"]) == (True, True)
    assert "nothing has come or changed since the last run" in said.err


def test_gold_without_anything_to_make_begins_no_job_and_publish_sends_nothing(flow: Flow) -> None:
    spark = flow.warehouse.spark
    spark.sparkContext.setJobGroup("gold alone", "counted")
    outcome = run_jobs(("gold",), flow.work("gold"))
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("gold alone")
    spark.sparkContext.setJobGroup("", "")
    assert outcome.failures == []
    assert list(jobs) == []
    outcome = run_jobs(("publish",), flow.work("publish"))
    assert outcome.failures == []
    assert outcome.results["publish"]["upsert_topics"]["items"]["sent"] == 0


def test_joins_need_no_unified_orders(flow: Flow) -> None:
    gold = GoldTables.model_validate({"joins": JOINED})
    joined = replace(flow, contracts=flow.contracts.model_copy(update={"gold": gold}))
    written_rows = [run_jobs(("gold",), joined.work(run)).results["gold"]["joins"]["written"] for run in ("a", "b")]
    assert written_rows == [{"items_with_kind": 2}, {"items_with_kind": 0}]
    (row,) = flow.warehouse.read("gold.items_with_kind").where("id = 1").collect()
    assert row.asDict() == {"id": 1, "name": "b", "kind": "k"}
    assert not flow.warehouse.exists("gold.unified_orders")


def test_news_follow_and_a_delete_is_a_null(flow: Flow, capfd: pytest.CaptureFixture[str]) -> None:
    flow.send("items", ("u", 400, 1, "c"), ("d", 500, 2, None))
    main(["run", "--dry-run", "--json", *flow.options()])
    shown = capfd.readouterr()
    results = json.loads(shown.out)
    assert results["publish"]["pending_in_upsert_topics"] == {"items": 0}
    assert NO_UNIFIED in " ".join(shown.err.split())
    outcome = flow.run("second")
    assert outcome.results["publish"]["upsert_topics"]["items"]["sent"] == 2
    assert flow.published() == {'{"id":1}': {"id": 1, "name": "c", "kind_id": 1}, '{"id":2}': None}


SAID = {
    "gold": "nothing has come or changed since the last run",
    "gold --full-refresh": NO_UNIFIED,
    "publish --republish": NO_UNIFIED,
    "verify": NO_UNIFIED,
    "status": "no unified orders are made of it",
    "doctor": NO_UNIFIED,
    "quality report": "the gates have no rules",
    "quality audit": NO_UNIFIED,
    "optimize --dry-run": "silver.items",
    "purge --dry-run": "items",
    "report": "Report: ",
}


@pytest.mark.parametrize("command", SAID)
def test_every_command_works(flow: Flow, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metrics = tmp_path / "lakehouse.prom"
    more = {"report": ["--output", str(tmp_path / "report.html")], "gold": ["--metrics-file", str(metrics)]}
    with suppress(SystemExit):  # of doctor and status: there is no heartbeat
        main([*command.split(), *flow.options(), *more.get(command, [])])
    shown = capfd.readouterr()
    said = " ".join(f"{shown.out} {shown.err}".split())
    assert SAID[command] in said
    assert "Error" not in said
    assert "Traceback" not in said
    if command == "gold":
        text = metrics.read_text()
        assert 'lakehouse_stage_level{source="shop",stage="silver"} 0.0' in text
        assert 'stage="gold"' not in text, "the metrics have no stage of unified orders"
