"""`lakehouse purge`: what can go is looked for where nobody else writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import cli.tables.accounts
import silver.purge
from cli import main
from cli.tables import purge
from silver.purge import Plan

WHERE = ["--warehouse=./w"]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; without a warehouse."""
    happened: list[str] = []

    @contextmanager
    def acquire_lock(*_given: Any) -> Iterator[SimpleNamespace]:
        happened.append("locked")
        yield SimpleNamespace(check=lambda: happened.append("still locked"))
        happened.append("unlocked")

    def plan(_warehouse: Any, _contracts: Any, feed: Any, **_more: Any) -> Plan:
        happened.append("plan")
        return Plan(feed.name, "{}", 1)

    monkeypatch.setattr(purge, "opened", lambda *_given: SimpleNamespace())
    monkeypatch.setattr(purge, "with_discovered_tables", lambda chosen, _warehouse: chosen)
    monkeypatch.setattr(purge, "acquire_lock", acquire_lock)
    monkeypatch.setattr(cli.tables.accounts, "skipped_topics", lambda *_given: set())
    monkeypatch.setattr(silver.purge, "plan", plan)
    monkeypatch.setattr(silver.purge, "carry_out", lambda *_given: happened.append("delete"))
    return happened


def test_what_can_go_is_looked_for_under_the_lock_under_which_it_goes(done: list[str]) -> None:
    main.main(["purge", *WHERE, "--feed", "mysql_orders"])
    assert done == ["locked", "plan", "still locked", "delete", "unlocked"]


def test_a_dry_run_needs_no_lock(done: list[str]) -> None:
    main.main(["purge", *WHERE, "--feed", "mysql_orders", "--dry-run"])
    assert done == ["plan"]
