"""Both topics to the unified one with Flink SQL: debezium-json, union, deduplication by key, upsert-kafka. No tables.

FLINK_PYTHON benchmarks/flink/unified.py SERVERS TOPIC JAR CHECKPOINTS: reads what is there now, and ends.
"""

from __future__ import annotations

import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
CREATE TABLE {kind} (
    order_id BIGINT, customer_id BIGINT, product_id BIGINT, status STRING, total_amount DECIMAL(10, 2),
    created_at {time}, PRIMARY KEY (order_id) NOT ENFORCED
) WITH (
    'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
    'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'debezium-json'
)
"""
SINK = """
CREATE TABLE unified (
    order_id BIGINT, customer_id BIGINT, product_id BIGINT, status STRING, total_amount DECIMAL(10, 2),
    created_at STRING, source_database STRING, fulfillment_status STRING, composite_key STRING,
    PRIMARY KEY (composite_key) NOT ENFORCED
) WITH (
    'connector' = 'upsert-kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
    'key.format' = 'json', 'value.format' = 'json'
)
"""
QUERY = """
SELECT order_id, customer_id, product_id, status, total_amount, {created_at},
    '{kind}', CASE status WHEN 'completed' THEN 'FULFILLED' WHEN 'cancelled' THEN 'CANCELLED' ELSE 'PENDING' END,
    CONCAT('{prefix}-', CAST(order_id AS STRING))
FROM {kind}
"""
KINDS = (
    {
        "kind": "postgresql",
        "prefix": "PG",
        "topic": "postgres_prod_tables.public.orders",
        "time": "BIGINT",
        "created_at": "CAST(TO_TIMESTAMP_LTZ(created_at / 1000, 3) AS STRING)",
    },
    {
        "kind": "mysql",
        "prefix": "MY",
        "topic": "mysql_prod_tables.ecommerce.orders",
        "time": "STRING",
        "created_at": "created_at",
    },
)


def main(servers: str, topic: str, jar: str, checkpoints: str) -> None:
    """Run until everything that is there was read."""
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": "2",
        "table.local-time-zone": "UTC",
        # Debezium tells some events twice: without it, the result would count on its not doing so.
        "table.exec.source.cdc-events-duplicate": "true",
        "execution.checkpointing.interval": "10 s",
        # In memory, its default, every checkpoint of more than 5 MB fails.
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "taskmanager.memory.process.size": "2g",
    }.items():
        environment.get_config().set(key, value)
    for kind in KINDS:
        environment.execute_sql(SOURCE.format(servers=servers, **kind))
    environment.execute_sql(SINK.format(servers=servers, topic=topic))
    union = " UNION ALL ".join(QUERY.format(**kind) for kind in KINDS)
    environment.execute_sql(f"INSERT INTO unified {union}").wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
