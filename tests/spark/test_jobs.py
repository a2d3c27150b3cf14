"""The jobs of one command, one after the other: what is begun beforehand for the ones that come."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cli import jobs
from cli.jobs import Work, run_jobs
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts, GoldTables
from lakehouse.quality import table_rules


@dataclass(frozen=True)
class Nothing:
    """Work whose jobs are all replaced."""

    settings = settings(warehouse="./w")
    warehouse = None
    contracts: Contracts = field(default_factory=load_contracts)


@pytest.mark.parametrize(
    ("names", "new", "expected"),
    [
        (("bronze", "silver", "gold"), {"postgres": 0, "mysql": 3}, ["bronze", "loading", "silver", "gold"]),
        (("bronze", "silver", "gold"), {"postgres": 0, "mysql": 0}, ["bronze", "silver", "gold"]),
        (("bronze", "silver"), {"postgres": 1, "mysql": 3}, ["bronze", "silver"]),
    ],
)
def test_what_gold_needs_is_loaded_beside_silver_when_there_is_something_new(
    names: Sequence[str], new: dict[str, int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def job(name: str, results: dict[str, Any]) -> Any:
        def run(_work: Work) -> dict[str, Any]:
            seen.append(name)
            return results

        return run

    replaced = {"bronze": job("bronze", {"new_records": new}), "silver": job("silver", {}), "gold": job("gold", {})}
    monkeypatch.setattr(jobs, "load_beforehand", lambda: seen.append("loading"))
    monkeypatch.setattr(jobs, "JOBS", replaced)
    run_jobs(names, cast(Work, Nothing()))
    assert seen == expected


def test_without_unified_orders_there_is_nothing_to_load_for_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(jobs, "load_beforehand", lambda: seen.append("loading"))
    replaced = {"bronze": lambda _work: {"new_records": {"shop": 3}}, "gold": lambda _work: {}}
    monkeypatch.setattr(jobs, "JOBS", replaced)
    without = Nothing(load_contracts().model_copy(update={"gold": GoldTables()}))
    assert run_jobs(("bronze", "gold"), cast(Work, without)).failures == []
    assert seen == []


def test_it_is_told_to_send_nothing_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GX_ANALYTICS_ENABLED", "true")
    seen: list[tuple[str, str]] = []
    loaded = threading.Event()

    def load(name: str) -> None:
        seen.append((name, os.environ["GX_ANALYTICS_ENABLED"]))
        loaded.set()

    monkeypatch.setattr("lakehouse.quality.table_rules.importlib.import_module", load)
    table_rules.load_beforehand()
    assert loaded.wait(30)
    assert seen == [("great_expectations", "false")]
