"""The databases of the stack, set up as docs/connect.md says, with the files of resources/databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demo.processes import HOST
from demo.stack.database import RESOURCES
from demo.stack.stack import Stack

# The application's own table.
ORDERS = """CREATE TABLE orders (order_id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, product_id BIGINT,
    status VARCHAR(32) NOT NULL DEFAULT 'pending', total_amount DECIMAL(10,2), created_at TIMESTAMP(6) NOT NULL,
    updated_at TIMESTAMP(6) NULL, note TEXT)"""
FILES: Mapping[str, Sequence[str]] = {
    "postgresql": ("1_tables.sql", "2_user.sql", "3_publications.sql", "4_remove_old_outbox_rows.sql"),
    "mysql": ("1_tables_before_8_0_13.sql", "2_user.sql", "3_remove_old_outbox_rows.sql"),
    "mariadb": ("1_tables.sql", "2_user.sql", "3_remove_old_outbox_rows.sql"),
}


def set_up(stack: Stack) -> None:
    """The tables of orders and outboxes, the user that replicates, and the publications, in every database."""
    for (folder, files), database, password in zip(
        FILES.items(), stack.databases, stack.passwords.values(), strict=True
    ):
        database.execute(ORDERS)
        for file in files:
            database.run_file(RESOURCES / folder / file, password=password if "user" in file else "")


def variables(stack: Stack) -> dict[str, str]:
    """The bundle's variables that say where all of it is, as the environment has them."""
    found = {"bootstrap_servers": stack.bootstrap_servers, "connect_url": stack.connect.url}
    for name, database in zip(("postgres", "mysql", "mariadb"), stack.databases, strict=True):
        found[f"{name}_host"] = HOST
        found[f"{name}_port"] = str(database.port)
    return {f"BUNDLE_VAR_{name}": value for name, value in found.items()}
