"""The whole flow on a Spark cluster of processes of their own: by spark-submit with the wheel, and by --master.

The executors have no Python: PYSPARK_PYTHON names none.
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

from demo.broker import embedded_broker
from demo.check import compacted_view, final_rows
from demo.replay import recorded, replay
from lakehouse.session import SMALL_DATA
from tests.bundle.test_bundle import build
from tests.support.final_state import final_events
from tests.support.guide import ROOT
from tests.support.standalone import SMALL_JAVA, SPARK_HOME, StandaloneCluster, standalone_cluster, tasks_by_worker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CAPTURES, DATA = ROOT / "tests" / "captures", ROOT / "demo" / "data"
# Prefix in gold: the recordings of the table and of the outbox, and the recorded topic of each with the one it becomes.
RECORDINGS = {
    "PG": (
        (CAPTURES / "pg_ordering", "pgord.public.orders", "postgres_prod_tables.public.orders"),
        (DATA / "outbox_pg_envelope", "outbox.event.postgres.orders", "outbox.event.postgres.orders"),
    ),
    "MY": (
        (CAPTURES / "mysql_ordering", "myord.ecommerce_ord.orders", "mysql_prod_tables.ecommerce.orders"),
        (DATA / "outbox_mysql_envelope", "outbox.event.mysql.orders", "outbox.event.mysql.orders"),
    ),
}
COLUMNS = ("order_id", "customer_id", "product_id", "status", "total_amount")
FULFILLMENT = {"completed": "FULFILLED", "cancelled": "CANCELLED"}
SETTINGS = {
    **SMALL_DATA,
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
    sent: int
    answers: Mapping[str, Mapping[str, Any]]
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
        sent = sum(
            sum(replay(servers, file.with_suffix(".jsonl.gz"), topics={topic: target}).values())
            for recordings in RECORDINGS.values()
            for file, topic, target in recordings
        )
        jars = _run([sys.executable, "-m", "cli", "jars", "--paths"])
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, "--driver-memory", "1g"]
        submit += ["--jars", jars, "--py-files", str(wheel)]
        quiet = f"-Dlog4j2.configurationFile={ROOT / 'src/lakehouse/log4j2.properties'}"
        submit += ["--driver-java-options", f"{quiet} {SMALL_JAVA}"]
        submit += [str(ROOT / "src" / "cli" / "__main__.py")]
        own = [sys.executable, "-m", "cli"]
        where = ["--warehouse", f"file://{folder}/warehouse", "--bootstrap-servers", servers, "--json"]
        driver = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": SMALL_JAVA}
        commands = {
            "submitted run": [*submit, "run", *where],
            "submitted verify": [*submit, "verify", *where],
            "second run": [*own, "run", *where, "--master", cluster.master, *_conf(driver)],
        }
        assert tuple(commands) == COMMANDS
        answers = {name: json.loads(_run([*command, *_logged_in(folder / name)])) for name, command in commands.items()}
        yield Ran(cluster, folder, sent, answers, compacted_view(servers, "bigquery.unified.orders"))


def _logged_in(events: Path) -> list[str]:
    """The settings of every command as options, with the event log in that folder."""
    events.mkdir()
    return _conf({**SETTINGS, "spark.eventLog.dir": events.as_uri()})


def _conf(settings: Mapping[str, str]) -> list[str]:
    return [text for key, value in settings.items() for text in ("--spark-conf", f"{key}={value}")]


def _run(command: list[str]) -> str:
    """The last line of a command that ends well. spark-submit puts standard error among the lines before."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {
        "LAKEHOUSE_TRACE": "1",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "/there/is/no/python",
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_executors_on_both_workers_ran_tasks(ran: Ran, name: str) -> None:
    (log,) = (ran.folder / name).iterdir()
    assert tasks_by_worker(log).keys() == ran.cluster.workers


def test_gold_is_the_final_state_of_the_databases(ran: Ran) -> None:
    gold = ran.table("gold.unified_orders")
    expected = {f"{prefix}-{key}": row for prefix in RECORDINGS for key, row in final_orders(prefix).items()}
    assert {row["composite_key"]: _as_text(row) for row in gold.iter_rows(named=True)} == expected
    assert {key: _as_text(row) for key, row in ran.published.items()} == expected


def test_every_record_is_accounted_for(ran: Ran) -> None:
    ledger = ran.table("ops.ledger")
    assert ledger["read"].sum() == ran.sent
    assert ran.answers["submitted verify"]["ok"]


def test_a_second_run_finds_nothing_new(ran: Ran) -> None:
    results = ran.answers["second run"]["results"]
    assert sum(results["bronze"]["new_records"].values()) == 0
    assert results["silver"]["read"] == 0
    assert results["gold"]["changed_orders"] == 0
    assert results["publish"]["sent_records"] == 0


def final_orders(prefix: str) -> dict[str, dict[str, str]]:
    """The orders of a database as recorded in the end: of its table, and of its outbox those that the table never had.

    By the text of `order_id`; values as text.
    """
    (table, topic, _), (outbox, _, _) = RECORDINGS[prefix]
    known = {
        str(json.loads(record.key)["order_id"])
        for record in recorded(table.with_suffix(".jsonl.gz"))
        if record.topic == topic and record.key
    }
    rows = final_rows(table.with_suffix(".final.json.gz"), "orders", key="order_id")
    events = final_events(outbox.with_suffix(".final.json.gz"), "orders", COLUMNS)
    told = {**{key: row for key, row in events.items() if key not in known}, **{str(key): rows[key] for key in rows}}
    return {key: _as_text({**row, "fulfillment_status": _fulfillment(row)}) for key, row in told.items()}


def _fulfillment(row: Mapping[str, Any]) -> str:
    return FULFILLMENT.get(row["status"], "PENDING")


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(row[name]) for name in (*COLUMNS, "fulfillment_status")}
