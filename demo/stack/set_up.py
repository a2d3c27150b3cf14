"""The databases of the stack, set up as docs/connect.md says, with the files of resources/databases."""

from __future__ import annotations

from demo.processes import HOST
from demo.stack.stack import Stack

# The application's own table.
ORDERS = """CREATE TABLE orders (order_id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, product_id BIGINT,
    status VARCHAR(32) NOT NULL DEFAULT 'pending', total_amount DECIMAL(10,2), created_at TIMESTAMP(6) NOT NULL,
    updated_at TIMESTAMP(6) NULL, note TEXT)"""


def set_up(stack: Stack) -> None:
    """The tables of orders and outboxes, the user that replicates, and the publications, in every database."""
    for database in stack.databases:
        database.execute(ORDERS)
        database.set_up()


def variables(stack: Stack) -> dict[str, str]:
    """The bundle's variables that say where all of it is, as the environment has them."""
    found = {"bootstrap_servers": stack.bootstrap_servers, "connect_url": stack.connect.url}
    for database in stack.databases:
        found[f"{database.in_bundle}_host"] = HOST
        found[f"{database.in_bundle}_port"] = str(database.port)
    return {f"BUNDLE_VAR_{name}": value for name, value in found.items()}
