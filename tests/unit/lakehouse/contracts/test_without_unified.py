"""Contracts of a deployment without unified orders: what may be left out, and what belongs together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lakehouse.contracts.files import EMPTY, load_contracts, packaged_text
from lakehouse.contracts.models import NO_UNIFIED, Gate, GoldTables, Publication, TableGate
from lakehouse.contracts.published import keyed_table
from lakehouse.contracts.tables import SilverTables
from lakehouse.errors import ContractError, SettingsError
from tests.support.unified import BY_RULE, ITEMS, JOINED, UPSERT, written

GOLD, ROW_GATE, TABLE_GATE = "gold/tables.yaml", "silver/gate.yaml", "gold/gate.yaml"
UNIFIED = ("key", "columns", "sources", "publication")
NEEDS_UNIFIED = ("fulfillment", "marts")


def packaged() -> dict[str, object]:
    declared = yaml.safe_load(packaged_text(GOLD))
    assert isinstance(declared, dict)
    return declared


def refused(folder: Path) -> dict[str, str]:
    with pytest.raises(ContractError) as error:
        load_contracts(folder)
    return {problem.key: problem.what for problem in error.value.problems}


def test_topics_alone_are_enough(tmp_path: Path) -> None:
    contracts = load_contracts(written(tmp_path, {"bronze/topics.yaml": BY_RULE}))
    assert not contracts.gold.has_unified
    assert contracts.gold == GoldTables()
    assert contracts.silver == SilverTables()
    assert contracts.silver_gate == Gate()
    assert contracts.gold_gate == TableGate()
    assert contracts.feeds == {}
    assert contracts.sensitive_in_gold == frozenset()
    assert contracts.gold.published_topics == ()


def test_topics_cannot_be_left_out(tmp_path: Path) -> None:
    assert refused(written(tmp_path, {GOLD: {}}))["(file)"].startswith("this file of the contracts is absent")


@pytest.mark.parametrize("declared", [{}, {"upsert_topics": UPSERT}, {"joins": JOINED}])
def test_gold_may_have_no_unified_orders(tmp_path: Path, declared: dict[str, object]) -> None:
    contracts = load_contracts(written(tmp_path, {**ITEMS, GOLD: declared}))
    assert not contracts.gold.has_unified
    assert [topic.topic for topic in contracts.gold.published_topics] == [
        one["topic"] for one in UPSERT.values() if "upsert_topics" in declared
    ]
    assert keyed_table(contracts, "gold.unified_orders") is None
    with pytest.raises(SettingsError, match=re.escape(NO_UNIFIED)):
        _ = contracts.gold.unified_topic


def test_gates_and_tables_may_be_empty(tmp_path: Path) -> None:
    empty: dict[str, list[str]] = {"feeds": [], "expectations": []}
    files = {"bronze/topics.yaml": BY_RULE, ROW_GATE: empty, TABLE_GATE: empty, "silver/tables.yaml": {"tables": {}}}
    contracts = load_contracts(written(tmp_path, files))
    assert contracts.silver_gate.rules("items") == contracts.gold_gate.rules("items") == ()


def test_the_packaged_contracts_have_unified_orders() -> None:
    gold = load_contracts().gold
    assert gold.has_unified
    assert isinstance(gold.unified_topic, Publication)
    assert gold.published_topics == (gold.publication,)


@pytest.mark.parametrize("absent", UNIFIED)
def test_of_unified_orders_nothing_is_left_out_alone(tmp_path: Path, absent: str) -> None:
    declared = {name: one for name, one in packaged().items() if name != absent}
    given = [name for name in (*UNIFIED, *NEEDS_UNIFIED) if name in declared]
    what = f"the unified orders are declared in part: add {absent}, or leave out {', '.join(given)}"
    assert refused(written(tmp_path, {**ITEMS, GOLD: declared})) == {"(file)": what}


@pytest.mark.parametrize("name", [*UNIFIED, *NEEDS_UNIFIED])
def test_nothing_of_unified_orders_stands_alone(tmp_path: Path, name: str) -> None:
    absent = ", ".join(one for one in UNIFIED if one != name)
    what = f"the unified orders are declared in part: add {absent}, or leave out {name}"
    assert refused(written(tmp_path, {**ITEMS, GOLD: {name: packaged()[name]}})) == {"(file)": what}


def test_a_publication_of_null_is_none(tmp_path: Path) -> None:
    assert not load_contracts(written(tmp_path, {**ITEMS, GOLD: {"publication": None}})).gold.has_unified


def test_a_misspelt_key_is_named_and_not_missed(tmp_path: Path) -> None:
    declared = {name.replace("sources", "source"): one for name, one in packaged().items()}
    (said,) = refused(written(tmp_path, {**ITEMS, GOLD: declared})).values()
    assert "did you mean 'sources'?" in said


RULE = {
    **{"name": "key_present", "type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
    **{"on_failure": "fail", "description": "Every row has an id."},
}


@pytest.mark.parametrize(
    ("gate", "key"),
    [
        ({"feeds": ["items"], "expectations": [RULE]}, "expectations"),
        ({"publication": [RULE]}, "publication"),
    ],
)
def test_rules_that_nothing_would_ask_are_refused(tmp_path: Path, gate: dict[str, object], key: str) -> None:
    found = refused(written(tmp_path, {**ITEMS, TABLE_GATE: gate}))
    assert found[key] == (
        "There are no unified orders: gold/tables.yaml does not declare them. So these rules are never asked: leave "
        "them out"
    )


@pytest.mark.parametrize("file", [ROW_GATE, TABLE_GATE])
def test_rules_of_no_feed_are_refused(tmp_path: Path, file: str) -> None:
    found = refused(written(tmp_path, {**ITEMS, file: {"feeds": [], "expectations": [RULE]}}))
    assert found["feeds"] == "these rules are about no feed: name one, or leave the rules out"


def test_an_upsert_topic_has_no_table_of_unified_orders(tmp_path: Path) -> None:
    topic = {"x": {**UPSERT["items"], "table": "gold.unified_orders"}}
    found = refused(written(tmp_path, {**ITEMS, GOLD: {"upsert_topics": topic}}))
    assert "no table 'gold.unified_orders' in the contracts" in found["upsert_topics.x.table"]
    assert "There are: silver.items, silver.kinds" in found["upsert_topics.x.table"]


def test_where_there_is_no_table_the_sentence_says_so(tmp_path: Path) -> None:
    files = {name: ITEMS[name] for name in ("bronze/topics.yaml",)}
    (said, *_more) = refused(written(tmp_path, files)).values()
    assert said == "no table 'items' in silver/tables.yaml; there is none"


@pytest.mark.parametrize(
    ("absent", "near"),
    [
        ("silver/gate.yaml", "silver/gates.yaml"),
        ("gold/tables.yaml", "gold/tables.yml"),
        ("gold/gate.yaml", "gold/gat.yml"),
    ],
)
def test_a_file_that_is_named_nearly_so_is_not_passed_over(tmp_path: Path, absent: str, near: str) -> None:
    folder = written(tmp_path, {**ITEMS, near: {}})
    (folder / absent).unlink(missing_ok=True)
    assert refused(folder) == {"(file)": f"this file of the contracts is absent; is {Path(near).name} meant to be it?"}


def test_other_files_beside_the_contracts_mean_nothing(tmp_path: Path) -> None:
    load_contracts(written(tmp_path, {**ITEMS, "silver/notes.yaml": {}}))


def test_what_may_be_absent_is_never_the_packaged_file(tmp_path: Path) -> None:
    assert {"silver/tables.yaml", "silver/gate.yaml", "gold/tables.yaml", "gold/gate.yaml"} == EMPTY
    folder = written(tmp_path, {"bronze/topics.yaml": BY_RULE})
    (folder / "silver").mkdir()
    assert load_contracts(folder).silver_gate.expectations == ()


def test_the_schema_says_what_belongs_together() -> None:
    schema = GoldTables.model_json_schema()
    assert "required" not in schema
    needed = schema["dependentRequired"]
    assert set(needed) == {*UNIFIED, *NEEDS_UNIFIED}
    assert all(set(names) == set(UNIFIED) - {name} for name, names in needed.items())


def test_the_sentence_of_a_part_names_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path, {**ITEMS, GOLD: {"key": "id"}})
    with pytest.raises(ContractError, match=re.escape(f"{folder / GOLD}:1: (file): the unified orders are declared")):
        load_contracts(folder)
