"""Joins in gold's contract: what their tables are, how they are published, and every mistake at its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.checks.upsert_checks import mistakes_of_discovered, why_not_yet
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import key_fields, keyed_table, not_there, value_fields
from lakehouse.errors import ContractError
from tests.support.joins import COLUMNS, FEEDBACK, ORDER, USER, contracts_with, user_orders

UPSERT = {"topic": "lakehouse.user_orders", "partitions": 1, "replication_factor": 1, "table": "gold.user_orders"}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    join = user_orders()
    change(join)
    return join


def test_without_joins_there_is_none(contracts: Contracts) -> None:
    assert contracts.gold.joins == {}


def test_a_join_has_the_key_of_its_table_and_its_columns_in_their_order(tmp_path: Path) -> None:
    contracts = contracts_with(tmp_path, joins={"user_orders": user_orders()}, gold={"upsert_topics": {"all": UPSERT}})
    join, topic = contracts.gold.joins["user_orders"], contracts.gold.upsert_topics["all"]
    assert join.tables == (ORDER, USER)
    table = keyed_table(contracts, "gold.user_orders")
    assert table is not None
    assert table.keys == ("order_id",)
    assert list(table.columns.items()) == [("order_id", "BIGINT"), ("product", "STRING"), ("user_name", "STRING")]
    assert [(one.name, one.optional) for one in key_fields(table, topic)] == [("order_id", False)]
    assert [one.name for one in value_fields(table, topic)] == ["order_id", "product", "user_name"]


def test_the_key_is_in_the_order_of_the_table_and_under_the_names_of_the_join(tmp_path: Path) -> None:
    columns = {**COLUMNS, ORDER: {"shard": "STRING", **COLUMNS[ORDER]}}
    join = changed(lambda join: join.update(columns={"order_id": "id", "of_shard": "shard", "again": "id"}))
    contracts = contracts_with(tmp_path, joins={"wide": join}, columns=columns, keys={ORDER: ["shard", "id"]})
    table = keyed_table(contracts, "gold.wide")
    assert table is not None
    assert table.keys == ("of_shard", "order_id")


def test_a_sensitive_column_is_published_by_name_alone(tmp_path: Path) -> None:
    columns = {**COLUMNS, USER: {"id": "BIGINT", "name": {"type": "STRING", "sensitive": True}}}
    topics = {"left": UPSERT, "named": {**UPSERT, "topic": "lakehouse.named", "columns": ["user_name"]}}
    contracts = contracts_with(
        tmp_path, joins={"user_orders": user_orders()}, columns=columns, gold={"upsert_topics": topics}
    )
    table = keyed_table(contracts, "gold.user_orders")
    assert table is not None
    values = {
        name: [one.name for one in value_fields(table, topic)] for name, topic in contracts.gold.upsert_topics.items()
    }
    assert values == {"left": ["order_id", "product"], "named": ["user_name"]}


def test_a_sensitive_key_has_to_be_named(tmp_path: Path) -> None:
    columns = {**COLUMNS, ORDER: {**COLUMNS[ORDER], "id": {"type": "BIGINT", "sensitive": True}}}
    with pytest.raises(ContractError, match="order_id is sensitive, and stands in the key of"):
        contracts_with(
            tmp_path, joins={"user_orders": user_orders()}, columns=columns, gold={"upsert_topics": {"all": UPSERT}}
        )


def other(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda join: join["left_join"][0].update(changes)


MISTAKES: list[tuple[Callable[[dict[str, Any]], object], str, str]] = [
    (lambda join: join.update(table="order_dw_orders"), "table", "did you mean 'order_dw_order'?"),
    (other(table="order_dw_usr"), "left_join.0.table", "did you mean 'order_dw_user'?"),
    (lambda join: join["columns"].update(product="produkt"), "columns.product", "did you mean 'product'?"),
    (other(columns={"user_name": "nam"}), "left_join.0.columns.user_name", "no column 'nam' in table order_dw_user"),
    (lambda join: join["columns"].pop("order_id"), "columns", "id is in the key of order_dw_order, which is the key"),
    (other(by={"id": "user"}), "left_join.0.by.id", "no column 'user' in table order_dw_order; did you mean 'user_id'"),
    (other(by={"idd": "user_id"}), "left_join.0.by.idd", "no column 'idd' in table order_dw_user; did you mean 'id'?"),
    (other(by={"name": "product"}), "left_join.0.by.name", "name is not in the key of order_dw_user, which is id"),
    (other(by={"name": "product"}), "left_join.0.by", "the key of order_dw_user is id, and id is not here: many rows"),
    (other(by={"id": "product"}), "left_join.0.by.id", "id of order_dw_user is BIGINT, and product of order_dw_order"),
    (other(columns={"product": "name"}), "", "two of its columns would be named product"),
    (other(by={}), "left_join.0.by", "at least 1 item"),
    (lambda join: join.update(left_join=[]), "left_join", "at least 1 item"),
    (lambda join: join["columns"].update({"_op": "id"}), "columns._op", "cannot be a name here"),
    (lambda join: join["left_join"][0].update({True: {"id": "user_id"}}), "left_join.0", "write `by` in place of `on`"),
    (lambda join: join["left_join"][0].update(on={"id": "user_id"}), "left_join.0", "write `by` in place of `on`"),
]


@pytest.mark.parametrize(("change", "key", "sentence"), MISTAKES)
def test_a_mistake_is_found_at_its_key(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], key: str, sentence: str
) -> None:
    with pytest.raises(ContractError) as refused:
        contracts_with(tmp_path, joins={"user_orders": changed(change)})
    found = {problem.key: problem.what for problem in refused.value.problems}
    whole = f"joins.user_orders.{key}".rstrip(".")
    assert sentence in found[whole]
    assert all(problem.line for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("keys", "key", "sentence"),
    [
        ({ORDER: []}, "table", "order_dw_order is append_only, a list of changes without a key: a join needs one"),
        ({USER: []}, "left_join.0.table", "order_dw_user is append_only, a list of changes without a key: many rows"),
        ({USER: ["id", "name"]}, "left_join.0.by", "the key of order_dw_user is id, name, and name is not here"),
    ],
)
def test_a_join_goes_by_whole_keys(tmp_path: Path, keys: dict[str, list[str]], key: str, sentence: str) -> None:
    with pytest.raises(ContractError) as refused:
        contracts_with(tmp_path, joins={"user_orders": user_orders()}, keys=keys)
    found = {problem.key: problem.what for problem in refused.value.problems}
    assert sentence in found[f"joins.user_orders.{key}"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("unified_orders", "gold.unified_orders is not a join"), ("orders_daily", "gold.orders_daily is a mart too")],
)
def test_a_join_has_a_name_of_its_own(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        contracts_with(tmp_path, joins={name: user_orders()})


def test_whole_numbers_of_other_sizes_can_be_compared(tmp_path: Path) -> None:
    columns = {**COLUMNS, ORDER: {**COLUMNS[ORDER], "user_id": "INT"}, USER: {"id": "DECIMAL(20,0)", "name": "STRING"}}
    assert contracts_with(tmp_path, joins={"user_orders": user_orders()}, columns=columns).gold.joins


def test_a_table_may_be_joined_twice_and_with_itself(tmp_path: Path) -> None:
    again = {"table": ORDER, "by": {"id": "user_id"}, "columns": {"other_product": "product"}}
    join = changed(lambda join: join["left_join"].append(again))
    contracts = contracts_with(tmp_path, joins={"user_orders": join})
    assert contracts.gold.joins["user_orders"].tables == (ORDER, USER)


def test_an_unknown_join_of_a_topic_is_found(tmp_path: Path) -> None:
    topics = {"all": {**UPSERT, "table": "gold.user_order"}}
    with pytest.raises(ContractError, match=r"no table 'gold.user_order'.*did you mean 'gold.user_orders'\?"):
        contracts_with(tmp_path, joins={"user_orders": user_orders()}, gold={"upsert_topics": topics})


def without(columns: Mapping[str, Any], feed: str) -> dict[str, Any]:
    return {name: of_table for name, of_table in columns.items() if name != feed}


def test_of_a_table_that_a_rule_may_make_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contracts, "may_be_discovered", lambda _self, name: name == USER)
    join = changed(other(columns={"user_name": "whatever"}))
    topics = {"joined": UPSERT, "users": {**UPSERT, "topic": "lakehouse.users", "table": f"silver.{USER}"}}
    contracts = contracts_with(
        tmp_path, joins={"user_orders": join}, columns=without(COLUMNS, USER), gold={"upsert_topics": topics}
    )
    assert keyed_table(contracts, "gold.user_orders") is None
    assert not_there(contracts, "gold.user_orders") == not_there(contracts, f"silver.{USER}") == (f"silver.{USER}",)
    assert not_there(contracts, f"silver.{FEEDBACK}") == not_there(contracts, "gold.orders_daily") == ()
    for topic in topics:
        assert why_not_yet(contracts, topic) == f"not there yet: silver.{USER}"


def test_what_is_known_is_checked_beside_a_table_that_may_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contracts, "may_be_discovered", lambda _self, name: name == ORDER)
    join = changed(other(by={"name": "user_id"}, columns={"user_name": "nam"}))
    with pytest.raises(ContractError) as refused:
        contracts_with(tmp_path, joins={"user_orders": join}, columns=without(COLUMNS, ORDER))
    keys = {problem.key.removeprefix("joins.user_orders.left_join.0.") for problem in refused.value.problems}
    assert keys == {"by", "by.name", "columns.user_name"}


def test_a_topic_whose_table_came_otherwise_says_why_it_waits(tmp_path: Path) -> None:
    contracts = contracts_with(tmp_path, joins={"user_orders": user_orders()}, gold={"upsert_topics": {"all": UPSERT}})
    assert why_not_yet(contracts, "all") is None
    feeds = contracts.feeds
    lacking = feeds[USER].model_copy(update={"columns": {"id": feeds[USER].columns["id"]}})
    made = DiscoveredTable(source="dw", rule="all", name=USER, topic="user", table="order_dw.user", known_by="values")
    contracts = contracts.model_copy(update={"discovered": {USER: made}})
    contracts.__dict__["feeds"] = {**feeds, USER: lacking}
    assert "no column 'name' in table order_dw_user" in str(why_not_yet(contracts, "all"))
    found = {(path[0], path[1]): what for path, what in mistakes_of_discovered(contracts)}
    assert found.keys() == {("joins", "user_orders"), ("upsert_topics", "all")}
    assert all("no column 'name' in table order_dw_user" in what for what in found.values())


def test_what_is_declared_and_what_is_not_there_yet_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = contracts_with(tmp_path, joins={"user_orders": user_orders()}, gold={"upsert_topics": {"all": UPSERT}})
    assert list(mistakes_of_discovered(contracts)) == []
    monkeypatch.setattr("lakehouse.contracts.checks.upsert_checks.not_there", lambda _contracts, _name: ("silver.x",))
    assert list(mistakes_of_discovered(contracts)) == []
