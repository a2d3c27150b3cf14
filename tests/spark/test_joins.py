"""Joins: tables of gold that follow the silver tables they join, from either side, and are always the whole join."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.tables import jobs
from bronze.events import events_table
from cli.jobs import RunContext, run_jobs
from cli.main import main
from cli.tables import verify
from gold import build
from gold.derived import joins
from gold.derived.joined import changed_keys
from gold.derived.recomputed import TableComparison
from gold.state_store import StateStore
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.process.steps import Steps, wide_console
from silver.apply import ensure_tables
from tests.support.joins import COLUMNS, FEEDBACK, ORDER, USER, OrderDw, contracts_with, user_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROUNDS, SEED = int(os.environ.get("JOIN_ROUNDS", "5")), int(os.environ.get("JOIN_SEED", "7"))
# Of a change of three users: the changed keys, the orders, the users, and a MERGE.
JOBS_OF_THREE_USERS = 22
USERS = ({"id": 1, "name": "Tom"}, {"id": 2, "name": "Jerry"})
ORDERS = ({"id": 1, "product": "Football", "user_id": 2}, {"id": 2, "product": "Basket", "user_id": 1})
FEEDBACKS = ({"id": 1, "user_id": 1, "comment": "Good."}, {"id": 2, "user_id": 2, "comment": "Very good"})
JOINS = {
    "user_orders": user_orders(),
    "user_feedback": {
        "table": FEEDBACK,
        "columns": {"feedback_id": "id", "comment": "comment"},
        "left_join": [{"table": USER, "by": {"id": "user_id"}, "columns": {"user_name": "name"}}],
    },
}


def dw_of(spark: SparkSession, folder: Path, **how: Any) -> OrderDw:
    contracts = contracts_with(folder / "contracts", **how)
    location = folder / "warehouse"
    dw = OrderDw(Warehouse(spark, str(location), str(location / "_checkpoints")), contracts)
    dw.create()
    return dw


@pytest.fixture(scope="module")
def dw(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OrderDw:
    """One story, of the tests of this module in their order."""
    dw = dw_of(spark, tmp_path_factory.mktemp("dw"), joins=JOINS)
    dw.write(USER, *USERS)
    dw.write(ORDER, *ORDERS)
    dw.write(FEEDBACK, *FEEDBACKS)
    return dw


def test_a_first_run_computes_it_whole_and_says_so(dw: OrderDw) -> None:
    assert dw.pending() == {"user_orders": 2, "user_feedback": 2}
    assert not dw.warehouse.exists("gold.user_orders")
    outcome = dw.refresh()
    assert outcome.written == {"user_orders": 2, "user_feedback": 2}
    assert set(outcome.whole.values()) == {"nothing of it was taken before under this contract"}
    assert dw.rows() == [(1, "Football", "Jerry"), (2, "Basket", "Tom")]
    assert dw.rows("user_feedback") == [(1, "Good.", "Tom"), (2, "Very good", "Jerry")]


def test_without_news_there_is_no_job(dw: OrderDw) -> None:
    before = jobs(dw.warehouse.spark)
    assert dw.pending() == {"user_orders": 0, "user_feedback": 0}
    assert dw.refresh() == joins.JoinsOutcome({"user_orders": 0, "user_feedback": 0})
    assert jobs(dw.warehouse.spark) == before


def test_a_user_who_is_renamed_changes_his_rows_alone(dw: OrderDw) -> None:
    dw.write(USER, {"id": 2, "name": "Gerald"}, {"id": 1, "name": "Tom"})
    outcome = dw.refresh()
    assert (outcome.written, outcome.whole) == ({"user_orders": 1, "user_feedback": 1}, {})
    assert dw.rows() == [(1, "Football", "Gerald"), (2, "Basket", "Tom")]


def test_a_user_who_comes_late_fills_his_rows(dw: OrderDw) -> None:
    dw.write(ORDER, {"id": 3, "product": "Racket", "user_id": 3}, {"id": 4, "product": "Ball", "user_id": None})
    assert dw.refresh().written["user_orders"] == 2
    assert dw.rows()[2:] == [(3, "Racket", None), (4, "Ball", None)]
    dw.write(USER, {"id": 3, "name": "Spike"})
    assert dw.refresh().written["user_orders"] == 1
    assert dw.rows()[2:] == [(3, "Racket", "Spike"), (4, "Ball", None)]


def test_a_user_who_goes_empties_his_rows(dw: OrderDw) -> None:
    dw.write(USER, {"id": 1, "name": "Tom", "_is_deleted": True})
    assert dw.refresh().written["user_orders"] == 1
    assert dw.rows()[1] == (2, "Basket", None)
    assert dw.rows("user_feedback")[0] == (1, "Good.", None)


def test_orders_come_change_and_go(dw: OrderDw) -> None:
    dw.write(
        ORDER,
        {"id": 1, "product": "Football", "user_id": 3},  # of another user
        {"id": 3, "product": "Racket", "user_id": 3, "_is_deleted": True},
        {"id": 4, "product": "Ball", "user_id": None},  # written again, the same
        {"id": 5, "product": None, "user_id": 2},
    )
    assert dw.pending() == {"user_orders": 3, "user_feedback": 0}
    assert dw.pending(whole=True)["user_feedback"] == 2
    assert dw.refresh().written == {"user_orders": 3, "user_feedback": 0}
    assert dw.rows() == [(1, "Football", "Spike"), (2, "Basket", None), (4, "Ball", None), (5, None, "Gerald")]


def test_a_row_that_was_removed_from_silver_leaves_the_join(dw: OrderDw) -> None:
    dw.warehouse.delta(f"silver.{ORDER}").delete("id = 4")
    assert dw.refresh().written["user_orders"] == 1
    assert dw.rows() == dw.whole()


def test_a_run_that_died_is_repeated_and_ends_the_same(dw: OrderDw) -> None:
    dw.write(USER, {"id": 2, "name": "Jerry"})
    dw.refresh(record=False)
    assert (1, "Football", "Spike") in dw.rows()
    dw.write(USER, {"id": 2, "name": "Gerald"}, {"id": 9, "name": "Nobody"})  # as it was before the run that died
    dw.store = StateStore()
    assert dw.refresh().written["user_orders"] == 1
    assert dw.rows() == dw.whole()
    version = dw.warehouse.version("gold.user_orders")
    dw.store = StateStore()
    dw.refresh()
    assert dw.warehouse.version("gold.user_orders") == version


def test_changes_that_silver_has_not_any_more_are_not_needed(dw: OrderDw) -> None:
    dw.write(USER, {"id": 3, "name": "Tyke"})
    dw.write(ORDER, {"id": 5, "product": "Net", "user_id": 2, "_is_deleted": True})
    dw.lose_changes(USER)
    assert dw.pending()["user_orders"] == 2, "all of them"
    outcome = dw.refresh()
    assert outcome.whole == dict.fromkeys(JOINS, "silver does not have the changes since the last run any more")
    assert outcome.written["user_orders"] == 2
    assert dw.rows() == dw.whole() == [(1, "Football", "Tyke"), (2, "Basket", None)]


def test_a_rebuilt_silver_table_is_taken_whole(dw: OrderDw) -> None:
    dw.make_again(USER)
    dw.write(USER, USERS[0])
    outcome = dw.refresh()
    assert outcome.whole == dict.fromkeys(JOINS, "a silver table was rebuilt, or restored to an earlier version")
    assert dw.rows() == dw.whole() == [(1, "Football", None), (2, "Basket", "Tom")]


def test_a_refresh_repairs_what_another_hand_did_and_verify_finds_it(dw: OrderDw) -> None:
    def compared() -> TableComparison:
        return joins.compare(dw.warehouse, dw.contracts, "user_orders", state=dw.store.read(dw.warehouse))

    dw.write(ORDER, *ORDERS)
    assert compared() == TableComparison("gold.user_orders", rows=2), "as silver was when it was taken"
    dw.refresh()
    table = dw.warehouse.delta("gold.user_orders")
    table.update("order_id = 1", {"user_name": "'forged'"})
    copied = table.toDF().where("order_id = 2")
    copied.write.format("delta").mode("append").save(dw.warehouse.path("gold.user_orders"))
    assert compared() == TableComparison("gold.user_orders", rows=2, differing=2)
    outcome = dw.refresh(whole=True)
    assert set(outcome.whole.values()) == {"a full refresh was asked for"}
    assert compared().differing == 0
    assert dw.rows() == dw.whole()


def test_a_changed_contract_is_computed_whole_with_its_own_columns(dw: OrderDw, tmp_path: Path) -> None:
    earlier = dw.contracts
    join = user_orders()
    join["columns"]["user_id"] = "user_id"
    dw.contracts = contracts_with(tmp_path, joins={"user_orders": join})
    assert "not computed yet" in str(
        joins.compare(dw.warehouse, dw.contracts, "user_orders", state=dw.store.read(dw.warehouse)).why_not
    )
    assert dw.refresh().written == {"user_orders": 2}
    assert dw.rows() == dw.whole()
    assert dw.warehouse.read("gold.user_orders").columns == ["order_id", "product", "user_id", "user_name"]
    dw.contracts = earlier
    assert dw.refresh().whole["user_orders"] == "nothing of it was taken before under this contract"
    assert dw.rows() == dw.whole()


def test_a_join_waits_for_a_table_that_a_rule_makes(
    dw: OrderDw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contracts, "may_be_discovered", lambda _self, name: name in ("order_dw_address", USER))
    waits = user_orders()
    waits["left_join"][0]["table"] = "order_dw_address"
    columns = {**COLUMNS, "order_dw_other": {"id": "BIGINT"}}
    of_other = {**user_orders(), "table": "order_dw_other", "columns": {"id": "id"}}
    of_other["left_join"][0]["by"] = {"id": "id"}
    dw.contracts = contracts_with(tmp_path, joins={"waits": waits, "of_other": of_other, **JOINS}, columns=columns)
    assert dw.pending() == {"waits": None, "of_other": None, "user_orders": 0, "user_feedback": 0}
    outcome = dw.refresh()
    assert outcome.skipped == {
        "waits": "not there yet: silver.order_dw_address",
        "of_other": "not there yet: silver.order_dw_other",
    }
    assert outcome.written == {"user_orders": 0, "user_feedback": 0}
    assert not dw.warehouse.exists("gold.waits")


def test_a_join_of_a_blocked_source_is_left_as_it_was(dw: OrderDw, tmp_path: Path) -> None:
    contracts = contracts_with(tmp_path, joins=JOINS)
    gate = contracts.gold_gate.model_copy(update={"feeds": (*contracts.gold_gate.feeds, ORDER)})
    dw.contracts = contracts.model_copy(update={"gold_gate": gate})
    before = dw.rows()
    dw.write(USER, {"id": 1, "name": "Thomas"})
    outcome = dw.refresh(blocked=("order_dw",))
    assert (outcome.skipped, outcome.written) == ({"user_orders": "gate 2 blocks order_dw"}, {"user_feedback": 1})
    assert dw.rows() == before
    assert dw.refresh(blocked=("mysql",)).written == {"user_orders": 1, "user_feedback": 0}
    assert dw.rows() == dw.whole() != before


def test_three_changed_users_cost_a_bounded_number_of_jobs(spark: SparkSession, tmp_path: Path) -> None:
    dw = dw_of(spark, tmp_path, joins={"user_orders": user_orders()})
    dw.write(USER, *({"id": number, "name": f"user {number}"} for number in range(100)))
    dw.write(ORDER, *({"id": number, "product": "Ball", "user_id": number % 100} for number in range(400)))
    dw.refresh()
    costs = []
    for again in range(3):
        dw.write(USER, *({"id": number, "name": f"renamed {again}"} for number in (3, 14, 15)))
        before = jobs(spark)
        assert dw.refresh().written == {"user_orders": 12}
        costs.append(jobs(spark) - before)
    assert dw.rows() == dw.whole()
    # The last one: Delta remembers the tables.
    assert costs[-1] <= JOBS_OF_THREE_USERS


def test_gold_keeps_joins_up_and_verify_compares_them(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dw = dw_of(spark, tmp_path, joins=JOINS, is_alone=True)
    ensure_tables(dw.warehouse, dw.contracts)
    dw.write(USER, *USERS)
    dw.write(ORDER, *ORDERS)
    chosen = settings(warehouse=dw.warehouse.location, checkpoints=dw.warehouse.checkpoints)

    def run(run_id: str, **how: Any) -> build.GoldOutcome:
        return build.run(spark, chosen, dw.contracts, run_id=run_id, **how)

    def planned() -> object:
        work = RunContext(spark, chosen, dw.contracts, Steps(wide_console(stderr=True)), {}, "dry")
        return run_jobs(("gold",), work, dry_run=True).results["gold"]["pending_joins"]

    assert planned() == {"user_orders": 2, "user_feedback": 0}
    assert run("first").joins.written == {"user_orders": 2, "user_feedback": 0}
    assert planned() == {"user_orders": 0, "user_feedback": 0}
    version = dw.warehouse.version("ops.batches")
    dw.write(USER, {"id": 1, "name": "Thomas"})
    assert run("second").joins.written == {"user_orders": 1, "user_feedback": 0}
    assert dw.warehouse.version("ops.batches") == version + 1
    assert run("nothing new").joins == joins.JoinsOutcome({"user_orders": 0, "user_feedback": 0})
    assert dw.warehouse.version("ops.batches") == version + 1
    assert run("refreshed", full_refresh=True).joins.written == {"user_orders": 2, "user_feedback": 0}
    assert dw.rows() == dw.whole()

    monkeypatch.setattr(verify, "opened", lambda _chosen, _steps: dw.warehouse)
    dw.warehouse.ensure_all(events_table(source) for source in dw.contracts.topics.sources)
    sound = {"table": "gold.user_feedback", "rows": 0, "differing": 0, "why_not": None}
    assert verified(dw, tmp_path, capsys) == (0, [{**sound, "table": "gold.user_orders", "rows": 2}, sound])
    dw.warehouse.delta("gold.user_orders").delete("order_id = 1")
    code, compared = verified(dw, tmp_path, capsys)
    assert (code, compared[0]) == (8, {"table": "gold.user_orders", "rows": 2, "differing": 1, "why_not": None})


def verified(dw: OrderDw, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `lakehouse verify`, and what it found of joins."""
    capsys.readouterr()
    code = 0
    try:
        main(["verify", "--warehouse", dw.warehouse.location, "--contracts", str(folder / "contracts"), "--json"])
    except SystemExit as end:
        code = int(end.code or 0)
    return code, json.loads(capsys.readouterr().out)["joins"]


WIDE: dict[str, Any] = {
    "table": ORDER,
    "columns": {"product": "product", "number": "id", "of_shard": "shard"},
    "left_join": [
        {"table": USER, "by": {"id": "user_id", "shard": "shard"}, "columns": {"buyer": "name"}},
        {"table": USER, "by": {"id": "seller_id", "shard": "shard"}, "columns": {"seller": "name", "seller_id": "id"}},
        {"table": ORDER, "by": {"id": "earlier", "shard": "shard"}, "columns": {"earlier_product": "product"}},
    ],
}
WIDE_COLUMNS: dict[str, dict[str, Any]] = {
    USER: {"id": "BIGINT", "shard": "STRING", "name": "STRING", "unused": "INT"},
    ORDER: {
        **{"shard": "STRING", "id": "BIGINT", "product": "STRING"},
        **dict.fromkeys(("user_id", "seller_id", "earlier"), "BIGINT"),
    },
}


@pytest.mark.slow
def test_after_every_run_it_is_the_whole_join(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of two columns, a table that is joined twice, one with itself; JOIN_ROUNDS=40, JOIN_SEED: other stories."""
    keys = {USER: ["id", "shard"], ORDER: ["shard", "id"]}
    contracts = contracts_with(
        tmp_path, joins={"wide": WIDE, "user_orders": WIDE_NARROW}, columns=WIDE_COLUMNS, keys=keys
    )
    dw = OrderDw(Warehouse(spark, str(tmp_path / "w"), str(tmp_path / "c")), contracts)
    dw.create([USER, ORDER])
    chance = random.Random(SEED)  # noqa: S311
    for number in range(ROUNDS):
        for feed in chance.choices((USER, ORDER), k=chance.randint(1, 3)):
            dw.write(feed, *random_rows(chance, feed))
        if chance.random() < 0.3:
            dw.refresh(record=False)
            dw.write(ORDER, *random_rows(chance, ORDER))
        if chance.random() < 0.2:
            dw.lose_changes(chance.choice((USER, ORDER)))
        dw.store = StateStore()
        dw.refresh(whole=chance.random() < 0.1)
        for name in contracts.gold.joins:
            assert dw.rows(name) == dw.whole(name), f"round {number}: {name}"


WIDE_NARROW: dict[str, Any] = {
    "table": ORDER,
    "columns": {"shard": "shard", "id": "id"},
    "left_join": [{"table": USER, "by": {"shard": "shard", "id": "id"}, "columns": {"name": "name"}}],
}


def random_rows(chance: random.Random, feed: str) -> list[dict[str, Any]]:
    """Rows of keys each once: new, changed, deleted, written again; what they refer to may be NULL, or not there."""
    rows = []
    for number in chance.sample(range(24), chance.randint(1, 12)):
        row: dict[str, Any] = {"id": number // 2, "shard": f"s{number % 2}", "_is_deleted": chance.random() < 0.25}
        if feed == USER:
            row |= {"name": chance.choice(("Tom", "Jerry", None)), "unused": chance.randint(0, 9)}
        else:
            named = ("user_id", "seller_id", "earlier")
            row |= {"product": chance.choice(("Ball", "Net", None))}
            row |= {name: chance.choice((None, *range(14))) for name in named}
        rows.append(row)
    return rows


FEED = "id BIGINT, name STRING, other INT, _is_deleted BOOLEAN, _change_type STRING"
BEFORE, AFTER = "update_preimage", "update_postimage"


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        ([("a", 1, False, "insert")], True),
        ([("a", 1, False, "delete")], True),
        ([("a", 1, False, BEFORE), ("b", 1, False, AFTER)], True),
        ([("a", 1, False, BEFORE), (None, 1, False, AFTER)], True),
        ([("a", 1, False, BEFORE), ("a", 2, False, AFTER)], False),
        ([(None, 1, False, BEFORE), (None, 2, False, AFTER)], False),
        ([("a", 1, False, BEFORE), ("a", 1, True, AFTER)], True),
        # As it was in the beginning: a run that died may have taken what was between.
        ([("a", 1, False, BEFORE), ("b", 1, False, AFTER), ("b", 1, False, BEFORE), ("a", 1, False, AFTER)], True),
    ],
)
def test_a_key_has_changed_where_a_column_of_the_join_has(
    spark: SparkSession, rows: list[tuple[Any, ...]], changed: bool
) -> None:
    names = ("name", "other", "_is_deleted", "_change_type")
    feed = inline_rows(spark, [{"id": 1, **dict(zip(names, row, strict=True))} for row in rows], FEED)
    assert changed_keys(feed, keys=["id"], columns=["id", "name"]).count() == changed
