"""A run that finds nothing new begins no job, but for rules about the time."""

from __future__ import annotations

from typing import Any, cast

import pytest
from rich.console import Console

from cli import settled
from cli.jobs import RunOutcome, Work
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts, GoldTables, TableExpectation
from lakehouse.errors import GateHeldError
from lakehouse.steps import Steps
from monitoring.readings.tables import DeltaFiles

FRESH = TableExpectation(
    name="orders_are_fresh",
    type="expect_column_max_to_be_between",
    kwargs={"column": "created_at", "min_value": {"$PARAMETER": "now() - timedelta(hours=24)"}},
    on_failure="fail",
    description="An order has come within a day.",
)


def outcome_of(contracts: Contracts, patch: pytest.MonkeyPatch) -> tuple[list[tuple[str, ...]], RunOutcome]:
    """The jobs that a run begins that finds nothing new, and its outcome."""
    begun: list[tuple[str, ...]] = []
    blocked = GateHeldError("Gate 2 blocks a source.", remedy="See the rules.")

    def run_jobs(names: tuple[str, ...], _work: Work, **_more: Any) -> RunOutcome:
        begun.append(names)
        return RunOutcome({name: {} for name in names}, [blocked] if names else [])

    for name in ("ends_of_bronze", "ends_of_publish"):
        patch.setattr(settled, name, lambda *_given, **_more: {})
    patch.setattr(settled, "is_settled", lambda *_given: True)
    patch.setattr(settled, "run_jobs", run_jobs)
    work = Work(cast(Any, None), settings(warehouse="./w"), contracts, Steps(Console(quiet=True)), {}, "run")
    look = settled.look_for_news(
        work.settings, contracts, known={}, tables=DeltaFiles(work.settings.address), steps=work.steps
    )
    outcome = settled.run_unless_settled(work, look, before_each=None)
    assert look.ends_a_run == (begun == [()]), "where nothing is asked, Java need not start"
    return begun, outcome


def test_without_a_rule_about_the_time_no_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, outcome = outcome_of(load_contracts(), monkeypatch)
    assert (begun, outcome.results, outcome.failures) == ([()], {"nothing_new": True}, [])


@pytest.mark.parametrize("rules", ["expectations", "publication"])
def test_gold_asks_a_rule_about_the_time_and_publish_says_whom_it_blocks(
    monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    contracts = load_contracts()
    gate = contracts.gold_gate.model_copy(update={rules: (FRESH,)})
    begun, outcome = outcome_of(contracts.model_copy(update={"gold_gate": gate}), monkeypatch)
    assert begun == [("gold", "publish")]
    assert outcome.results == {"nothing_new": True, "gold": {}, "publish": {}}
    assert [type(failure) for failure in outcome.failures] == [GateHeldError]


def test_without_unified_orders_there_is_no_gate_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    contracts = load_contracts()
    gate = contracts.gold_gate.model_copy(update={"publication": (FRESH,)})
    without = contracts.model_copy(update={"gold": GoldTables(), "gold_gate": gate})
    assert outcome_of(without, monkeypatch)[0] == [()]
