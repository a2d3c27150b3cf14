"""The command over Spark Connect: no JVM at hand, batches in another process. Serverless compute speaks it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from cli.main import main
from demo.__main__ import DATA, RECORDINGS, TABLES_OF_MYSQL
from demo.check import topic_differences
from demo.processes import HOST, Server, free_ports, last_lines, text_of
from demo.replay import replay
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from silver.order.state import OUTCOMES
from tests.support.recordings import per_partition, read, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
RECORDS = 25  # of a partition
SECONDS = 900  # of a run at most: every stream starts a Python, and every question goes through two processes
TABLES = ("silver.postgres_orders", "silver.mysql_orders", "gold.unified_orders", "ops.batches")


@dataclass(frozen=True)
class Remote:
    """A Spark Connect server with a warehouse, and a broker with records."""

    address: str
    bootstrap_servers: str
    warehouse: Warehouse
    contracts: Path
    sent: Counter[str]

    def command(self, *arguments: str, expect: int = 0) -> dict[str, Any]:
        """What `lakehouse` answers as JSON, in an environment like that of a task on Databricks."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
        environment |= {
            "SPARK_REMOTE": self.address,
            "DATABRICKS_RUNTIME_VERSION": "client",
            "IS_SERVERLESS": "true",
            "LAKEHOUSE_WAREHOUSE": self.warehouse.location,
            "LAKEHOUSE_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "LAKEHOUSE_CONTRACTS": str(self.contracts),
        }
        done = subprocess.run(
            [sys.executable, "-c", "from cli.main import main; main()", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=SECONDS,
        )
        assert done.returncode == expect, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def versions(self) -> dict[str, int]:
        return {table: self.warehouse.version(table) for table in TABLES}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("connect") / "server.log"
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.support.connect_server", str(port)]
    server = Server(command, log=log, environment={"PYTHONPATH": paths})

    def answers() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex((HOST, port)) == 0

    try:
        assert server.answers(answers, seconds=120), last_lines(text_of(log))
        yield f"sc://{HOST}:{port}"
    finally:
        server.stop(seconds=10)


@pytest.fixture(scope="module")
def remote(
    address: str, spark: SparkSession, bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory
) -> Remote:
    folder = tmp_path_factory.mktemp("remote")
    sent: Counter[str] = Counter()
    for name, topics in RECORDINGS.items():
        records = [record for record in read(DATA / f"{name}.jsonl.gz") if record["topic"] in topics]
        part = per_partition(records, lambda number: number < RECORDS)
        present = {record["topic"] for record in part}
        cut = write(folder / f"{name}.jsonl.gz", part)
        sent.update(replay(bootstrap_servers, cut, topics={k: v for k, v in topics.items() if k in present}))
    warehouse = Warehouse(spark, str(folder / "warehouse"), str(folder / "warehouse" / "_checkpoints"))
    own = folder / "contracts"
    main(["init", str(own)])
    topics_file = own / "bronze" / "topics.yaml"
    patterns = f"table_patterns: ['{TABLES_OF_MYSQL}']"
    topics_file.write_text(topics_file.read_text().replace("tables: [ecommerce.orders]", patterns))
    return Remote(address, bootstrap_servers, warehouse, own, sent)


def test_the_whole_flow_and_a_second_run_that_changes_nothing(
    remote: Remote, contracts: Contracts, tmp_path: Path
) -> None:
    missing = remote.command("silver", expect=5)
    assert "There is no table bronze.postgres_events" in missing["errors"][0]["what"]

    remote.command("bronze")
    _an_error_of_ours_in_a_batch_arrives_as_itself(remote, tmp_path)

    remote.command("run")
    audit = remote.warehouse.read("ops.batches").where("read IS NOT NULL")
    assert audit.where(f"read != {' + '.join(OUTCOMES)}").count() == 0
    read_by_topic = {row["topic"]: row["n"] for row in audit.groupBy("topic").agg(F.sum("read").alias("n")).collect()}
    assert read_by_topic == dict(remote.sent)
    topic = contracts.gold.unified_topic.topic
    assert topic_differences(remote.warehouse, bootstrap_servers=remote.bootstrap_servers, topic=topic) == []

    versions, published = remote.versions(), _published(remote, topic)
    remote.command("run")
    assert remote.versions() == versions
    assert _published(remote, topic) == published > 0


def _an_error_of_ours_in_a_batch_arrives_as_itself(remote: Remote, folder: Path) -> None:
    """A column that no event has a field for is found in the batch, in the session of its source."""
    elsewhere, made = folder / "warehouse", folder / "contracts"
    # Bronze alone: the tables of silver are there already, with the columns of the packaged contract.
    shutil.copytree(remote.warehouse.location, elsewhere, ignore=shutil.ignore_patterns("silver"))
    remote.command("init", str(made))
    tables = made / "silver" / "tables.yaml"
    text = tables.read_text(encoding="utf-8")
    tables.write_text(
        text.replace("      note: STRING", "      note: STRING\n      colour: STRING", 1), encoding="utf-8"
    )
    answer = remote.command("silver", "--contracts", str(made), "--warehouse", str(elsewhere), expect=3)
    assert answer["errors"][0]["kind"] == "FeedSuspended"
    assert "is there a field colour" in answer["errors"][0]["what"]


def _published(remote: Remote, topic: str) -> int:
    return sum(1 for _record in committed_records(KafkaConnection(bootstrap_servers=remote.bootstrap_servers), topic))
