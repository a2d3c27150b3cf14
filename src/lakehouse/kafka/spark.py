"""Kafka as Spark reads it: the options of its source, a whole topic as a table, and what its failures mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakehouse.errors import KafkaError, LakehouseError
from lakehouse.kafka.broker import GROUP_PREFIX, may_not_join, may_not_read, no_tls, not_let_in, stopped_answering
from lakehouse.kafka.client_settings import credentials, spark_options
from lakehouse.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What the Java client throws while no broker answers, and Spark when a broker has no record for it in time.
_GONE = re.compile(
    r"kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable|NotLeaderOrFollower)"
    r"\w*Exception|TimeoutException: Cannot fetch record|Cannot fetch record for offset"
)


def source_options(connection: KafkaConnection, *, reader: str) -> dict[str, str]:
    """Options of Spark's Kafka source for a reader of committed records; `reader` ends the names of its groups."""
    shaded = "DATABRICKS_RUNTIME_VERSION" in os.environ
    return {
        **spark_options(connection, credentials(connection), shaded=shaded),
        "groupIdPrefix": f"{GROUP_PREFIX}-{reader}",
        # What a producer's transaction took back was never there.
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }


def committed_topic(spark: SparkSession, connection: KafkaConnection, topic: str, *, reader: str) -> DataFrame:
    """Every record that is on the topic when it is read: `key`, `value`, `partition`, `offset`."""
    source = spark.read.format("kafka").options(**source_options(connection, reader=reader))
    records = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    return records.select("key", "value", "partition", "offset")


def explained(connection: KafkaConnection, text: str, *, job: str) -> KafkaError | None:
    """A failure of Spark's Kafka source in our words, by its text; None when it has another reason."""
    if "SaslAuthenticationException" in text:
        return not_let_in(connection)
    if "SslAuthenticationException" in text or "SSLHandshakeException" in text:
        return no_tls(connection)
    forbidden = re.search(r"Not authorized to access (?:topics: \[([^\]]*)\]|group: (\S+))", text)
    if forbidden:
        return may_not_read(connection, forbidden[1]) if forbidden[1] else may_not_join(connection, forbidden[2])
    return stopped_answering(connection, job) if _GONE.search(text) else None


@contextmanager
def source_errors(connection: KafkaConnection, *, job: str) -> Iterator[None]:
    """Inside, a failure of Spark's Kafka source is a KafkaError; every other exception is itself."""
    try:
        yield
    except LakehouseError:
        raise
    except Exception as error:
        found = explained(connection, str(error), job=job)
        if found is None:
            raise
        raise found from None
