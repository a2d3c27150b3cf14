"""Which rules of gate 2 are asked, and about what: changed rows or all, again by the time or by other tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256

from lakehouse.contracts.models import Contracts, Expectation, TableExpectation, TableGate
from lakehouse.quality.arguments import SQL_RULE, looks_at_the_time
from lakehouse.quality.counting import (
    is_carried,
)


def by_scope(
    rules: Iterable[TableExpectation], *, is_known: bool
) -> tuple[list[TableExpectation], list[TableExpectation]]:
    """The rules that are asked about changed rows, and those about all. `is_known`: whether one knows what changed."""
    of_changes = [rule for rule in rules if is_known and rule.scope == "changes"]
    return of_changes, [rule for rule in rules if rule not in of_changes]


def looks_beyond(rule: TableExpectation) -> bool:
    """Whether the rule can come out otherwise about the same rows: by the time, or by other tables."""
    return rule.scope == "table" and (rule.type == SQL_RULE or looks_at_the_time(rule))


def may_have_changed(rule: TableExpectation, with_changes: Collection[str]) -> bool:
    """Whether the rule can come out otherwise about the same rows now: by the time, or by tables `with_changes`."""
    return looks_beyond(rule) and (looks_at_the_time(rule) or bool(named_tables([rule], with_changes)))


def asks_about_the_time(gate: TableGate) -> bool:
    """Whether a rule of the gate can come out otherwise later, though nothing has changed."""
    return any(may_have_changed(rule, ()) for rule in (*gate.expectations, *gate.publication))


def columns_asked(contracts: Contracts) -> dict[str, set[str]]:
    """Of the silver tables, by name, the columns that gold takes and rules about changed rows name.

    Not of a table that such a rule asks about in SQL, which may name any.
    """
    found = {}
    for feed, table in contracts.silver.tables.items():
        rules = [rule for rule in contracts.gold_gate.rules(feed) if rule.scope == "changes"]
        if not any(rule.type == SQL_RULE for rule in rules):
            words = {word for rule in rules for word in re.findall(r"\w+", str(rule.kwargs))}
            found[f"silver.{feed}"] = {*contracts.gold.columns, contracts.gold.key, *table.keys, "_is_deleted", *words}
    return found


def columns_carried(contracts: Contracts) -> dict[str, set[str]]:
    """Of the silver tables, by name, the words of rules whose counts are carried on; columns are among them."""
    found = {}
    for feed in contracts.silver.tables:
        rules = [rule for rule in contracts.gold_gate.rules(feed) if rule.scope == "table" and is_carried(rule)]
        words = {word for rule in rules for word in re.findall(r"\w+", str(rule.kwargs))}
        if rules:
            found[f"silver.{feed}"] = {"_is_deleted", *words}
    return found


def rules_of_tables(gate: TableGate) -> str:
    """The definition of silver's tables as they pass: the rules that the gate has for them now."""
    return _digest(*gate.feeds, *gate.expectations)


def rules_of_publication(gate: TableGate) -> str:
    """The definition of what is proven of a source: the rules that gold has to meet now."""
    return _digest(*gate.publication)


def _digest(*parts: Expectation | str) -> str:
    texts = [part if isinstance(part, str) else part.model_dump_json() for part in parts]
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def named_tables(rules: Sequence[Expectation], names: Iterable[str]) -> list[str]:
    """Of these names, those that are in a query of the rules."""
    words = {word for rule in rules for word in re.findall(r"\w+", str(rule.kwargs.get("unexpected_rows_query", "")))}
    return [name for name in names if name in words]
