"""Status and doctor on real servers: silent while all is well, and each trouble, really provoked, found by its name."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cli.jobs import JOBS, RunContext, run_jobs
from cli.monitoring.commands import PROBE_PASSWORD
from cli.monitoring.doctor import scene_of
from cli.monitoring.shared import published_versions
from connectors.cluster import states
from connectors.rest import Worker
from demo.processes import HOST, free_ports
from demo.stack.database import Database
from demo.stack.offsets import stop
from demo.stack.stack import Stack
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.thresholds import Limits
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.offsets import Partition, latest
from lakehouse.process.steps import Steps, wide_console
from monitoring.doctor import Result, results_of
from monitoring.metrics import GAUGES, serve_metrics
from monitoring.model import Stage, Status
from monitoring.probe import ends_of_unified, insert_probe, wait_for
from monitoring.readings.tables import DeltaFiles
from monitoring.status import View, status_of
from tests.support.brokers import plain_config
from tests.support.live.command import Command
from tests.support.live.connectors import Config
from tests.support.live.contracts import with_databases, write_contracts
from tests.support.live.dialects import insert
from tests.support.live.told import until
from tools.bundle import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live]

MONITORING = ROOT / "resources" / "monitoring"
SECONDS = 90.0
# Of an idle binlog a heartbeat comes every 24 seconds (0.8 of connect.keep.alive.interval.ms), of PostgreSQL every ten.
HEARTBEAT = Limits(warning=40, critical=55)
OUTBOX = "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload) VALUES"
OUTBOX_TOPIC = "outbox.event.postgres.orders"


@dataclass(frozen=True)
class Flow:
    """The packaged connectors, the jobs, and what is to be looked at."""

    stack: Stack
    spark: SparkSession
    contracts: Contracts
    chosen: Settings

    def run(self) -> None:
        """All jobs once."""
        kafka = self.chosen.kafka()
        steps = Steps(wide_console(stderr=True))
        work = RunContext(self.spark, self.chosen, self.contracts, steps, partitions(kafka), uuid4().hex)
        assert run_jobs(tuple(JOBS), work).failures == []

    @property
    def worker(self) -> Worker:
        """Kafka Connect."""
        return self.stack.connect.worker

    def view(self) -> View:
        """All there is."""
        tables, kafka = DeltaFiles(self.chosen.address), self.chosen.kafka()
        versions = partial(published_versions, self.contracts, tables, kafka)
        return View(self.contracts, tables, kafka, self.worker, versions)

    def status(self) -> Status:
        """The status now."""
        return status_of(self.view())

    def stage(self, source: str, name: str) -> Stage:
        """One stage now."""
        (found,) = [one for one in self.status().stages if (one.source, one.stage) == (source, name)]
        return found

    def wrong(self) -> dict[str, list[Result]]:
        """What doctor finds wrong, by name."""
        found: dict[str, list[Result]] = {}
        for one in results_of(scene_of(self.view())):
            if not one.ok:
                found.setdefault(one.check, []).append(one)
        return found

    def runs(self, *names: str) -> bool:
        """Whether these connectors and their tasks run."""
        states = [self.worker.status(name) for name in names]
        return all(
            one["connector"]["state"] == "RUNNING" and [task["state"] for task in one["tasks"]] == ["RUNNING"]
            for one in states
        )

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Inside the block the connector is stopped."""
        stop(self.worker, name)
        until(lambda: self.worker.status(name)["connector"]["state"] == "STOPPED", SECONDS)
        try:
            yield
        finally:
            self.worker.resume(name)
            until(lambda: self.runs(name), SECONDS)


@pytest.fixture(scope="module")
def flow(
    deployed: Stack, spark: SparkSession, contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flow]:
    """Orders in both databases and both outboxes, taken to the topic; as a person on call sees it."""
    location = str(tmp_path_factory.mktemp("monitored") / "warehouse")
    chosen = settings(warehouse=location, bootstrap_servers=deployed.bootstrap_servers)
    limits = contracts.thresholds.model_copy(
        update={"heartbeat_seconds": HEARTBEAT, "pass_seconds": Limits(warning=600, critical=900)}
    )
    named = with_databases(contracts, deployed).model_copy(update={"thresholds": limits})
    flow = Flow(deployed, spark, named, chosen)
    for database in (deployed.postgresql, deployed.mysql):
        database.execute(
            insert("orders", range(501, 506)),
            f"{OUTBOX} ('orders', '601', 'OrderCreated', '{{\"order_id\": 601, \"amount\": 1}}')",
        )
    with pytest.MonkeyPatch.context() as patch:
        for server in deployed.databases:
            patch.setenv(server.password_variable, server.replication_password)
        until(lambda: has_ended(flow), SECONDS)
        flow.run()
        yield flow


def has_ended(flow: Flow) -> bool:
    """Whether every topic of the rows has some of them."""
    kafka, sources = flow.chosen.kafka(), flow.contracts.topics.sources
    known = partitions(kafka)
    names = [topic for source in sources.values() for topic in source.topic_names]
    if not set(names) <= set(known):
        return False
    ends = latest(kafka, [Partition(topic, number) for topic in names for number in known[topic]])
    return all(sum(end for place, end in ends.items() if place.topic == topic) for topic in names)


def test_a_healthy_stack_is_silent(flow: Flow) -> None:
    """Every stage is seen, with numbers; nothing is found; and the commands end with 0."""
    until(lambda: flow.status().level == "ok", SECONDS)
    status = flow.status()
    assert status.findings == []
    assert {stage.level for stage in status.stages} == {"ok"}
    assert len(status.stages) == 14
    assert all(stage.lag_bytes is not None for stage in status.stages if stage.stage == "database")
    assert {age.source for age in status.freshness} == {"postgres", "mysql"}
    assert all(one.unaccounted == 0 for one in status.records)
    assert flow.wrong() == {}
    seen = {one.check for one in results_of(scene_of(flow.view()))}
    assert {"wal-level", "binlog-row-image", "replica-identity", "outbox-schemas", "heartbeat", "unified-topic"} <= seen


def test_the_commands_say_so(flow: Flow, command: Command, tmp_path: Path) -> None:
    places: tuple[str, ...] = ("--warehouse", flow.chosen.warehouse)
    places += ("--bootstrap-servers", flow.stack.bootstrap_servers)
    places += ("--contracts", str(write_contracts(tmp_path / "contracts", flow.stack)))
    looked = command("doctor", *places, "--connect-url", flow.stack.connect.url, "--json")
    assert (looked.code, looked.err.count("Error")) == (0, 0)
    assert all(one["ok"] for one in looked.json["checks"])
    assert looked.json["unasked"].keys() == {"mariadb-tables-connector"}
    shown = command("status", *places, "--connect-url", flow.stack.connect.url)
    assert shown.code in {0, 1}, shown.out  # the packaged limits: the first pass may have been long
    assert "postgres  topic" in shown.out
    for database in flow.stack.databases:
        assert database.replication_password not in looked.out + looked.err + shown.out + shown.err


def test_an_idle_source_is_not_late(flow: Flow) -> None:
    """Longer than heartbeats may be silent nothing changes in the source: its heartbeats say that it is well."""
    time.sleep(HEARTBEAT.critical + 5)
    stages = {(stage.source, stage.stage): stage for stage in flow.status().stages}
    assert {stage.level for stage in stages.values()} == {"ok"}
    assert stages["postgres", "bronze"].what != ""


def test_prometheus_scrapes_it_and_the_board_shows_it(flow: Flow, tmp_path: Path) -> None:
    """Every query of the board is valid; those of metrics that there are have an answer; no alert of ours fires."""
    port, own = free_ports(2)
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text(encoding="utf-8"))
    (scrape,) = [one for one in config["scrape_configs"] if one["job_name"] == "lakehouse"]
    scrape |= {"static_configs": [{"targets": [f"{HOST}:{port}"]}], "scrape_interval": "1s", "scrape_timeout": "1s"}
    config |= {"scrape_configs": [scrape], "rule_files": [str(MONITORING / "prometheus-rules.yaml")]}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    stop = serve_metrics(flow.status, host=HOST, port=port)
    options = [f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/data"]
    command = ["prometheus", *options, f"--web.listen-address={HOST}:{own}"]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answer(own, "up") == [1.0], SECONDS)
        there = {name for name in GAUGES if answer(own, name)} | {"lakehouse_read_records_total"}
        # Nothing is unread, so nothing can be lost, and nothing is in quarantine.
        assert there >= set(GAUGES) - {"lakehouse_headroom_seconds", "lakehouse_quarantine_oldest_seconds"}
        for query in board():
            asked = query.replace("$source", ".*").replace("$__rate_interval", "1m")
            found = answer(own, asked)
            names = set(re.findall(r"\b(?:lakehouse|pg|debezium|kafka)_\w+", query))
            # What compares two scrapes, or shows only what is beyond a limit, may have no answer yet.
            assert found or not names <= there or re.search(r"rate\(|deriv\(|>", query), query
    finally:
        server.terminate()
        server.wait()
        stop()


def board() -> list[str]:
    """The queries of the Grafana board."""
    found: list[str] = []
    panels = list(json.loads((MONITORING / "grafana-board.json").read_text(encoding="utf-8"))["panels"])
    while panels:
        panel = panels.pop()
        panels += panel.get("panels", [])
        found += [target["expr"] for target in panel.get("targets", [])]
    return found


def answer(port: int, query: str) -> list[float]:
    """The values that Prometheus has for a query; none while it does not answer. Fails where the query is refused."""
    url = f"http://{HOST}:{port}/api/v1/query?{urlencode({'query': query})}"
    try:
        with urlopen(url, timeout=10) as response:
            said = json.load(response)
    except HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except OSError:
        return []
    return [float(one["value"][1]) for one in said["data"]["result"]]


def test_a_dropped_slot(flow: Flow) -> None:
    name = "postgres-tables-connector"
    with flow.stopped(name):
        slot = flow.worker.config(name) or {}
        drop = f"SELECT pg_drop_replication_slot('{slot['slot.name']}')"
        until(lambda: executes(flow.stack.postgresql, drop), SECONDS)
        wrong = flow.wrong()
        assert [one.where for one in wrong["slot-exists"]] == [name]
        assert [one.where for one in wrong["connectors-running"]] == [name]
        assert flow.stage("postgres", "database").level == "critical"
        assert flow.stage("mysql", "database").level == "ok"
    until(lambda: "slot-exists" not in flow.wrong(), SECONDS)


def executes(database: Database, statement: str) -> bool:
    """Whether it does: a slot is active for a moment after its connector has stopped."""
    try:
        database.execute(statement)
    except Exception:  # of the driver
        return False
    return True


def test_a_purged_binlog(flow: Flow) -> None:
    name, mysql = "mysql-tables-connector", flow.stack.mysql
    with flow.stopped(name):
        mysql.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        last = mysql.rows("SHOW BINARY LOGS")[-1]["Log_name"]
        mysql.execute(f"PURGE BINARY LOGS TO '{last}'")
        assert [one.where for one in flow.wrong()["binlog-purged"] if one.where == name] == [name]
        assert flow.stage("mysql", "database").level == "critical"


def test_two_connectors_with_one_server_id(flow: Flow, packaged_connectors: Mapping[str, Config]) -> None:
    with twin(flow, packaged_connectors["mysql-tables-connector"], {}):
        found = flow.wrong()["duplicate-server-id"]
        assert "twin" in {one.where for one in found} or any("twin" in one.seen for one in found)


def test_a_failed_task(flow: Flow, packaged_connectors: Mapping[str, Config]) -> None:
    fails = {
        "database.server.id": "190777",
        "transforms": "absent",
        "transforms.absent.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
        "transforms.absent.field": "absent",
    }
    with twin(flow, packaged_connectors["mysql-tables-connector"], fails, name="failing"):
        until(lambda: any(task["state"] == "FAILED" for task in flow.worker.status("failing")["tasks"]), SECONDS)
        (found,) = [one for one in flow.wrong()["connectors-running"] if one.where == "failing"]
        assert found.seen.startswith("connector RUNNING, tasks FAILED: ")


@contextmanager
def twin(flow: Flow, packaged: Config, own: Config, *, name: str = "twin") -> Iterator[None]:
    """Inside the block another connector of MySQL runs, with topics of its own."""
    names = {"topic.prefix": name, "schema.history.internal.kafka.topic": f"schema-changes.{name}"}
    flow.worker.put_config(name, {**packaged, **names, **own})
    try:
        until(lambda: any(one.connector == name and one.tasks for one in states(flow.worker)), SECONDS)
        yield
    finally:
        flow.worker.delete(name)
        for other in ("mysql-tables-connector", "mysql-outbox-connector"):
            flow.worker.restart(other, only_failed=True)
            until(partial(flow.runs, other), SECONDS)


def test_a_probe_arrives(flow: Flow) -> None:
    """An order in each outbox is in the unified topic after a run."""
    kafka, view = flow.chosen.kafka(), flow.view()
    since = ends_of_unified(kafka, flow.contracts)
    postgresql, mysql = flow.stack.postgresql, flow.stack.mysql
    logins = {"postgresql": (postgresql.owner, postgresql.password), "mysql": (mysql.owner, mysql.password)}
    outboxes = [one for one in scene_of(view).connectors if one.routes_outbox]
    sources = flow.contracts.topics.sources.values()
    probes = [insert_probe(one, sources, login=logins[one.database or ""], aggregate="orders") for one in outboxes]
    before = flow.stage("postgres", "bronze").lag_records or 0
    until(lambda: (flow.stage("postgres", "bronze").lag_records or 0) > before - 1, SECONDS)
    assert wait_for(kafka, probes, since=since, seconds=1.0) == {}
    time.sleep(3.0)
    flow.run()
    assert wait_for(kafka, probes, since=since, seconds=30.0).keys() == {one.name for one in outboxes}


def test_the_command_probes(flow: Flow, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is that of PostgreSQL: its order arrives, and the outbox of MySQL refuses the other one."""
    postgresql = flow.stack.postgresql
    monkeypatch.setenv(PROBE_PASSWORD, postgresql.password)
    options = ["--warehouse", flow.chosen.warehouse, "--bootstrap-servers", flow.stack.bootstrap_servers]
    options += ["--contracts", str(write_contracts(tmp_path / "contracts", flow.stack))]
    options += ["--connect-url", flow.stack.connect.url, "--probe-user", postgresql.owner, "--probe", "--yes", "--json"]
    before = sum(outbox_ends(flow).values())
    with ThreadPoolExecutor(1) as threads:
        looked = threads.submit(command, "doctor", *options, "--probe-seconds", "120")
        until(lambda: sum(outbox_ends(flow).values()) > before, SECONDS)
        flow.run()
        ended = looked.result()
    assert ended.code == 1, ended.err
    probes = {one["where"]: one for one in ended.json["checks"] if one["check"] == "probe"}
    came, refused = probes["postgres-outbox-connector"], probes["mysql-outbox-connector"]
    assert (came["ok"], came["seen"].split()[2:4]) == (True, ["came", "after"])
    assert (refused["ok"], refused["seen"]) == (False, "its outbox refused the order (OperationalError)")
    assert "An order, cancelled and of 0.00, will be written to the outbox of each:" in ended.err
    assert postgresql.password not in ended.out + ended.err


def outbox_ends(flow: Flow) -> dict[Partition, int]:
    """Where the topic of PostgreSQL's outbox ends."""
    kafka = flow.chosen.kafka()
    return latest(kafka, [Partition(OUTBOX_TOPIC, number) for number in partitions(kafka)[OUTBOX_TOPIC]])


def test_records_past_retention(flow: Flow) -> None:
    """Records that bronze has not read are removed by the broker."""
    before = outbox_ends(flow)
    flow.stack.postgresql.execute(
        *[f"{OUTBOX} ('orders', '{number}', 'OrderCreated', '{{\"amount\": 1}}')" for number in range(701, 711)]
    )
    until(lambda: sum(outbox_ends(flow).values()) >= sum(before.values()) + 10, SECONDS)
    admin = AdminClient(plain_config(flow.stack.bootstrap_servers))
    gone = admin.delete_records(
        [TopicPartition(place.topic, place.number, end) for place, end in outbox_ends(flow).items()]
    )
    for future in gone.values():
        future.result()
    stage = flow.stage("postgres", "topics")
    assert (stage.level, OUTBOX_TOPIC in stage.what) == ("critical", True)
    assert [one.where for one in flow.wrong()["records-kept"]] == ["postgres"]


def test_a_stopped_source(flow: Flow) -> None:
    """It is critical at once as a database, and within the threshold as a connector, which still says RUNNING."""
    postgresql = flow.stack.postgresql
    try:
        stopped_at = time.monotonic()
        postgresql.stop()
        assert flow.stage("postgres", "database").level == "critical"
        assert "database-answers" in flow.wrong()
        until(is_critical(flow, "postgres", "connect"), HEARTBEAT.critical + 20)
        assert time.monotonic() - stopped_at < HEARTBEAT.critical + 20
        assert flow.stage("mysql", "connect").level == "ok"
    finally:
        postgresql.start()
        until(lambda: executes(postgresql, "SELECT 1"), SECONDS)
        names = ("postgres-tables-connector", "postgres-outbox-connector")
        for name in names:
            flow.worker.restart(name, only_failed=False)
        until(lambda: flow.runs(*names), SECONDS)


def is_critical(flow: Flow, source: str, stage: str) -> Callable[[], bool]:
    """Asks whether a stage is."""
    return lambda: flow.stage(source, stage).level == "critical"
