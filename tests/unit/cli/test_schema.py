"""`lakehouse schema`: the columns of silver's tables, what has changed, and approving it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import silver.by_rule.tables
from cli import main
from cli.tables import schema
from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source, Topics
from monitoring.readings import warehouse as readings
from silver.rejects.suspended import CONTRACT
from tests.support.by_rule import connect, event, rule
from tests.unit.silver.by_rule.test_changed import RENAMED, WIDE, change_by

WHERE = ["--warehouse=./w"]
WAITING = change_by(WIDE, RENAMED).table
KEYED = change_by(
    WIDE,
    event(
        {"id": 1, "line": 2, "name": "a", "age": 1},
        key={"id": 1, "line": 2},
        schema=connect(id="int64", line="int64", name="string", age="int64"),
    ),
).table.model_copy(update={"name": "keyed", "topic": "order_dw.keyed"})


def with_tables(*tables: DiscoveredTable) -> Contracts:
    """The packaged contracts, and a source whose rule has made these tables."""
    contracts = load_contracts(None)
    source = Source(kind="mysql", by_rule={"all": rule().declared})
    sources = {**contracts.topics.sources, "dw": source}
    return contracts.model_copy(update={"topics": Topics(sources=sources)}).with_discovered(tables)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[DiscoveredTable]:
    """What is written down, without a warehouse in which two tables wait and one with a contract is suspended."""
    found: list[DiscoveredTable] = []
    contracts = with_tables(WAITING, KEYED)

    @contextmanager
    def acquire_lock(*_given: Any) -> Iterator[None]:
        yield

    class Tables(silver.by_rule.tables.DiscoveredTables):
        def store(self, warehouse: Any, tables: Any) -> None:
            found.extend(tables)

    causes = {"mysql_orders": {"rule": CONTRACT, "why": "its events have fields"}}
    monkeypatch.setattr(schema, "_known", lambda _chosen: contracts)
    monkeypatch.setattr(schema, "_tables", lambda _chosen: None)
    monkeypatch.setattr(schema, "require_table", lambda *_given: None)
    monkeypatch.setattr(readings, "suspension_causes", lambda _tables: causes)
    monkeypatch.setattr(schema, "opened", lambda *_given: SimpleNamespace())
    monkeypatch.setattr(schema, "acquire_lock", acquire_lock)
    monkeypatch.setattr(silver.by_rule.tables, "DiscoveredTables", Tables)
    monkeypatch.setattr(silver.by_rule.tables, "with_discovered_tables", lambda *_given: contracts)
    return found


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """What the command answers in JSON."""
    try:
        main.main(["schema", *arguments, *WHERE, "--json"])
    except SystemExit as ended:
        assert ended.code == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("written")
def test_columns_are_shown_with_their_types_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    (table,) = said(capsys, "show", WAITING.name)["tables"]
    assert (table["by_rule"], table["on_schema_change"]["drop"]) == ("all", "suspend")
    assert [(one["name"], one["type"], one["came_as"], one["key"]) for one in table["columns"]] == [
        ("id", "BIGINT", ["int64"], True),
        ("name", "STRING", ["string"], False),
        ("age", "BIGINT", ["int64"], False),
    ]


@pytest.mark.usefixtures("written")
def test_what_each_suspended_table_waits_for_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(one["table"], one["kind"]): one["next"] for one in said(capsys, "diff")["differences"]}
    assert found["order_dw_user", "rename"] == "lakehouse schema approve order_dw_user"
    assert found["keyed", "key"] == "a contract, or on_schema_change: {key: quarantine}"
    assert found["mysql_orders", CONTRACT].startswith("Name the field in silver/tables.yaml")


def test_an_approval_is_of_what_was_shown(capsys: pytest.CaptureFixture[str], written: list[DiscoveredTable]) -> None:
    said(capsys, "approve", WAITING.name, "--dry-run")
    assert written == []
    said(capsys, "approve", WAITING.name, "--yes")
    assert [(one.name, one.approved, one.version) for one in written] == [
        (WAITING.name, ("+called", "-name"), WAITING.version + 1)
    ]


def test_a_rename_is_approved_by_its_two_fields(
    capsys: pytest.CaptureFixture[str], written: list[DiscoveredTable]
) -> None:
    said(capsys, "approve", WAITING.name, "--rename", "name=called", "--yes")
    assert written[0].columns["name"].declared.fields == ("called", "name")
    assert written[0].why == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["mysql_orders"], "has a contract, which says its columns"),
        (["nothing"], "silver.nothing waits for no approval"),
        (["keyed"], "a table of another key is another table"),
        (["order_dw_user", "--rename", "age=called"], "does not wait for age to be gone"),
        (["order_dw_user", "keyed", "--rename", "name=called"], "--rename is of one table"),
    ],
)
def test_what_cannot_be_approved_is_refused(
    capsys: pytest.CaptureFixture[str], written: list[DiscoveredTable], arguments: list[str], why: str
) -> None:
    (error,) = said(capsys, "approve", *arguments, "--yes", code=2)["errors"]
    assert why in error["what"]
    assert written == []


def test_what_has_changed_since_it_was_shown_is_not_approved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: list[DiscoveredTable]
) -> None:
    later = with_tables(WAITING.model_copy(update={"version": 9}))
    monkeypatch.setattr(silver.by_rule.tables, "with_discovered_tables", lambda *_given: later)
    (error,) = said(capsys, "approve", WAITING.name, "--yes", code=2)["errors"]
    assert "have changed since they were shown" in error["what"]
    assert written == []


@pytest.mark.usefixtures("written")
def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["show"], ["diff"], ["approve", WAITING.name, "--yes"]):
        main.main(["schema", *arguments, *WHERE])
    out = capsys.readouterr().out
    for text in (
        "on_schema_change: add: evolve",
        "What has changed",
        "To be approved",
        "Approved. Next: lakehouse silver",
    ):
        assert text in out
