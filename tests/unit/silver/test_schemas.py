"""The registry's schemas of a source: its own, for other sources learn beside it."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.registered import RegisteredSchema
from lakehouse.spark.side_by_side import Round
from silver import apply
from silver.accounts.audit import StateCache
from silver.job import SilverJob
from silver.schema.schemas import HIGHEST_ID, NOT_THERE, Schemas

KNOWN = RegisteredSchema("AVRO", "{}")
NO_WAREHOUSE: Any = None
NO_SPARK: Any = None


def test_what_a_source_learns_is_its_own() -> None:
    warehouse_has = Schemas(None, {1: KNOWN})
    one, other = warehouse_has.copied(), warehouse_has.copied()
    one.learn(NO_WAREHOUSE, [1, HIGHEST_ID + 1])
    assert one.known == {1: KNOWN, HIGHEST_ID + 1: NOT_THERE}
    assert other.known == warehouse_has.known == {1: KNOWN}
    assert Schemas().copied() == Schemas()


def test_no_two_sources_share_what_they_know(
    contracts: Contracts, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they in the next pass of the process, which asks the warehouse for nothing."""
    asked: list[str] = []
    jobs: dict[str, SilverJob] = {}

    def kept(*_given: object) -> Schemas:
        asked.append("warehouse")
        return Schemas(None, {1: KNOWN})

    def news(_warehouse: object, of_sources: dict[str, SilverJob], _sources: object, **_more: object) -> Round:
        jobs.update(of_sources)
        return Round({})

    for name in ("require_rules", "_load_states", "ensure_tables", "keep_state_small", "_store_rule_results"):
        monkeypatch.setattr(apply, name, lambda *_given, **_more: None)
    monkeypatch.setattr(apply, "_raise_if_stopped", lambda *_given, **_more: None)
    monkeypatch.setattr(apply, "_resume_tables", lambda *_given, **_more: [])
    monkeypatch.setattr(apply, "schemas", kept)
    monkeypatch.setattr(apply, "discovered_tables", lambda *_given: [])
    monkeypatch.setattr(apply, "key_rows", lambda *_given: [])
    monkeypatch.setattr(apply, "_apply_news", news)
    state_caches: dict[str, StateCache] = {}
    chosen = settings(warehouse=str(tmp_path))
    apply.run(NO_SPARK, chosen, contracts, run_id="first", state_caches=state_caches)
    assert jobs.keys() == contracts.topics.sources.keys()
    first, second = jobs.values()
    first.schemas.learn(NO_WAREHOUSE, [HIGHEST_ID + 1])
    assert second.schemas.known == {1: KNOWN}
    assert all(feed.schemas == {1: KNOWN} for feed in second.feeds.values())
    learned = {source: job.schemas for source, job in jobs.items()}
    apply.run(NO_SPARK, chosen, contracts, run_id="second", state_caches=state_caches)
    assert {source: job.schemas for source, job in jobs.items()} == learned
    assert asked == ["warehouse"]
