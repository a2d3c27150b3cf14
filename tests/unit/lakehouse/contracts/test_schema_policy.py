"""`on_schema_change`: what a contract can say of a source that changes its columns."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from lakehouse.contracts.checks.references import mistakes
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from lakehouse.contracts.topics import TableRule

DEFAULTS = {
    "add": "evolve",
    "widen": "evolve",
    **dict.fromkeys(("narrow", "drop", "rename", "retype", "key"), "suspend"),
}


def test_by_default_what_adds_evolves_and_all_else_suspends() -> None:
    assert OnSchemaChange().model_dump() == DEFAULTS
    assert {kind: OnSchemaChange().of(kind) for kind in ("add", "drop")} == {"add": "evolve", "drop": "suspend"}


def test_a_table_has_its_own_policy_before_that_of_its_rule() -> None:
    rule = TableRule.model_validate(
        {
            "include": ["a"],
            "on_schema_change": {"drop": "evolve"},
            "on_schema_change_of": {"shop.payments": {"add": "suspend"}},
        }
    )
    assert (rule.policy_of("shop.orders").drop, rule.policy_of("shop.orders").add) == ("evolve", "evolve")
    assert (rule.policy_of("shop.payments").drop, rule.policy_of("shop.payments").add) == ("suspend", "suspend")


@pytest.mark.parametrize(
    "given", [{"on_schema_change": {"key": "evolve"}}, {"on_schema_change_of": {"a.b": {"key": "evolve"}}}]
)
def test_the_key_of_a_table_by_rule_is_that_of_its_records(given: Mapping[str, object]) -> None:
    with pytest.raises(ValidationError, match="`key: evolve` is of tables with a contract"):
        TableRule.model_validate({"include": ["a"], **given})


@pytest.mark.parametrize(
    ("given", "at", "why"),
    [
        ({"widen": "suspend"}, "widen", "is of tables by rule"),
        ({"narrow": "evolve"}, "narrow", "is of tables by rule"),
        ({"retype": "quarantine"}, "retype", "is of tables by rule"),
        ({"drop": "evolve"}, "rename", "evolve together, or neither"),
        ({"rename": "evolve", "drop": "quarantine"}, "rename", "evolve together, or neither"),
        ({"rename": "evolve", "drop": "evolve", "add": "suspend", "key": "evolve"}, None, None),
        ({"rename": "quarantine"}, None, None),
    ],
)
def test_what_a_contract_cannot_say_is_a_mistake(
    contracts: Contracts, given: Mapping[str, str], at: str | None, why: str | None
) -> None:
    table = contracts.silver.tables["mysql_orders"].model_copy(
        update={"on_schema_change": OnSchemaChange.model_validate(given)}
    )
    silver = contracts.silver.model_copy(update={"tables": {**contracts.silver.tables, "mysql_orders": table}})
    found = list(mistakes(contracts.model_copy(update={"silver": silver})))
    if at is None or why is None:
        assert found == []
        return
    (one,) = found
    assert (one.path[-2:], why in one.what) == (("on_schema_change", at), True)
