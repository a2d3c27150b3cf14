"""Contracts in which orders and customers of MySQL share one topic."""

from __future__ import annotations

from typing import Any, Literal

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column, SilverTable
from tests.support.events import Record, change, mysql_image, mysql_source, order, record

TOPIC, ORDERS, CUSTOMERS = "mysql_prod_tables.all", "mysql_orders", "customers"
RUN = [("__debezium.context.runId", "run-1")]


def sharing(contracts: Contracts, *, other_tables: Literal["quarantine", "ignore"] = "quarantine") -> Contracts:
    """The packaged contracts with both tables in TOPIC. A customer has a `customer_id` and a `status`."""
    mysql = contracts.topics.sources["mysql"]
    orders = mysql.feeds[ORDERS].model_copy(update={"topics": (TOPIC,), "other_tables": other_tables})
    customers = orders.model_copy(update={"tables": ("ecommerce.customers",)})
    feeds = {ORDERS: orders, CUSTOMERS: customers}
    columns = {name: Column.model_validate({"type": kind}) for name, kind in _COLUMNS.items()}
    table = SilverTable(keys=("customer_id",), sequence_by="source_position", columns=columns)
    sources = {"mysql": mysql.model_copy(update={"feeds": feeds})}
    tables = {**contracts.silver.tables, CUSTOMERS: table}
    return contracts.model_copy(
        update={
            "topics": contracts.topics.model_copy(update={"sources": sources}),
            "silver": contracts.silver.model_copy(update={"tables": tables}),
        }
    )


_COLUMNS = {"customer_id": "BIGINT", "status": "STRING"}


def of_order(op: str, key: int, offset: int, amount: str = "1.00") -> Record:
    """A change of an order, at a place in the log that its offset tells."""
    image = None if op == "d" else mysql_image(order(key, total_amount=amount))
    return _of("orders", op, {"order_id": key}, image, offset)


def of_customer(op: str, key: int, offset: int, status: str = "new") -> Record:
    """The same of a customer."""
    image = None if op == "d" else {"customer_id": key, "status": status}
    return _of("customers", op, {"customer_id": key}, image, offset)


def of_another(offset: int) -> Record:
    """A change of a table that no feed names."""
    return _of("carts", "c", {"cart_id": 1}, {"cart_id": 1}, offset)


def tombstone(key: dict[str, Any], offset: int) -> Record:
    """The tombstone of a key."""
    return record(TOPIC, offset, key=key, value=None)


def _of(table: str, op: str, key: dict[str, Any], image: dict[str, Any] | None, offset: int) -> Record:
    value = change(op, mysql_source(100 + offset, table=table), image)
    return record(TOPIC, offset, key=key, value=value, headers=RUN)
