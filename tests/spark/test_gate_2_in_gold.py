"""Gate 2 in the gold job: what holds a source, from gold or from its publication, and what lets it pass again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pyspark.sql import functions as F

from gold import build, orders
from gold.merge import merge_orders
from gold.quality import gate, gate_rules
from gold.quality.audit import audit
from gold.state import NOTHING_CONSUMED
from gold.state_store import StateStore
from gold.topics import unpublished
from gold.topics.position import PublishPosition, SourcePosition
from gold.unify import UNIFIED
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts, OnFailure, TableExpectation
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import current
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.quality import gx, table_rules
from lakehouse.quality.counting import Counts
from lakehouse.quality.results import RESULTS
from tests.support.command_line import run as run_command
from tests.support.gold import Shop, restate

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, Row

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IN_MYSQL_TOO = "SELECT o.order_id FROM {batch} o LEFT ANTI JOIN mysql_orders m ON o.order_id = m.order_id"


@pytest.fixture
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts) -> Shop:
    warehouse = empty_silver()
    return Shop(warehouse, settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints), contracts)


def with_rules(contracts: Contracts, *rules: TableExpectation, publication: bool = False) -> Contracts:
    """The contracts with no other rules of silver tables than these; with those of the publication or without any."""
    kept = contracts.gold_gate.publication if publication else ()
    gate = contracts.gold_gate.model_copy(update={"expectations": rules, "publication": kept})
    return contracts.model_copy(update={"gold_gate": gate})


def rule(
    kind: str, *feeds: str, on_failure: OnFailure = "fail", scope: Literal["table", "changes"] = "table", **kwargs: Any
) -> TableExpectation:
    name, description = "of_this_test", "A rule of this test."
    return TableExpectation(
        name=name, type=kind, kwargs=kwargs, feeds=feeds, on_failure=on_failure, description=description, scope=scope
    )


def results(shop: Shop, run: str, gate: str) -> Mapping[tuple[str, str], Row]:
    """The results of a gate in a run, by source and rule."""
    rows = shop.warehouse.read(RESULTS.name).where((F.col("run") == run) & (F.col("gate") == gate)).collect()
    return {(row["source"], row["rule"]): row for row in rows}


def stretches(shop: Shop, contracts: Contracts, marker: PublishPosition) -> list[unpublished.PublishRange]:
    """What is to be published, when the topic has what the marker says."""
    state, created_ms = StateStore().read(shop.warehouse), shop.warehouse.created_at_ms(UNIFIED)
    return unpublished.parts(state.publishable, contracts, marker, created_ms=created_ms, shape="of this test")


def held(shop: Shop) -> dict[str, list[str]]:
    """The sources that are held, by the gate."""
    return StateStore().read(shop.warehouse).blocked_of(shop.contracts.gold.sources)


def waiting(shop: Shop) -> Mapping[str, int]:
    """How many orders of each source the first publication would send."""
    counts: dict[str, int] = {}
    for stretch in stretches(shop, shop.contracts, PublishPosition()):
        orders = shop.warehouse.read(UNIFIED, version=stretch.now.number)
        own = orders.where(unpublished.of_sources(shop.contracts, stretch.sources))
        for row in own.groupBy("source_database").count().collect():
            counts[row["source_database"]] = row["count"]
    return counts


def test_an_order_that_gold_lost_withholds_the_publication_of_its_source_alone(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2}, {"order_id": 3})
    shop.write("mysql_orders", {"order_id": 1})
    assert shop.run("first").unpublished_sources == ()
    assert waiting(shop) == {"postgresql": 3, "mysql": 1}
    (together,) = stretches(shop, shop.contracts, PublishPosition())
    assert set(together.sources) == {"postgres", "mysql", gate.OTHERS}

    gold = shop.warehouse.delta(UNIFIED)
    gold.delete("composite_key = 'PG-2'")
    gold.update("composite_key = 'PG-3'", {"total_amount": "total_amount + 1"})
    shop.write("mysql_orders", {"order_id": 2})
    # What another hand changed in gold is not published before it was judged.
    assert waiting(shop) == {"postgresql": 3, "mysql": 1}
    outcome = shop.run("lost")
    assert (outcome.blocked_sources, outcome.unpublished_sources) == ((), ("postgres",))
    found = results(shop, "lost", "publication")
    assert {key for key, row in found.items() if not row["passed"]} == {
        ("postgres", "orders_conserved"),
        ("postgres", "money_conserved"),
    }
    assert {row["table"] for row in found.values()} == {UNIFIED}
    lost, changed = found["postgres", "orders_conserved"], found["postgres", "money_conserved"]
    # Of the two keys that changed in gold one is not there.
    assert (lost["sample_keys"], lost["failed"], lost["evaluated"], lost["share"]) == (["PG-2"], 1, 1, 1.0)
    assert (changed["sample_keys"], changed["failed"]) == (["PG-3"], 1)
    assert held(shop) == {"publication": ["postgres"]}
    assert waiting(shop) == {"postgresql": 3, "mysql": 2}

    # Without news it is asked again, and it alone.
    assert shop.run("still").unpublished_sources == ("postgres",)
    assert {source for source, _rule in results(shop, "still", "publication")} == {"postgres"}

    restate(shop.warehouse, orders=NOTHING_CONSUMED)
    assert shop.run("taken whole again").unpublished_sources == ()
    assert held(shop) == {}
    assert waiting(shop) == {"postgresql": 3, "mysql": 2}
    version = shop.warehouse.version("ops.batches")
    shop.run("nothing new")
    assert shop.warehouse.version("ops.batches") == version
    assert results(shop, "nothing new", "publication") == {}


def judged(shop: Shop, run: str) -> Mapping[tuple[str, str, str], tuple[int, int]]:
    """Of every gate, source and rule that a run has asked: how many rows, and how many of them failed."""
    rows = shop.warehouse.read(RESULTS.name).where(F.col("run") == run).collect()
    return {(row["gate"], row["source"], row["rule"]): (row["evaluated"], row["failed"]) for row in rows}


def test_a_rule_about_changes_is_asked_of_the_keys_that_changed_since_it_was_passed(shop: Shop) -> None:
    key_unique = rule("expect_column_values_to_be_unique", "postgres_orders", column="order_id", scope="changes")
    contracts = with_rules(shop.contracts, key_unique, publication=True)
    in_silver, in_gold = ("gold", "postgres", "of_this_test"), ("publication", "postgres", "composite_key_unique")
    orders = shop.warehouse.delta("silver.postgres_orders")

    shop.write("postgres_orders", *({"order_id": n} for n in (1, 2, 3)))
    shop.write("mysql_orders", {"order_id": 1})
    shop.run("all of them", contracts)
    assert judged(shop, "all of them")[in_silver] == (3, 0)
    assert judged(shop, "all of them")[in_gold] == (3, 0)

    shop.write("postgres_orders", {"order_id": 2, "status": "paid"})
    shop.run("one changed", contracts)
    asked = judged(shop, "one changed")
    assert (asked[in_silver], asked[in_gold]) == ((1, 0), (1, 0))
    assert {source for _gate, source, _rule in asked} == {"postgres"}

    # The other row of its key has not changed.
    twin = shop.warehouse.read("silver.postgres_orders").where("order_id = 3").withColumn("status", F.lit("lost"))
    shop.warehouse.append("silver.postgres_orders", twin)
    assert shop.run("a key twice", contracts).blocked_sources == ("postgres",)
    assert judged(shop, "a key twice")[in_silver] == (2, 2)
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"})
    assert shop.run("it still is", contracts).blocked_sources == ("postgres",)
    assert judged(shop, "it still is")[in_silver] == (3, 2)
    orders.delete("status = 'lost'")
    assert shop.run("once again", contracts).blocked_sources == ()
    assert judged(shop, "once again")[in_silver] == (2, 0)
    assert shop.gold()["PG-1"]["status"] == "paid"

    shop.write("postgres_orders", {"order_id": 1, "status": "shipped"})
    other = key_unique.model_copy(update={"description": "Another rule."})
    shop.run("other rules", with_rules(shop.contracts, other, publication=True))
    assert judged(shop, "other rules")[in_silver] == (3, 0)

    shop.write("postgres_orders", {"order_id": 1, "status": "paid"})
    shop.lose_changes("silver.postgres_orders")
    shop.run("changes are gone", with_rules(shop.contracts, other, publication=True))
    asked = judged(shop, "changes are gone")
    assert (asked[in_silver], asked[in_gold]) == ((3, 0), (3, 0))


def test_a_table_that_has_not_changed_is_asked_only_what_may_come_out_otherwise(shop: Shop) -> None:
    kept = rule("expect_table_row_count_to_be_between", "postgres_orders", min_value=1)
    known = rule("unexpected_rows_expectation", "postgres_orders", unexpected_rows_query=IN_MYSQL_TOO).model_copy(
        update={"name": "foreign_key"}
    )
    contracts = with_rules(shop.contracts, kept, known)
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": 1})
    shop.run("first", contracts)
    # Another table of the same source.
    shop.write("postgres_outbox_orders", {"order_id": 1, "status": "paid"})
    shop.run("outbox", contracts)
    assert set(judged(shop, "outbox")) == {("gold", "postgres", "foreign_key")}
    shop.run("whole", contracts, full_refresh=True)
    assert set(judged(shop, "whole")) == {("gold", "postgres", name) for name in ("of_this_test", "foreign_key")}


def test_tables_are_compared_with_what_they_were_when_their_source_last_passed(shop: Shop) -> None:
    kept = rule("expect_table_row_count_to_be_between", "mysql_orders", min_value={"$PARAMETER": "rows_before * 0.5"})
    contracts = with_rules(shop.contracts, kept)
    orders = [{"order_id": n} for n in range(4)]
    shop.write("mysql_orders", *orders)
    shop.run("first", contracts)
    assert results(shop, "first", "gold")["mysql", "of_this_test"]["message"].startswith("Not asked")
    shop.write("mysql_orders", {"order_id": 0, "_is_deleted": True}, {"order_id": 1, "_is_deleted": True})
    assert shop.run("two of four gone", contracts).blocked_sources == ()
    shop.write("mysql_orders", *orders)
    shop.run("four again", contracts)
    shop.write("mysql_orders", *({**order, "_is_deleted": True} for order in orders[:3]))
    assert shop.run("three of four gone", contracts).blocked_sources == ("mysql",)
    shop.write("mysql_orders", {"order_id": 9})
    assert shop.run("still compared with four", contracts).blocked_sources == ()


def test_a_foreign_key_sees_the_other_table_as_gold_takes_it(shop: Shop) -> None:
    known = rule("unexpected_rows_expectation", "postgres_orders", unexpected_rows_query=IN_MYSQL_TOO)
    contracts = with_rules(shop.contracts, known)
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2})
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2, "_is_deleted": True})
    assert shop.run("without", contracts).blocked_sources == ("postgres",)
    found = results(shop, "without", "gold")["postgres", "of_this_test"]
    assert (found["table"], found["evaluated"], found["failed"]) == ("silver.postgres_orders", 2, 1)
    assert (found["share"], found["sample_keys"]) == (0.5, ["2"])
    # MySQL has no news now: its table is taken as it is.
    shop.write("mysql_orders", {"order_id": 2})
    shop.run("mysql", with_rules(shop.contracts))
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"})
    assert shop.run("with", contracts).blocked_sources == ()


@pytest.mark.parametrize(("on_failure", "held"), [("fail", ("mysql",)), ("warn", ())])
def test_a_rule_that_cannot_be_evaluated_holds_only_when_it_may(
    shop: Shop, on_failure: OnFailure, held: tuple[str, ...]
) -> None:
    query = "SELECT * FROM {batch} WHERE absent = 1"
    broken = rule("unexpected_rows_expectation", "mysql_orders", on_failure=on_failure, unexpected_rows_query=query)
    shop.write("mysql_orders", {"order_id": 1})
    assert shop.run("broken", with_rules(shop.contracts, broken)).blocked_sources == held
    found = results(shop, "broken", "gold")["mysql", "of_this_test"]
    assert (found["passed"], found["evaluated"], found["share"]) == (False, 0, None)
    assert "AnalysisException UNRESOLVED_COLUMN" in found["message"]


def test_great_expectations_is_asked_what_cannot_be_counted_once_a_gate_and_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def counted(tables: Mapping[str, Sequence[table_rules.TableCheck]]) -> dict[str, list[table_rules.Verdict]]:
        asked.append(sorted(tables))
        return table_rules.validate_tables(tables)

    monkeypatch.setattr(gate, "validate_tables", counted)
    orders = ("mysql_orders", "postgres_orders")
    sums = rule("expect_column_sum_to_be_between", *orders, column="total_amount", min_value=0)
    of_gold = sums.model_copy(update={"name": "money", "feeds": ()})
    rules = {"expectations": (*shop.contracts.gold_gate.expectations, sums), "publication": (of_gold,)}
    contracts = shop.contracts.model_copy(update={"gold_gate": shop.contracts.gold_gate.model_copy(update=rules)})
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": 1})
    shop.run("one", contracts)
    assert asked == [[*orders], ["mysql", "postgres"]]
    shop.run("nothing new", contracts)
    assert len(asked) == 2
    found = judged(shop, "one")
    assert found["gold", "mysql", "of_this_test"] == found["publication", "mysql", "money"] == (1, 0)


def carried(shop: Shop) -> dict[str, Mapping[str, Counts]]:
    """What gold has counted of each silver table, by rule, when it last passed."""
    passed = StateStore().read(shop.warehouse).passed.under(gate_rules.rules_of_tables(shop.contracts.gold_gate))
    return {table: version.counts for table, version in passed.items()}


def without_library(patch: pytest.MonkeyPatch) -> None:
    """Great Expectations, which takes seconds to load, must not be."""
    patch.setattr(gx, "_prepare_import", lambda: pytest.fail("Great Expectations was loaded"))


# What happens to a table of four orders between two runs, and what `customer_mostly_known` then counts of it.
HISTORY: Sequence[tuple[Sequence[Mapping[str, Any]], Counts]] = (
    ([{"order_id": 5, "customer_id": None}, {"order_id": 6}], Counts(6, failed=1)),
    ([{"order_id": 1, "customer_id": None}, {"order_id": 5, "customer_id": 2}], Counts(6, failed=1)),
    ([{"order_id": 1, "customer_id": None, "_is_deleted": True}, {"order_id": 2, "_is_deleted": True}], Counts(4)),
    ([{"order_id": 1, "customer_id": None}, {"order_id": 7, "_is_deleted": True}], Counts(5, failed=1)),
    ([{"order_id": 3, "status": "paid"}], Counts(5, failed=1)),
)


def test_few_changes_are_counted_and_whole_tables_are_what_was_counted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write("mysql_orders", *({"order_id": number} for number in (1, 2, 3, 4)))
    shop.write("postgres_orders", {"order_id": 1})
    with monkeypatch.context() as without:
        without_library(without)
        shop.run("whole")
    # Rows are compared with none, and counted all the same.
    assert judged(shop, "whole")["gold", "mysql", "rows_kept"] == (0, 0)
    assert carried(shop)["silver.mysql_orders"] == {"customer_mostly_known": Counts(4), "rows_kept": Counts(4)}

    with monkeypatch.context() as without:
        without_library(without)
        for number, (rows, wanted) in enumerate(HISTORY):
            shop.write("mysql_orders", *rows)
            run = f"changes {number}"
            assert shop.run(run).blocked_sources == ()
            counts = carried(shop)["silver.mysql_orders"]
            assert counts == {"customer_mostly_known": wanted, "rows_kept": Counts(wanted.rows)}
            asked = judged(shop, run)
            assert asked["gold", "mysql", "customer_mostly_known"] == (wanted.rows, wanted.failed)
            # Four of six rows are less than nine in ten.
            assert asked["gold", "mysql", "rows_kept"] == (1, int(number == 2))
            assert set(asked) == {
                *(("gold", "mysql", one.name) for one in shop.contracts.gold_gate.expectations),
                *(("publication", "mysql", one.name) for one in shop.contracts.gold_gate.publication),
            }
    # 1 of 5 customers is not known: less than nine in ten, which is a warning, with the key.
    last = results(shop, f"changes {len(HISTORY) - 1}", "gold")["mysql", "customer_mostly_known"]
    assert (last["passed"], last["share"], last["sample_keys"]) == (False, 0.2, ["1"])

    found = audit(shop.warehouse, shop.contracts, run_id="audit")
    assert found.differing == ()
    of_mysql = {one.rule: (one.evaluated, one.failed) for one in found.results if one.feed == "mysql_orders"}
    assert of_mysql["customer_mostly_known"] == (5, 1)
    assert of_mysql["key_unique"] == (5, 0), "of the whole table"
    assert len(judged(shop, "audit")) == len(shop.contracts.gold_gate.expectations) * 2
    code, out, _err = run_command(capsys, "quality", "audit", "--warehouse", shop.warehouse.location)
    assert code == 0, out
    assert "customer_mostly_known" in out


def test_the_audit_says_where_gold_has_counted_otherwise(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2, "customer_id": None})
    shop.write("postgres_orders", {"order_id": 1})
    shop.run("first")
    rules, passed = gate_rules.rules_of_tables(shop.contracts.gold_gate), StateStore().read(shop.warehouse).passed
    version = passed.under(rules)["silver.mysql_orders"]
    assert version.counts == {"customer_mostly_known": Counts(2, failed=1), "rows_kept": Counts(2)}
    wrong = replace(version, counts={"customer_mostly_known": Counts(2)})
    restate(shop.warehouse, passed=passed.with_later(rules, [wrong]))
    code, out, err = run_command(capsys, "quality", "audit", "--warehouse", shop.warehouse.location, "--json")
    assert code == 8, err
    (one,) = json.loads(out)["differing"]
    assert (one["table"], one["rule"]) == ("silver.mysql_orders", "customer_mostly_known")
    assert (one["carried"]["failed"], one["found"]["failed"]) == (0, 1)
    assert "gold has counted 0 of 2 rows that fail, the table has 1 of 2" in json.loads(out)["errors"][0]["what"]
    # Whole tables again: gold has what they have.
    shop.run("counted again", full_refresh=True)
    assert audit(shop.warehouse, shop.contracts, run_id="again").differing == ()
    # A table that was rebuilt since is another one: nothing of it was counted yet.
    shop.make_anew("mysql_orders")
    shop.write("mysql_orders", {"order_id": 9, "customer_id": None})
    assert audit(shop.warehouse, shop.contracts, run_id="rebuilt").differing == ()
    # A rule that blocks, of a row that was changed behind gold's back, is found in the whole table.
    shop.warehouse.delta("silver.postgres_orders").update("order_id = 1", {"total_amount": "CAST(-1 AS DECIMAL(10,2))"})
    shop.run("blocked")
    assert held(shop) == {"gold": ["postgres"]}


def test_a_rule_that_cannot_be_counted_is_asked_of_great_expectations(shop: Shop) -> None:
    broken = rule(
        "expect_column_values_to_not_be_null",
        "mysql_orders",
        column="customer_id",
        row_condition="absent = 1",
        condition_parser="spark",
    )
    good = rule("expect_column_values_to_not_be_null", "mysql_orders", column="order_id", scope="changes").model_copy(
        update={"name": "good"}
    )
    # What is wrong with one rule is said of it alone, of whole tables and of changed rows.
    for scope in ("table", "changes"):
        contracts = with_rules(shop.contracts, broken.model_copy(update={"scope": scope, "on_failure": "warn"}), good)
        shop.write("mysql_orders", {"order_id": 1, "status": f"before {scope}"}, {"order_id": 2})
        shop.run(f"{scope} first", contracts)
        shop.write("mysql_orders", {"order_id": 1, "status": scope})
        shop.run(scope, contracts)
        found = results(shop, scope, "gold")
        assert "UNRESOLVED_COLUMN" in found["mysql", "of_this_test"]["message"]
        assert (found["mysql", "good"]["passed"], found["mysql", "good"]["evaluated"]) == (True, 1)


def lose_some(desired: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """A computation of gold with a mistake: it loses an order, and changes another one."""

    def wrong(*given: Any, **more: Any) -> DataFrame:
        orders = desired(*given, **more).where("NOT composite_key <=> 'PG-2'")
        changed = F.when(F.col("composite_key") == "PG-3", F.lit("0.01").cast("decimal(10,2)"))
        return orders.withColumn("total_amount", changed.otherwise(F.col("total_amount")))

    return wrong


@pytest.mark.parametrize("way", ["first", "changes", "refresh"])
def test_gold_is_compared_with_silver_and_not_with_what_was_merged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    shop.write("mysql_orders", {"order_id": 1})
    shop.write("postgres_orders", *({"order_id": number} for number in (1, 2, 3) if way != "changes" or number == 1))
    if way == "changes":
        assert shop.run("before").unpublished_sources == ()
        shop.write("postgres_orders", {"order_id": 2}, {"order_id": 3})
    with monkeypatch.context() as mistaken:
        mistaken.setattr(orders, "desired_orders", lose_some(orders.desired_orders))
        assert shop.run("wrong", full_refresh=way == "refresh").unpublished_sources == ("postgres",)
    found = results(shop, "wrong", "publication")
    assert (
        found["postgres", "orders_conserved"]["sample_keys"],
        found["postgres", "money_conserved"]["sample_keys"],
    ) == (
        ["PG-2"],
        ["PG-3"],
    )
    assert held(shop) == {"publication": ["postgres"]}
    assert shop.run("repaired", full_refresh=True).unpublished_sources == ()
    assert held(shop) == {}


def test_a_source_without_news_is_judged_when_the_merge_has_changed_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2})
    shop.write("postgres_orders", {"order_id": 1})
    shop.run("before")
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"}, {"order_id": 2})

    def too_much(table: DeltaTable, orders: DataFrame, **more: Any) -> int:
        others = table.toDF().where("composite_key = 'MY-2'").drop("processed_at").withColumn("is_deleted", F.lit(True))
        # As rows: a MERGE whose source reads its target may mistake the columns of one for the other's.
        rows = others.sparkSession.createDataFrame(others.collect(), others.schema)
        return merge_orders(table, orders.unionByName(rows), **more)

    with monkeypatch.context() as mistaken:
        mistaken.setattr(build, "merge_orders", too_much)
        assert shop.run("too much").unpublished_sources == ("mysql",)
    assert results(shop, "too much", "publication")["mysql", "orders_conserved"]["sample_keys"] == ["MY-2"]
    assert waiting(shop) == {"postgresql": 2, "mysql": 2}, "of MySQL as it was before"


def pass_time(patch: pytest.MonkeyPatch, **more: int) -> None:
    """For the bounds of rules it is so much later."""
    from great_expectations.core.suite_parameters import SuiteParameterParser

    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(**more)
    patch.setitem(SuiteParameterParser.fn, "now", lambda: later)


@pytest.mark.parametrize("gate_of", ["gold", "publication"])
def test_a_rule_about_the_time_is_asked_when_nothing_comes_any_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, gate_of: str
) -> None:
    a_day_ago = {"$PARAMETER": "now() - timedelta(hours=24)"}
    fresh = rule("expect_column_max_to_be_between", column="created_at", min_value=a_day_ago)
    contracts = with_rules(shop.contracts, fresh.model_copy(update={"feeds": ("mysql_orders",)}))
    if gate_of == "publication":
        gate_with = shop.contracts.gold_gate.model_copy(update={"expectations": (), "publication": (fresh,)})
        contracts = shop.contracts.model_copy(update={"gold_gate": gate_with})
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    shop.write("mysql_orders", {"order_id": 1, "created_at": now})
    if gate_of == "gold":
        shop.write("postgres_orders", {"order_id": 1})

    def blocked(run: str) -> tuple[str, ...]:
        outcome = shop.run(run, contracts)
        assert results(shop, run, gate_of).keys() <= {(name, "of_this_test") for name in shop.contracts.gold.sources}
        assert ("mysql", "of_this_test") in results(shop, run, gate_of)
        found = {"gold": outcome.blocked_sources, "publication": outcome.unpublished_sources}[gate_of]
        return tuple(name for name in found if name == "mysql")

    assert blocked("in time") == ()
    before, version = waiting(shop), shop.warehouse.version(UNIFIED)
    assert blocked("still in time") == ()
    with monkeypatch.context() as later:
        pass_time(later, hours=30)
        assert blocked("too late") == ("mysql",)
        assert "mysql" in held(shop)[gate_of]
        # Other sources go on, and so does it when something comes.
        shop.write("postgres_orders", {"order_id": 7})
        assert blocked("still too late") == ("mysql",)
    assert blocked("in time again") == ()
    assert "mysql" not in held(shop).get(gate_of, [])
    assert waiting(shop)["mysql"] == before["mysql"]
    assert shop.warehouse.version(UNIFIED) == version + 1


def test_a_rule_is_asked_when_only_the_other_table_has_changed(shop: Shop) -> None:
    known = rule("unexpected_rows_expectation", "postgres_orders", unexpected_rows_query=IN_MYSQL_TOO)
    contracts = with_rules(shop.contracts, known)
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": 1})
    assert shop.run("both", contracts).blocked_sources == ()
    shop.write("mysql_orders", {"order_id": 1, "_is_deleted": True})
    assert shop.run("one is gone", contracts).blocked_sources == ("postgres",)
    assert held(shop) == {"gold": ["postgres"]}


def test_rows_of_a_source_that_left_the_contract_are_published_as_deleted(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": 1})
    shop.run("both")
    now = current(shop.warehouse, UNIFIED)
    topic_partition = SourcePosition(created_ms=now.created_ms, version=now.number, shape="of this test")
    marker = PublishPosition(sources=dict.fromkeys((*shop.contracts.gold.sources, gate.OTHERS), topic_partition))
    assert stretches(shop, shop.contracts, marker) == []
    sources = {"postgres": shop.contracts.gold.sources["postgres"]}
    alone = shop.contracts.model_copy(update={"gold": shop.contracts.gold.model_copy(update={"sources": sources})})
    shop.run("one source less", alone)
    (stretch,) = stretches(shop, alone, marker)
    kafka = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with unpublished.new_records(shop.warehouse, kafka, alone, stretch, marker) as new:
        assert (new.count, new.why) == (1, None)
        records = [(bytes(row["key"]), row["value"], row["change_type"]) for row in new.rows.collect()]
    assert records == [(b'{"composite_key":"MY-1"}', None, "DELETE")]
