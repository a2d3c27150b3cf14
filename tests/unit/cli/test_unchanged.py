"""A run that finds nothing new begins no job, but for rules about the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from cli import unchanged
from cli.jobs import RunContext, RunOutcome
from cli.running import EVERY_JOB
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts, GoldTables, TableExpectation
from lakehouse.errors import GateHeldError
from lakehouse.process.steps import Steps
from monitoring.readings.tables import DeltaFiles
from tests.unit.monitoring.delta import tables_in, write_batches

FRESH = TableExpectation(
    name="orders_are_fresh",
    type="expect_column_max_to_be_between",
    kwargs={"column": "created_at", "min_value": {"$PARAMETER": "now() - timedelta(hours=24)"}},
    on_failure="fail",
    description="An order has come within a day.",
)


def outcome_of(
    contracts: Contracts, patch: pytest.MonkeyPatch, names: Sequence[str] = EVERY_JOB
) -> tuple[list[list[str]], RunOutcome]:
    """The jobs that a run begins that finds nothing new, and its outcome."""
    begun: list[list[str]] = []
    blocked = GateHeldError("Gate 2 blocks a source.", hint="See the rules.")

    def run_jobs(names: Sequence[str], _work: RunContext, **_more: Any) -> RunOutcome:
        begun.append([*names])
        return RunOutcome({name: {} for name in names}, [blocked] if names else [])

    for name in ("ends_of_bronze", "published_topics"):
        patch.setattr(unchanged, name, lambda *_given, **_more: {})
    patch.setattr(unchanged, "is_unchanged", lambda *_given, **_more: True)
    patch.setattr(unchanged, "run_jobs", run_jobs)
    work = RunContext(cast(Any, None), settings(warehouse="./w"), contracts, Steps(Console(quiet=True)), {}, "run")
    look = unchanged.look_for_news(
        work.settings, contracts, names, known={}, tables=DeltaFiles(work.settings.address), steps=work.steps
    )
    outcome = unchanged.skip_if_unchanged(names, work, look, before_each=None)
    assert look.ends_a_run == (begun == [[]]), "where nothing is asked, Java need not start"
    return begun, outcome


def test_without_a_rule_about_the_time_no_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, outcome = outcome_of(load_contracts(), monkeypatch)
    assert (begun, outcome.results, outcome.failures) == ([[]], {"nothing_new": True}, [])


@pytest.mark.parametrize("rules", ["expectations", "publication"])
def test_gold_asks_a_rule_about_the_time_and_publish_says_whom_it_blocks(
    monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    contracts = load_contracts()
    gate = contracts.gold_gate.model_copy(update={rules: (FRESH,)})
    begun, outcome = outcome_of(contracts.model_copy(update={"gold_gate": gate}), monkeypatch)
    assert begun == [["gold", "publish"]]
    assert outcome.results == {"nothing_new": True, "gold": {}, "publish": {}}
    assert [type(failure) for failure in outcome.failures] == [GateHeldError]


def test_a_job_without_rules_is_not_begun_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    contracts = load_contracts()
    gate = contracts.gold_gate.model_copy(update={"publication": (FRESH,)})
    timed = contracts.model_copy(update={"gold_gate": gate})
    assert outcome_of(timed, monkeypatch, ["silver"])[0] == [[]]
    assert outcome_of(timed, monkeypatch, ["gold"])[0] == [["gold"]]


@pytest.mark.parametrize("topic_id", ["lZ1QvBpTQ0e3", "/Z1QvBpTQ0e3", "lZ1QvB//Q0e3"])
def test_a_job_looks_at_its_own_topics_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_id: str) -> None:
    """An id is of base64: it may have slashes anywhere."""
    contracts, commits = load_contracts(), {"silver.orders": "1 4"}
    monkeypatch.setattr(unchanged, "_tables_now", lambda *_given, **_more: commits)
    ends, published = {f"orders/0/{topic_id}": 5}, {"unified": topic_id}
    left = {"made_by": unchanged._made_by(contracts), "ends": [*ends.items()], "published": [*published.items()]}
    write_batches(
        tmp_path,
        {
            "layer": "run",
            "fingerprint": {**left, "tables": [*commits.items()]},
            "written_at": datetime(2026, 1, 1, tzinfo=UTC),
        },
    )

    def is_unchanged(names: Sequence[str], ends: Mapping[str, int], published: Mapping[str, str]) -> bool:
        return unchanged.is_unchanged(tables_in(tmp_path), contracts, names, ends=ends, published=published)

    more, others = {f"orders/0/{topic_id}": 6}, {"unified": "another"}
    assert is_unchanged(EVERY_JOB, ends, published)
    assert is_unchanged(["bronze"], ends, {})
    assert is_unchanged(["publish"], {}, published)
    assert is_unchanged(["silver", "gold"], {}, {})
    assert not is_unchanged(["bronze"], more, {})
    assert not is_unchanged(["publish"], {}, others)
    assert not is_unchanged(EVERY_JOB, more, published)
    assert not is_unchanged(EVERY_JOB, ends, others)
    commits["silver.orders"] = "1 5"
    assert not is_unchanged(["silver", "gold"], {}, {})


def test_without_unified_orders_there_is_no_gate_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    contracts = load_contracts()
    gate = contracts.gold_gate.model_copy(update={"publication": (FRESH,)})
    without = contracts.model_copy(update={"gold": GoldTables(), "gold_gate": gate})
    assert outcome_of(without, monkeypatch)[0] == [[]]
