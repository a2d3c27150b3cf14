"""`lakehouse connect` on a cluster, which a small server stands for: deployed, watched, deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli.connect.commands
import cli.connect.shared
from connectors.checking.together import KeptTopic
from connectors.cluster import change_of, orphaned_resources, settled, state_of
from connectors.connectors import Connector
from lakehouse.contracts.files import MODELS, packaged_text
from tests.support import command_line
from tests.unit.connectors.stand_in import ConnectStandIn, at_once

ROOT = Path(__file__).parents[3]
BUNDLE = ["--bundle", str(ROOT / "bundle.yaml"), "--var", "bootstrap_servers=b:9092"]
OUTBOX = "postgres-outbox-connector"
POSTGRES = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "pg",
    "slot.name": "pg_slot",
    "database.hostname": "db",
    "database.dbname": "shop",
    "snapshot.mode": "when_needed",
    "table.include.list": "public.orders",
    "signal.data.collection": "public.debezium_signal",
}
MYSQL = {
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "topic.prefix": "my",
    "snapshot.mode": "when_needed",
    "schema.history.internal.kafka.topic": "history",
}
TRACE = "org.E: the slot is gone, password=hunter2\n\tat org.A.b(A.java:1)\nCaused by: p.F: why\n\t... 3 more"


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.connect.shared, "worker_at", at_once)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """`lakehouse connect` with these arguments."""
    return command_line.run(capsys, "connect", *arguments)


def told(out: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out)
    return answer


def at(stand_in: ConnectStandIn) -> list[str]:
    return ["--connect-url", stand_in.url]


# What is compared, and what is waited for.


def test_a_change_names_options_and_no_values() -> None:
    new = Connector(name="c", config={"a": "1", "b": "2", "d.password": "new"}, file="f")
    change = change_of(new, {"name": "c", "a": "1", "b": "3", "c": "4", "d.password": "old"})
    assert (change.outcome, change.added, change.removed, change.changed) == (
        "changed",
        (),
        ("c",),
        ("b", "d.password"),
    )
    assert str(change) == "removed: c; changed: b, d.password"
    assert change_of(new, {**new.config, "name": "c"}).outcome == "unchanged"
    assert change_of(new, None).outcome == "created"


def test_a_state_hides_secrets_of_the_trace() -> None:
    answer = {"name": "c", "connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "FAILED", "trace": TRACE}]}
    state = state_of(answer, config={"my.password": "slot"})
    assert state.has_failed
    assert state.first_line == "org.E: the ••• is gone, password=•••"
    assert state.tasks[0].trace.splitlines()[1] == "Caused by: p.F: why"


def test_a_state_counts_once_it_was_seen_again(stand_in: ConnectStandIn) -> None:
    stand_in.add("c", {})
    starting = stand_in.status("c") | {"tasks": []}
    old = stand_in.status("c")
    stand_in.answers["GET", "/connectors/c/status"] = [(200, old), (200, starting)]
    assert settled(at_once(stand_in.url), "c").is_unchanged
    assert len(stand_in.asked) == 5


def test_waiting_is_bounded(stand_in: ConnectStandIn) -> None:
    state = settled(at_once(stand_in.url), "absent", seconds=5)
    assert not state.is_unchanged
    assert len(stand_in.asked) == 5


# deploy.


def test_deploy_creates_then_leaves_alone_then_changes(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", OUTBOX, "--target", "dev", *BUNDLE, *at(stand_in), "--json"]
    code, out, _err = run(capsys, *command)
    assert code == 0
    assert [change["outcome"] for change in told(out)["changes"]] == ["created"]
    assert told(out)["states"][0]["state"] == "RUNNING"
    assert stand_in.configs[OUTBOX]["database.hostname"] == "127.0.0.1"
    assert stand_in.configs[OUTBOX]["database.password"] == "${env:DEBEZIUM_POSTGRES_PASSWORD}"
    stand_in.asked.clear()
    code, out, _err = run(capsys, *command)
    assert (code, told(out)["changes"][0]["outcome"]) == (0, "unchanged")
    assert stand_in.changes == []
    code, out, _err = run(capsys, *command, "--var", "postgres_host=elsewhere")
    assert told(out)["changes"][0]["changed"] == ["database.hostname"]
    assert stand_in.configs[OUTBOX]["database.hostname"] == "elsewhere"


def test_a_dry_run_of_deploy_changes_nothing(stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "deploy", "--target", "dev", *BUNDLE, *at(stand_in), "--dry-run")
    assert code == 0
    assert stand_in.changes == []
    assert out.count("created") == 4
    assert "Nothing was changed (dry run)" in out
    assert "4 connectors, 0 findings" in err


def test_deploy_refuses_on_a_finding_beside_what_runs(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.add("other", {**POSTGRES, "topic.prefix": "postgres_prod"})
    code, out, err = run(capsys, "deploy", "--target", "dev", *BUNDLE, *at(stand_in), "--json")
    assert code == 2
    (finding,) = told(out)["findings"]
    assert (finding["connector"], finding["check"], finding["key"]) == (OUTBOX, "shared_prefix", "topic.prefix")
    assert "Nothing was deployed" in told(out)["errors"][0]["what"]
    assert "other" in err
    assert stand_in.changes == []


def test_deploy_shows_what_the_connector_refuses(stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.refusals = {"database.hostname": ["Unable to connect, password=hunter2"], "database.password": ["hunter2"]}
    code, out, err = run(capsys, "deploy", OUTBOX, "--target", "dev", *BUNDLE, *at(stand_in))
    assert code == 4
    assert "database.hostname" in err
    assert "Unable to connect" in err
    assert "hunter2" not in out + err
    assert stand_in.changes == []


def test_deploy_waits_and_shows_a_task_that_failed(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.fails_with = TRACE
    code, out, err = run(capsys, "deploy", OUTBOX, "--target", "dev", *BUNDLE, *at(stand_in))
    assert code == 4
    assert "Caused by: p.F: why" in out
    assert "hunter2" not in out + err
    assert f"lakehouse connect restart {OUTBOX}" in err


def test_a_url_comes_from_the_environment_then_the_bundle(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _out, _err = run(capsys, "deploy", OUTBOX, *BUNDLE, "--var", f"connect_url={stand_in.url}", "--dry-run")
    assert code == 0
    monkeypatch.setenv("LAKEHOUSE_CONNECT_URL", stand_in.url)
    assert run(capsys, "status")[0] == 0
    monkeypatch.delenv("LAKEHOUSE_CONNECT_URL")
    monkeypatch.chdir("/")
    code, _out, err = run(capsys, "status")
    assert code == 2
    assert "set LAKEHOUSE_CONNECT_URL" in err


# status, restart, resume, delete.


def test_status_shows_all_and_fails_when_one_has_failed(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _err = run(capsys, "status", *at(stand_in))
    assert code == 0
    assert "No connector at" in out
    stand_in.add("fine", POSTGRES)
    code, out, _err = run(capsys, "status", *at(stand_in))
    assert code == 0
    assert "Next: lakehouse bronze" in out
    stand_in.states["fine"] = "STOPPED"
    assert "Next: lakehouse connect resume fine" in run(capsys, "status", *at(stand_in))[1]
    stand_in.states["fine"] = "RUNNING"
    stand_in.add("broken", POSTGRES, trace=TRACE)
    code, out, _err = run(capsys, "status", *at(stand_in), "--json")
    assert code == 4
    states = {state["connector"]: state for state in told(out)["states"]}
    assert states["broken"]["tasks"][0]["state"] == "FAILED"
    assert states["broken"]["tasks"][0]["trace"].startswith("org.E: the slot is gone, password=•••")
    code, out, err = run(capsys, "status", *at(stand_in))
    assert "10.0.0.1:8083" in out
    assert "the slot is gone" in out
    assert "1 of 2 connectors have failed: broken" in err
    assert run(capsys, "status", "fine", *at(stand_in))[0] == 0
    code, _out, err = run(capsys, "status", "fin", *at(stand_in))
    assert code == 4
    assert "There are: broken, fine" in err


def test_restart_takes_what_has_failed_or_everything(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.add("c", POSTGRES, trace=TRACE)
    assert run(capsys, "restart", "c", *at(stand_in))[0] == 0
    assert stand_in.changes == [("POST", "/connectors/c/restart?includeTasks=true&onlyFailed=true")]
    assert run(capsys, "restart", "c", "--all", *at(stand_in))[0] == 0
    assert stand_in.changes[-1][1].endswith("onlyFailed=false")
    assert run(capsys, "restart", "x", *at(stand_in))[0] == 4


def test_resume_lets_a_connector_go_on(stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.add("c", POSTGRES)
    stand_in.states["c"] = "STOPPED"
    code, out, _err = run(capsys, "resume", "c", *at(stand_in), "--json")
    assert (code, told(out)["states"][0]["state"]) == (0, "RUNNING")


def test_delete_says_what_stays_and_asks(stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.add("c", POSTGRES)
    code, out, err = run(capsys, "delete", "c", *at(stand_in))
    assert code == 2
    assert "nobody can be asked" in err
    assert "SELECT pg_drop_replication_slot('pg_slot');" in out
    assert "keeps all WAL" in out
    assert "c" in stand_in.configs
    code, out, _err = run(capsys, "delete", "c", *at(stand_in), "--dry-run", "--json")
    assert (code, told(out)["dry_run"], "c" in stand_in.configs) == (0, True, True)
    assert run(capsys, "delete", "c", *at(stand_in), "--yes")[0] == 0
    assert stand_in.configs == {}
    assert run(capsys, "delete", "c", *at(stand_in), "--yes")[0] == 4


def test_what_stays_of_mysql() -> None:
    said = " ".join(orphaned_resources(Connector(name="c", config=MYSQL, file="f")))
    assert "history" in said
    assert "slot" not in said


def test_the_offsets_that_stay_are_deleted_by_kafka_connect() -> None:
    said = " ".join(orphaned_resources(Connector(name="my orders", config=MYSQL, file="f")))
    assert "PUT /connectors/my%20orders/stop, then DELETE /connectors/my%20orders/offsets" in said


# render and check.


def test_render_prints_one_connector_as_kafka_connect_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run(capsys, "render", OUTBOX, "--target", "dev", *BUNDLE)
    assert (code, told(out)["name"]) == (0, OUTBOX)
    assert told(out)["config"]["database.port"] == "5432"


def test_render_writes_a_file_each_that_check_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "rendered"
    code, out, _err = run(capsys, "render", "--target", "dev", *BUNDLE, "--output", str(folder), "--json")
    written = told(out)["written"]
    assert (code, len(written)) == (0, 4)
    code, out, _err = run(capsys, "check", *written)
    assert code == 0
    assert "4 connectors, nothing found" in out


def test_a_missing_variable_names_its_place_and_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _out, err = run(capsys, "render", OUTBOX, "--target", "prod", *BUNDLE)
    assert code == 2
    assert "postgres_host has no value in target prod" in err
    assert f"{OUTBOX}.json" in err
    assert "database.hostname" in err
    assert "BUNDLE_VAR_postgres_host" in err
    monkeypatch.setenv("BUNDLE_VAR_postgres_host", "db.example.com")
    code, out, _err = run(capsys, "render", OUTBOX, "--target", "prod", *BUNDLE)
    assert (code, told(out)["config"]["database.hostname"]) == (0, "db.example.com")


def test_check_finds_what_is_wrong_with_own_files(
    stand_in: ConnectStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    lines = [
        "{",
        '"connector.class": "io.debezium.connector.mysql.MySqlConnector", // mine',
        '"database.server.id": "7",',
        '"database.server.name": "shop",',
        '"database.password": "hunter2"',
        "}",
    ]
    file.write_text("\n".join(lines))
    stand_in.add("other", {**MYSQL, "database.server.id": "7"})
    code, out, err = run(capsys, "check", str(file), "--own-server-id", "7", *at(stand_in), "--json")
    assert code == 2
    found = {(finding["check"], finding["key"], finding["line"]) for finding in told(out)["findings"]}
    assert found >= {
        ("json", "(file)", 2),
        ("old_name", "database.server.name", 4),
        ("missing", "topic.prefix", None),
        ("plain_secret", "database.password", 5),
        ("own_server_id", "database.server.id", 3),
        ("shared_server_id", "database.server.id", 3),
    }
    assert "hunter2" not in out + err
    assert f"{file}:4: mine: database.server.name" in err


def test_check_looks_at_topics_of_a_broker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def kept_topics(kafka: Any, _connectors: object) -> dict[str, KeptTopic]:
        asked.append(kafka.bootstrap_servers)
        return {"postgres_prod_tables.public.orders": KeptTopic(3, "compact")}

    monkeypatch.setattr(cli.connect.commands, "kept_topics", kept_topics)
    command = ["check", "--target", "dev", *BUNDLE]
    assert run(capsys, *command)[0] == 0
    assert asked == []
    code, out, _err = run(capsys, *command, "--bootstrap-servers", "b:9092", "--json")
    assert (code, asked) == (2, ["b:9092"])
    assert [finding["key"] for finding in told(out)["findings"]] == ["topic postgres_prod_tables.public.orders"]


def test_check_compares_where_types_are_placed_with_the_contracts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in MODELS:
        text = packaged_text(name).replace("payload: full", "payload: full\n    apply_as_deletes: [OrderDeleted]")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("envelope: outbox", "envelope: outbox\n        event_type: kind"))
    command = ["check", "--target", "dev", *BUNDLE]
    assert run(capsys, *command)[0] == 0
    code, out, _err = run(capsys, *command, "--contracts", str(tmp_path), "--json")
    assert code == 2
    found = [(finding["check"], finding["connector"]) for finding in told(out)["findings"]]
    assert found == [("event_type", "postgres-outbox-connector"), ("event_type", "mysql-outbox-connector")]
