"""Connectors, databases and topics as the tests of `lakehouse status` and `lakehouse doctor` see them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from connectors.cluster import State, Task
from connectors.connectors import Connector
from lakehouse.kafka.offsets import Ends, Partition
from monitoring.readings.databases import Binlog, Database, Slot
from monitoring.readings.running import Running
from monitoring.readings.topics import Sent, SourceTopics

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
MYSQL = "io.debezium.connector.mysql.MySqlConnector"
ORDERS = Partition("postgres_prod_tables.public.orders", 0)
OUTBOX = Partition("outbox.event.postgres.orders", 0)
BEATS = Partition("__debezium-heartbeat.postgres_prod_tables", 0)
MYSQL_ORDERS = Partition("mysql_prod_tables.ecommerce.orders", 0)


def postgres(name: str = "orders-postgres", **options: str) -> Connector:
    """A connector of PostgreSQL; `slot_name=...` is the option slot.name."""
    config = {
        "connector.class": POSTGRES,
        "topic.prefix": "postgres_prod_tables",
        "database.hostname": "db",
        "slot.name": "orders",
        "table.include.list": "public.orders",
    }
    return Connector(name=name, config=config | _dotted(options), file="test")


def mysql(name: str = "orders-mysql", **options: str) -> Connector:
    """A connector of MySQL."""
    config = {
        "connector.class": MYSQL,
        "topic.prefix": "mysql_prod_tables",
        "database.hostname": "db2",
        "database.server.id": "5401",
        "schema.history.internal.kafka.topic": "history.mysql",
        "table.include.list": "ecommerce.orders",
    }
    return Connector(name=name, config=config | _dotted(options), file="test")


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in options.items()}


def running(
    connector: Connector,
    database: Database | None = None,
    *,
    state: str = "RUNNING",
    tasks: tuple[str, ...] = ("RUNNING",),
    trace: str = "",
) -> Running:
    """A connector as it runs; `trace`: that of its tasks which have failed."""
    of_tasks = tuple(
        Task(number=number, state=one, worker="w:8083", trace=trace if one == "FAILED" else "")
        for number, one in enumerate(tasks)
    )
    return Running(connector, State(connector=connector.name, state=state, worker="w:8083", tasks=of_tasks), database)


def slot(**given: Any) -> Slot:
    """A slot that is active and near."""
    return Slot(**{"name": "orders", "exists": True, "active": True, "lag_bytes": 500, "kept_bytes": 900, **given})


def binlog(**given: Any) -> Binlog:
    """A binlog of two files; the connector reads the newer one."""
    return Binlog(
        **{
            "files": ("bin.000001", "bin.000002"),
            "file": "bin.000002",
            "has_file": True,
            "behind_bytes": 70,
            "expire_seconds": 7 * 86_400,
            "connector_ts": int(NOW.timestamp()) - 60,
            **given,
        }
    )


def database(**given: Any) -> Database:
    """A database that answers."""
    return Database(**{"connector": "orders-postgres", "server": "db:5432", **given})


def sent(seconds_ago: float, *, delay: float | None = None, has_key: bool = True) -> Sent:
    """A record that came to Kafka so long ago; `delay`: after its commit in the source."""
    at = NOW_MS - int(seconds_ago * 1000)
    return Sent(at, None if delay is None else at - int(delay * 1000), has_key)


def topics(**given: Any) -> SourceTopics:
    """Topics with a record of now, a heartbeat of now, and nothing unread."""
    return SourceTopics(
        **{
            "ends": {ORDERS: Ends(0, 100), BEATS: Ends(0, 9)},
            "last": {ORDERS: sent(2, delay=0.4), BEATS: sent(3)},
            "rate": 5.0,
            **given,
        }
    )
