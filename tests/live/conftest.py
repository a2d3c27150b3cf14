"""The stack, once for all tests, and the stories told on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from demo.stack.stack import Stack, live_stack
from tests.support.live.connectors import Config


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The three databases, the broker and Kafka Connect."""
    with live_stack() as running:
        yield running


@pytest.fixture(scope="session")
def packaged_connectors(stack: Stack) -> Mapping[str, Config]:
    """INTERIM"""
    s = stack
    values = {"bootstrap_servers": stack.bootstrap_servers, "topic_partitions": "3", "topic_replication_factor": "1"}
    for d, db in zip(("postgres", "mysql", "mariadb"), stack.databases):
        values |= {
            f"{d}_host": "127.0.0.1",
            f"{d}_port": str(db.port),
            f"{d}_user": "debezium_user",
            f"{d}_database": "ecommerce",
            f"{d}_ssl_mode": {"postgres": "prefer", "mysql": "preferred", "mariadb": "disable"}[d],
        }
    out = {}
    for f in Path("/work/connect/resources/connect").glob("*-connector.json"):
        text = re.sub(r"\$\{var\.(\w+)\}", lambda m: values[m[1]], f.read_text())
        d = json.loads(text)
        out[d["name"]] = d["config"]
    pg, my, ma = s.databases
    pw = s.passwords
    pg.execute(
        f"CREATE ROLE debezium_user LOGIN REPLICATION PASSWORD '{pw['DEBEZIUM_POSTGRES_PASSWORD']}'",
        "GRANT ALL ON SCHEMA public TO debezium_user",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO debezium_user",
    )
    for db, n in ((my, "MYSQL"), (ma, "MARIADB")):
        db.execute(
            f"CREATE USER debezium_user IDENTIFIED BY '{pw[f'DEBEZIUM_{n}_PASSWORD']}'",
            "GRANT ALL PRIVILEGES ON *.* TO debezium_user",
        )
    return out
