"""The command as a person or a scheduler meets it: sentences and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.broker import embedded_broker
from silver.rejects.quarantine import QUARANTINE
from tests.support.command_line import run
from tests.support.registry import registry_server

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """A broker without topics."""
    with embedded_broker() as servers:
        yield servers


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from the environment. Where the jars are is none of the product."""
    for name in os.environ:
        if name.startswith("LAKEHOUSE_") and name != "LAKEHOUSE_CACHE":
            monkeypatch.delenv(name)


def lakehouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; where that shows nothing more, it is run in this one."""
    command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_broker_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    done = lakehouse("run", "--bootstrap-servers", "127.0.0.1:1", "--warehouse", str(tmp_path / "w"))
    assert done.returncode == 4
    assert "No Kafka broker answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


def test_missing_topics_are_one_sentence_that_names_them(
    tmp_path: Path, empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "bronze", "--bootstrap-servers", empty, "--warehouse", str(tmp_path / "w"))
    assert code == 4
    assert f"The broker at {empty} does not have: topic " in err
    assert "topic postgres_prod_tables.public.orders" in err
    assert "Traceback" not in err + out


def test_doctor_asks_the_schema_registry(tmp_path: Path, empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    with registry_server() as registry:
        file = str(registry.kafka_config(tmp_path, empty))
        found = []
        for registry.is_on in (True, False):
            code, out, _err = run(
                capsys, "doctor", "--warehouse", str(tmp_path / "w"), "--kafka-config", file, "--json"
            )
            assert code == 1, "the broker has no topic"
            found += [one for one in json.loads(out)["checks"] if one["check"] == "registry-answers"]
    assert [(one["where"], one["ok"]) for one in found] == [(registry.url, True), (registry.url, False)]
    assert "does not answer (HTTP 503)" in found[1]["seen"]
    assert "Start the registry" in found[1]["hint"]


def test_what_must_be_given_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["silver"], "No warehouse was given."),
        (["bronze", "--warehouse", "/nowhere"], "No Kafka broker was given."),
        (["silver", "--warehouse", "main"], "is a catalog, and checkpoints are files"),
        (["silver", "--warehouse", "./w", "--target", "production"], "no target 'production'"),
    ):
        code, _out, err = run(capsys, *arguments)
        assert code == 2
        assert sentence in err
        assert "Traceback" not in err


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_silver_before_bronze_names_the_missing_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logged as JSON, an event a line, with the run; and the metrics are written though the run failed."""
    metrics = tmp_path / "lakehouse.prom"
    logged = ("--log-format", "json", "--metrics-file", str(metrics))
    code, _out, err = run(capsys, "silver", "--warehouse", str(tmp_path / "w"), *logged)
    assert code == 5
    assert "Traceback" not in err
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [(one["event"], one.get("step")) for one in events[:5]] == [
        ("started", "news"),
        ("ended", "news"),
        ("started", "session"),
        ("ended", "session"),
        ("started", "silver"),
    ]
    assert len({one["run"] for one in events}) == 1
    (error,) = [one for one in events if one["event"] == "error"]
    assert "There is no table bronze.postgres_events" in error["text"]
    assert "lakehouse_suspended_tables 0.0" in metrics.read_text(encoding="utf-8")


def test_metrics_that_cannot_be_written_change_nothing_of_the_exit_code(tmp_path: Path) -> None:
    """The run failed for a reason of its own: that is what it ends with."""
    nowhere = str(tmp_path / "absent" / "lakehouse.prom")
    done = lakehouse("silver", "--warehouse", str(tmp_path / "w"), "--metrics-file", nowhere)
    assert done.returncode == 5
    assert f"no metrics of this pass: The metrics cannot be written to {nowhere}: " in done.stdout + done.stderr


def test_help_lists_every_job_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert lakehouse("--help").returncode == 0
    for job in ("bronze", "silver", "gold", "publish", "run", "jars"):
        code, out, _err = run(capsys, job, "--help")
        assert code == 0
        assert "Example: lakehouse" in out


@pytest.mark.spark
def test_what_delta_prints_is_not_part_of_an_answer(warehouse: Warehouse) -> None:
    warehouse.ensure(QUARANTINE)
    done = lakehouse("optimize", "--warehouse", warehouse.location, "--json")
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    assert table["table"] == "quality.quarantine"
    assert done.stderr.count("Deleted 0 files") == 1, "of the table"
