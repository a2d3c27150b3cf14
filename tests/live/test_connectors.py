"""The packaged connectors, deployed by command on real servers, and their events all the way to the unified topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from cli.jobs import JOBS, RunContext, run_jobs
from connectors.cluster import settled
from demo.check import compacted_view
from demo.stack.offsets import delete_offsets, is_stopped, set_offset, stop
from demo.stack.stack import Stack
from demo.stack.topics import wait_for
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps, wide_console
from silver.rejects.quarantine import QUARANTINE
from tests.live.conftest import PACKAGED
from tests.support.brokers import plain_config
from tests.support.live.command import Command
from tests.support.live.dialects import insert
from tests.support.live.told import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live]

TABLE_TOPICS = ("postgres_prod_tables.public.orders", "mysql_prod_tables.ecommerce.orders")
OUTBOX_TOPICS = ("outbox.event.postgres.orders", "outbox.event.mysql.orders")
OUTBOX = "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload) VALUES"
ABSENT = ("customer_id", "product_id", "status", "created_at")


@dataclass(frozen=True)
class Flow:
    """The jobs on a warehouse that follows the packaged connectors."""

    stack: Stack
    spark: SparkSession
    contracts: Contracts
    location: str

    def run(self) -> Mapping[str, Mapping[str, Any]]:
        """Bronze to the topic; the value of every key on the topic then."""
        chosen = settings(warehouse=self.location, bootstrap_servers=self.stack.bootstrap_servers)
        known = partitions(chosen.kafka())
        steps = Steps(wide_console(stderr=True))
        outcome = run_jobs(tuple(JOBS), RunContext(self.spark, chosen, self.contracts, steps, known, uuid4().hex))
        assert outcome.failures == []
        view = compacted_view(self.stack.bootstrap_servers, self.contracts.gold.unified_topic.topic)
        return dict(view)

    @property
    def warehouse(self) -> Warehouse:
        """Where the tables are."""
        return Warehouse(self.spark, self.location, f"{self.location}/_checkpoints")


@pytest.fixture(scope="module")
def flow(deployed: Stack, spark: SparkSession, contracts: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    """Orders in both databases, two of them in the outboxes alone, and what the topic says of them."""
    for database in deployed.databases:
        database.execute(
            insert("orders", range(1, 6)),
            "UPDATE orders SET status = 'completed' WHERE order_id = 2",
            "DELETE FROM orders WHERE order_id = 3",
        )
    for database, number, amount in ((deployed.postgresql, 1001, 100), (deployed.mysql, 1002, 200)):
        payload = f'{{"amount": {amount}}}'
        database.execute(f"{OUTBOX} ('orders', '{number}', 'OrderCreated', '{payload}')")
    for topic in TABLE_TOPICS:
        wait_for(deployed.bootstrap_servers, topic, lambda event: event.get("op") == "d")
    for topic in OUTBOX_TOPICS:
        wait_for(deployed.bootstrap_servers, topic, lambda event: "amount" in event.get("payload", ""))
    return Flow(deployed, spark, contracts, str(tmp_path_factory.mktemp("flow") / "warehouse"))


@pytest.fixture(scope="module")
def published(flow: Flow) -> Mapping[str, Mapping[str, Any]]:
    """What the topic says of every order after the first run."""
    return flow.run()


def records(stack: Stack, topic: str) -> int:
    """How many records the topic ever had."""
    consumer = Consumer({**plain_config(stack.bootstrap_servers), "group.id": "nobody"})
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1] for number in numbers)
    finally:
        consumer.close()


def test_every_connector_runs_and_a_second_deployment_changes_nothing(command: Command, deployed: Stack) -> None:
    status = command("connect", "status", "--json")
    assert status.code == 0
    states = {one["connector"]: [one["state"], *_tasks_of(one)] for one in status.json["states"]}
    assert all(states[name] == ["RUNNING", "RUNNING"] for name in PACKAGED)
    again = command("connect", "deploy", *PACKAGED, "--json")
    assert again.code == 0
    assert {one["connector"]: one["outcome"] for one in again.json["changes"]} == dict.fromkeys(PACKAGED, "unchanged")


def _tasks_of(state: Mapping[str, Any]) -> list[str]:
    return [task["state"] for task in state["tasks"]]


def test_the_check_finds_nothing_on_the_running_cluster(command: Command, flow: Flow) -> None:
    where = ("--connect-url", flow.stack.connect.url, "--bootstrap-servers", flow.stack.bootstrap_servers)
    checked = command("connect", "check", *where)
    assert (checked.code, checked.err) == (0, "")


def test_a_slot_that_a_running_connector_has_is_found(command: Command, deployed: Stack, tmp_path: Path) -> None:
    config = command("connect", "render", "postgres-tables-connector", "--json").json["connectors"][0]["config"]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "config": {**config, "topic.prefix": "mine"}}))
    checked = command("connect", "check", str(file), "--connect-url", deployed.connect.url, "--json")
    assert checked.code == 2
    assert [(one["check"], one["key"]) for one in checked.json["findings"]] == [("shared_slot", "slot.name")]
    assert "postgres-tables-connector" in checked.json["findings"][0]["what"]


def test_a_user_that_is_not_let_in_is_refused_before_anything_changes(command: Command, deployed: Stack) -> None:
    refused = command("connect", "deploy", "postgres-outbox-connector", "--var", "postgres_user=nobody")
    assert refused.code == 4
    assert "Nothing was deployed" in refused.err
    assert "database.hostname" in refused.err
    assert not [one for one in deployed.databases if one.replication_password in refused.err + refused.out]
    assert command("connect", "status", "postgres-outbox-connector").code == 0


def test_topics_have_the_partitions_that_they_were_asked_for(flow: Flow) -> None:
    topics = AdminClient(plain_config(flow.stack.bootstrap_servers)).list_topics(timeout=10).topics
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    assert {counts[topic] for topic in (*TABLE_TOPICS, *OUTBOX_TOPICS)} == {3}
    # Schema changes and their history are in order only in one.
    of_schemas = ("mysql_prod", "mysql_prod_tables", "mariadb_prod_tables", "schema-changes.mysql-outbox")
    assert {counts[topic] for topic in of_schemas} == {1}


def test_an_event_of_each_outbox_reaches_the_unified_topic(published: Mapping[str, Mapping[str, Any]]) -> None:
    for key, source, amount in (("PG-1001", "postgresql", "100.00"), ("MY-1002", "mysql", "200.00")):
        order = published[key]
        assert order["source_database"] == source
        assert f"{float(order['total_amount']):.2f}" == amount
        assert order["order_id"] == int(key.partition("-")[2])
        assert [order[name] for name in ABSENT] == [None] * len(ABSENT)
        assert order["fulfillment_status"] == "PENDING"


def test_orders_of_both_tables_reach_the_unified_topic(published: Mapping[str, Mapping[str, Any]]) -> None:
    outboxes = {"PG-1001", "MY-1002"}
    assert published.keys() == {f"{prefix}-{number}" for prefix in ("PG", "MY") for number in (1, 2, 4, 5)} | outboxes
    for prefix in ("PG", "MY"):
        assert published[f"{prefix}-2"]["fulfillment_status"] == "FULFILLED"
        assert published[f"{prefix}-1"]["created_at"].startswith("2024-05-01T12:00:00.123456")


def test_offsets_moved_back_and_forgotten_change_nothing(
    command: Command, flow: Flow, published: Mapping[str, Mapping[str, Any]]
) -> None:
    before = {topic: records(flow.stack, topic) for topic in (*TABLE_TOPICS, *OUTBOX_TOPICS)}
    executed = flow.stack.mysql.rows("SHOW BINLOG EVENTS IN 'binlog.000001' LIMIT 2")[1]["Info"]
    worker = flow.stack.connect.worker
    (stored,) = worker.offsets("mysql-tables-connector")["offsets"]
    offset = stored["offset"]
    server, _, last = offset["gtids"].rpartition("-")
    assert executed == ""
    assert int(last) > 5
    earlier = {"file": offset["file"], "pos": offset["pos"], "gtids": f"{server}-{int(last) - 3}"}
    connectors = [f"{database}-{kind}-connector" for database in ("postgres", "mysql") for kind in ("tables", "outbox")]
    for name in connectors:
        stop(worker, name)
        assert is_stopped(settled(worker, name, is_there=is_stopped))
        if name == "mysql-tables-connector":
            set_offset(worker, name, stored["partition"], earlier)
        else:
            delete_offsets(worker, name)
        resumed = command("connect", "resume", name)
        assert resumed.code == 0, resumed.out + resumed.err
    for topic, count in before.items():
        wait_for_more(flow.stack, topic, count)
    again = flow.run()
    assert again == published
    assert flow.warehouse.read(QUARANTINE.name).count() == 0
    verified = command(
        "verify", "--warehouse", flow.location, "--bootstrap-servers", flow.stack.bootstrap_servers, "--json"
    )
    assert verified.code == 0, verified.out + verified.err


def wait_for_more(stack: Stack, topic: str, count: int) -> None:
    """Wait until the topic has more records than it had."""
    seen: list[object] = []

    def is_another(event: Mapping[str, object]) -> bool:
        seen.append(event)
        return len(seen) > count

    wait_for(stack.bootstrap_servers, topic, is_another)


def test_a_connector_that_fails_shows_why_and_runs_again(command: Command, deployed: Stack) -> None:
    name = "postgres-outbox-connector"
    deployed.postgresql.execute("DROP PUBLICATION debezium_outbox")
    failed = command("connect", "restart", name, "--all")
    assert failed.code == 4, failed.out
    assert "Publication autocreation is disabled" in failed.out
    deployed.postgresql.run_file("3_publications.sql")
    again = command("connect", "restart", name)
    assert again.code == 0, again.out + again.err


def test_a_deleted_connector_leaves_its_slot_and_says_so(command: Command, deployed: Stack) -> None:
    deleted = command("connect", "delete", "postgres-outbox-connector", "--yes")
    assert deleted.code == 0
    assert "pg_drop_replication_slot('debezium_outbox_slot_pg')" in deleted.out
    # Its connection ends a moment later.
    slot = "SELECT active FROM pg_replication_slots WHERE slot_name = 'debezium_outbox_slot_pg'"
    until(lambda: not deployed.postgresql.rows(slot)[0]["active"])
    deployed.postgresql.execute("SELECT pg_drop_replication_slot('debezium_outbox_slot_pg')")
    assert command("connect", "status", "postgres-outbox-connector").code == 4
    assert command("connect", "deploy", "postgres-outbox-connector").code == 0
