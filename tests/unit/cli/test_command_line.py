"""The command line where no Spark is needed: contracts checked and begun, answers as JSON, mistakes as sentences."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from lakehouse import errors
from lakehouse.contracts.files import MODELS, load_contracts
from tests.support.command_line import run
from tools.commands import EXIT_CODES, every_command
from tools.generated import commands as reference_files
from tools.generated import troubles

JOBS = ("bronze", "silver", "gold", "publish", "run")
OF_CONNECT = ("connect deploy", "connect delete")
WRITES = {"offsets set", "offsets forget", "init", *OF_CONNECT}


def as_json(out: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_validate_shows_the_feeds_and_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.process_time()
    code, out, _err = run(capsys, "validate")
    assert time.process_time() - started < 2
    assert code == 0
    assert "silver.mysql_outbox_orders" in out
    assert "No mistake. Next: lakehouse run --dry-run" in out


def test_init_begins_a_folder_that_validates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    code, out, _err = run(capsys, "init", str(folder))
    assert code == 0
    assert f"lakehouse validate --contracts {folder}" in out
    assert load_contracts(folder) == load_contracts()
    for name in MODELS:
        path = folder / name
        schema = path.read_text().split("\n", 1)[0].removeprefix("# yaml-language-server: $schema=")
        assert json.loads((path.parent / schema).read_text())["properties"]
    code, out, _err = run(capsys, "validate", "--contracts", str(folder), "--json")
    assert (code, as_json(out)["ok"]) == (0, True)
    topics = ["mysql_prod_tables.ecommerce.orders"]
    assert as_json(out)["feeds"]["mysql_orders"] == {"source": "mysql", "topics": topics}


def test_init_writes_over_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _out, err = run(capsys, "init", str(tmp_path))
    assert code == 2
    assert "is there already, and not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_dry_run_of_init_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _err = run(capsys, "init", str(tmp_path / "own"), "--dry-run", "--json")
    assert (code, as_json(out)["dry_run"]) == (0, True)
    assert set(MODELS) < set(as_json(out)["files"])
    assert not (tmp_path / "own").exists()


def test_every_mistake_is_in_the_answer_of_validate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    run(capsys, "init", str(folder))
    for file, right, wrong in (
        ("silver/tables.yaml", "DECIMAL(10,2)", "DECIMAL(10.2)"),
        ("bronze/topics.yaml", "kind: mysql", "kind: mysq"),
    ):
        (folder / file).write_text((folder / file).read_text().replace(right, wrong, 1))
    code, out, err = run(capsys, "validate", "--contracts", str(folder), "--json")
    assert code == 2
    answer = as_json(out)
    (error,) = answer["errors"]
    assert (answer["command"], answer["ok"], answer["exit_code"], error["kind"]) == ("validate", False, 2, "Contract")
    places = {(Path(problem["file"]).name, problem["key"]) for problem in error["problems"]}
    assert places == {
        ("topics.yaml", "sources.mysql.kind"),
        ("tables.yaml", "tables.postgres_orders.columns.total_amount.type"),
        ("tables.yaml", "tables.mysql_orders.columns.total_amount.type"),
    }
    assert "'mysq' is not one of 'postgresql', 'mysql' or 'mariadb'; did you mean 'mysql'?" in err
    assert "Fix these 3, then: lakehouse validate" in err


@pytest.mark.parametrize("command", [*JOBS, "validate"])
def test_a_folder_of_contracts_can_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONTRACTS", str(tmp_path / "nowhere"))
    monkeypatch.setenv("LAKEHOUSE_WAREHOUSE", str(tmp_path / "warehouse"))
    code, _out, err = run(capsys, command)
    assert code == 2
    assert "There is no folder of contracts" in err
    assert "lakehouse init" in err


@pytest.mark.parametrize(
    "command",
    [
        *(
            *JOBS,
            "offsets show",
            "offsets set",
            "offsets forget",
            "verify",
            "quality report",
            "quality audit",
            "validate",
            "init",
            "jars",
        ),
        *(f"connect {command}" for command in ("render", "check", "deploy", "status", "restart", "resume", "delete")),
    ],
)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _err = run(capsys, *command.split(), "--help")
    assert code == 0
    assert f"Example: lakehouse {command}" in out
    assert "--json" in out
    if command.split(maxsplit=1)[0] in JOBS or command in WRITES:
        assert "--dry-run" in out


def test_the_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    _code, out, _err = run(capsys, "--help")
    codes = {
        error.exit_code for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "exit_code")
    }
    for code in {0, *codes}:
        assert re.search(rf"\b{code} [a-zA-Z]", out), code


def test_an_error_of_a_parameter_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run(capsys, "silver", "--json")
    answer = as_json(out)
    assert (code, answer["exit_code"], answer["errors"][0]["kind"]) == (2, 2, "Settings")
    assert answer["errors"][0]["hint"].startswith("Pass --warehouse")


SPARK_COMMANDS = (
    *JOBS,
    "verify",
    "unlock",
    "purge",
    "forget postgres_orders 1",
    "offsets show postgres",
    "quality report",
    "quality audit",
    "quarantine list",
)


@pytest.mark.parametrize("command", SPARK_COMMANDS)
def test_a_wrong_setting_of_spark_is_a_sentence_without_its_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    where = ("--warehouse", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1")
    code, out, err = run(capsys, *command.split(), *where, "--spark-conf", "fs.s3a.secret.key=4711")
    assert code == 2
    assert "--spark-conf number 1 is not KEY=VALUE with a key of Spark, which begins with spark." in err
    assert "4711" not in out + err


def test_a_wrong_master_is_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_MASTER", "master-1:7077")
    code, _out, err = run(capsys, "silver", "--warehouse", str(tmp_path))
    assert code == 2
    assert "'master-1:7077' is no master of Spark. Give spark://HOST:PORT" in err


def test_on_databricks_a_master_is_a_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    code, _out, err = run(capsys, "silver", "--warehouse", str(tmp_path), "--master", "local[*]")
    assert code == 2
    assert "--master has no meaning on Databricks" in err


def test_the_help_of_every_command_begins_with_a_sentence_and_ends_with_an_example() -> None:
    commands = [one for one in every_command() if not one.is_group]
    assert len(commands) > len(JOBS) + len(WRITES)
    for command in commands:
        assert re.fullmatch(r"[A-Z][a-z][^`\n]+\.", command.first_sentence), command.name
        assert command.paragraphs[-1].startswith(f"Example: {command.name}"), command.name


def test_the_command_reference_and_the_troubles_are_as_the_code_would_write_them() -> None:
    made = {**reference_files(), **troubles()}
    stale = [str(path) for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make generated`"


def test_the_command_reference_has_every_exit_code() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.LakehouseError)]
    assert EXIT_CODES.keys() == {0, *(one.exit_code for one in classes)}


def test_validate_shows_what_rules_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze").mkdir()
    (tmp_path / "bronze" / "topics.yaml").write_text(
        "sources:\n  dw:\n    kind: mysql\n    by_rule:\n      order_dw:\n        include: ['dw\\..*']\n"
    )
    main(["validate", "--contracts", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "silver.{database}_{table}" in shown
    assert r"/dw\..*/" in shown
    main(["validate", "--contracts", str(tmp_path), "--json"])
    rules = json.loads(capsys.readouterr().out)["by_rule"]
    assert rules == {"order_dw": {"source": "dw", "include": [r"dw\..*"], "exclude": [], "name": "{database}_{table}"}}
