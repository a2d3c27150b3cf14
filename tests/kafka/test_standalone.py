"""The whole flow on a Spark cluster of processes of their own: by spark-submit with the wheel, and by --master.

The executors decode records with the Python of this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml

from demo.broker import embedded_broker
from demo.check import compacted_view, final_rows
from demo.replay import replay
from lakehouse.contracts.files import MODELS
from lakehouse.spark.sizing import FEW_ROWS
from tests.support.guide import ROOT
from tests.support.standalone import SMALL_JAVA, SPARK_HOME, StandaloneCluster, standalone_cluster, tasks_by_worker
from tests.support.wheel import build

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

SPARK_SUBMIT, MAIN = str(SPARK_HOME / "bin" / "spark-submit"), str(ROOT / "src" / "orders_lakehouse" / "__main__.py")
# Of PostgreSQL's orders alone, since every further table takes the driver as long again.
RECORDING = ROOT / "tests" / "captures" / "pg_ordering"
TOPICS = {"pgord.public.orders": "postgres_prod_tables.public.orders"}
COLUMNS = ("order_id", "customer_id", "product_id", "status", "total_amount")
SETTINGS = {
    **FEW_ROWS,
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.executor.memory": "900m",
    "spark.executor.extraJavaOptions": SMALL_JAVA,
    "spark.locality.wait": "0s",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
COMMANDS = ("submitted run", "submitted verify", "second run")


@dataclass(frozen=True)
class Ran:
    """What is left of the commands: answers by their names in COMMANDS, event logs by the same, and the tables."""

    cluster: StandaloneCluster
    folder: Path
    answers: Mapping[str, Mapping[str, Any]]
    sent: int
    published: Mapping[str, Mapping[str, Any]]

    def table(self, name: str) -> polars.DataFrame:
        return polars.read_delta(str(self.folder / "warehouse" / name.replace(".", "/")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The history, taken in by `run` and looked at by `verify` under spark-submit, then by `run --master` once more."""
    folder = tmp_path_factory.mktemp("standalone")
    wheel = build(folder)
    # A broker of its own: the topics are those of the packaged contracts, which other tests fill otherwise.
    with standalone_cluster(folder, workers=2) as cluster, embedded_broker() as servers:
        sent = sum(replay(servers, RECORDING.with_suffix(".jsonl.gz"), topics=TOPICS).values())
        jars = _run([sys.executable, "-m", "orders_lakehouse", "jars", "--paths"])
        submit = [SPARK_SUBMIT, "--master", cluster.master, "--driver-memory", "1g"]
        submit += ["--jars", jars, "--py-files", str(wheel)]
        contracts = contracts_of_one_table(folder / "contracts")
        quiet = f"-Dlog4j2.configurationFile={ROOT / 'src/lakehouse/spark/log4j2.properties'}"
        submit += ["--driver-java-options", f"{quiet} {SMALL_JAVA}", MAIN]
        own = [sys.executable, "-m", "orders_lakehouse"]
        where = ["--warehouse", f"file://{folder}/warehouse", "--bootstrap-servers", servers, "--json"]
        where += ["--contracts", str(contracts)]
        driver = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": SMALL_JAVA}
        commands = {
            "submitted run": [*submit, "run", *where],
            "submitted verify": [*submit, "verify", *where],
            "second run": [*own, "run", *where, "--master", cluster.master, *_conf(driver)],
        }
        assert tuple(commands) == COMMANDS
        answers = {name: json.loads(_run([*command, *_logged_in(folder / name)])) for name, command in commands.items()}
        yield Ran(cluster, folder, answers, sent, compacted_view(servers, "bigquery.unified.orders"))


def _logged_in(events: Path) -> list[str]:
    """The settings of every command as options, with the event log in that folder."""
    events.mkdir()
    return _conf({**SETTINGS, "spark.eventLog.dir": events.as_uri()})


def _conf(settings: Mapping[str, str]) -> list[str]:
    return [text for key, value in settings.items() for text in ("--spark-conf", f"{key}={value}")]


def _run(command: list[str]) -> str:
    """The last line of a command that ends well. spark-submit puts standard error among the lines before."""
    done = _ended(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def _ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    own = {name for name in os.environ if name.startswith("LAKEHOUSE_")} - {"LAKEHOUSE_CACHE"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("name", COMMANDS)
def test_executors_on_both_workers_ran_tasks(ran: Ran, name: str) -> None:
    (log,) = (ran.folder / name).iterdir()
    assert tasks_by_worker(log).keys() == ran.cluster.workers


def test_gold_and_the_topic_are_the_final_state_of_the_database(ran: Ran) -> None:
    final = final_rows(RECORDING.with_suffix(".final.json.gz"), "orders", key="order_id")
    expected = {f"PG-{key}": _as_text(row) for key, row in final.items()}
    gold = ran.table("gold.unified_orders")
    assert {row["composite_key"]: _as_text(row) for row in gold.iter_rows(named=True)} == expected
    assert {key: _as_text(row) for key, row in ran.published.items()} == expected


def test_every_record_is_accounted_for(ran: Ran) -> None:
    audit = ran.table("ops.batches")
    assert audit["read"].sum() == ran.sent
    assert ran.answers["submitted verify"]["ok"]


def test_a_second_run_finds_nothing_new(ran: Ran) -> None:
    results = ran.answers["second run"]
    assert sum(results["bronze"]["new_records"].values()) == 0
    assert results["silver"]["read"] == 0
    assert results["gold"]["changed_orders"] == 0
    assert results["publish"]["sent_records"] == 0


def test_without_the_jars_spark_submit_says_how_to_give_them(tmp_path: Path) -> None:
    done = _ended([SPARK_SUBMIT, "--master", "local[1]", MAIN, "silver", "--warehouse", str(tmp_path)])
    assert done.returncode == 6, done.stdout + done.stderr
    assert 'Pass it --jars "$(lakehouse jars --paths)".' in done.stdout


def contracts_of_one_table(folder: Path) -> Path:
    """The packaged contracts, without MySQL and without the outboxes."""
    for name in MODELS:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        packaged = yaml.safe_load((ROOT / "src" / name).read_text(encoding="utf-8"))
        file.write_text(yaml.safe_dump(_without_others(packaged)), encoding="utf-8")
    return folder


def _without_others(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _without_others(value) for name, value in node.items() if not _is_other(name)}
    if isinstance(node, list):
        kept = [_without_others(value) for value in node if not _is_other(value)]
        # A rule for tables that are not there.
        return [value for value in kept if not (isinstance(value, dict) and value.get("feeds") == [])]
    return node


def _is_other(name: object) -> bool:
    return isinstance(name, str) and ("mysql" in name or "outbox" in name)


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(row[name]) for name in COLUMNS}
