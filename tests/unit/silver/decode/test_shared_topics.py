"""Several tables in one topic: every record is of exactly one feed, and a tombstone of none by guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lakehouse.contracts.models import Contracts, Feed
from silver.decode.reference.message import Record
from silver.decode.reference.table import ANY_TABLE, OTHER_TABLE
from tests.support.decoding import batch_of, decoded
from tests.support.events import Record as Written
from tests.support.shared import CUSTOMERS, ORDERS, TOPIC, of_another, of_customer, of_order, sharing, tombstone

MARK = "__dbz__physicalTableIdentifier"


def owners(feeds: Mapping[str, Feed], *written: Written) -> dict[int, list[tuple[str, str]]]:
    """Of every record, which feeds take it and as what kind."""
    records = [
        Record(TOPIC, one["key"] and one["key"].encode(), None if one["value"] is None else one["value"].encode(), ())
        for one in written
    ]
    found: dict[int, list[tuple[str, str]]] = {number: [] for number in range(len(records))}
    for name, feed in feeds.items():
        for number, event in decoded([batch_of(records)], feed).items():
            found[number].append((name, event.kind))
    return found


def test_every_record_is_of_one_feed(contracts: Contracts) -> None:
    feeds = sharing(contracts).of_source("mysql")
    records = [
        of_order("c", 1, 0),
        of_customer("c", 1, 1),
        of_customer("d", 1, 2),
        tombstone({"customer_id": 1}, 3),
        tombstone({"order_id": 1}, 4),
        of_another(5),
        tombstone({"cart_id": 1}, 6),
        {**tombstone({"order_id": 1}, 7), "value": "no JSON"},
    ]
    assert owners(feeds, *records) == {
        0: [(ORDERS, "change")],
        1: [(CUSTOMERS, "change")],
        2: [(CUSTOMERS, "change")],
        3: [(CUSTOMERS, "tombstone")],
        4: [(ORDERS, "tombstone")],
        5: [(ORDERS, "unreadable")],
        6: [(ORDERS, "tombstone")],
        7: [(ORDERS, "unreadable")],
    }
    (waits,) = decoded([batch_of([_record(of_another(0))])], feeds[ORDERS]).values()
    assert list(waits.problems) == [OTHER_TABLE]


def test_what_no_feed_names_is_ignored_where_the_contract_says_so(contracts: Contracts) -> None:
    feeds = sharing(contracts, other_tables="ignore").of_source("mysql")
    assert owners(feeds, of_another(0), of_order("c", 1, 1)) == {0: [(ORDERS, "ignored")], 1: [(ORDERS, "change")]}


@pytest.mark.parametrize(("table", "owner"), [("orders", ORDERS), ("customers", CUSTOMERS)])
def test_the_routers_mark_tells_the_table_of_a_tombstone(contracts: Contracts, table: str, owner: str) -> None:
    feeds = _with_one_key(sharing(contracts))
    marked = tombstone({"order_id": 1, MARK: f"mysql_prod_tables.ecommerce.{table}"}, 0)
    assert owners(feeds, marked) == {0: [(owner, "tombstone")]}


def test_a_tombstone_that_may_be_of_two_tables_deletes_nothing(contracts: Contracts) -> None:
    feeds = _with_one_key(sharing(contracts))
    assert owners(feeds, tombstone({"order_id": 1}, 0)) == {0: [(ORDERS, "unreadable")]}
    (event,) = decoded([batch_of([_record(tombstone({"order_id": 1}, 0))])], feeds[ORDERS]).values()
    assert list(event.problems) == [ANY_TABLE]


@pytest.mark.parametrize(("key", "kind"), [(None, "tombstone"), ("1", "tombstone"), ("no JSON", "unreadable")])
def test_a_tombstone_whose_key_has_no_fields_is_of_the_first_feed(
    contracts: Contracts, key: str | None, kind: str
) -> None:
    feeds = sharing(contracts).of_source("mysql")
    assert owners(feeds, {**tombstone({"order_id": 1}, 0), "key": key}) == {0: [(ORDERS, kind)]}


def test_every_record_of_a_topic_that_no_other_feed_has_is_of_its_feed(contracts: Contracts) -> None:
    """The feeds share another topic, and of that one what no feed names is of the first."""
    feeds = sharing(contracts).of_source("mysql")
    customers = feeds[CUSTOMERS]
    (sibling,) = customers.siblings
    elsewhere = sibling.model_copy(update={"topics": sibling.topics.model_copy(update={"topics": ("another",)})})
    alone = {CUSTOMERS: customers.model_copy(update={"siblings": (elsewhere,)})}
    records = [of_customer("c", 1, 0), of_another(1), tombstone({"cart_id": 1}, 2), tombstone({"customer_id": 1}, 3)]
    assert owners({CUSTOMERS: customers}, *records) == {
        0: [(CUSTOMERS, "change")],
        1: [],
        2: [],
        3: [(CUSTOMERS, "tombstone")],
    }
    assert owners(alone, *records) == {
        0: [(CUSTOMERS, "change")],
        1: [(CUSTOMERS, "unreadable")],
        2: [(CUSTOMERS, "tombstone")],
        3: [(CUSTOMERS, "tombstone")],
    }


def test_both_ways_of_reading_agree_on_whose_a_record_is(contracts: Contracts) -> None:
    """The fast way never takes a record of another table, though it has all declared fields."""
    feeds = sharing(contracts).of_source("mysql")
    value = (of_order("c", 1, 0)["value"] or "").replace('"table":"orders"', '"table":"customers"')
    assert owners(feeds, {**of_order("c", 1, 0), "value": value})[0][0][0] == CUSTOMERS


def _with_one_key(contracts: Contracts) -> Mapping[str, Feed]:
    """Both tables have a key `order_id`."""
    tables: dict[str, Any] = dict(contracts.silver.tables)
    columns = {**tables[CUSTOMERS].columns, "order_id": tables[ORDERS].columns["order_id"]}
    tables[CUSTOMERS] = tables[CUSTOMERS].model_copy(update={"keys": ("order_id",), "columns": columns})
    return contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})}).of_source(
        "mysql"
    )


def _record(written: Written) -> Record:
    value = written["value"]
    return Record(TOPIC, written["key"].encode(), None if value is None else value.encode(), ())
