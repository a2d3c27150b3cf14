"""Kafka with a login, with rights and with certificates: both clients come in, and a refusal is one clear sentence."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from bronze import ingest
from demo.__main__ import RECORDINGS
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source
from lakehouse.errors import BrokerUnavailableError, KafkaError, TopicMissingError
from lakehouse.kafka.broker import ensure_compacted_topic, partitions, require_topics
from lakehouse.kafka.client_settings import credentials, spark_options
from lakehouse.kafka.connection import KafkaConnection, load_connection
from lakehouse.kafka.producer import transactional_producer
from tests.support.brokers import KEY_PASSWORD, READER_MARK, READER_PASSWORD, SecuredBroker, tls_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TOPICS = sorted({target for topics in RECORDINGS.values() for target in topics.values()})
FILE = """
bootstrap_servers: {servers}
security_protocol: SASL_PLAINTEXT
sasl_mechanism: PLAIN
username: reader
password: {{env: READER_PASSWORD}}
timeout_seconds: 10
"""


@pytest.fixture
def file(secured: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """How `reader` reaches the broker."""
    monkeypatch.setenv("READER_PASSWORD", READER_PASSWORD)
    written = tmp_path / "kafka.yaml"
    written.write_text(FILE.format(servers=secured.bootstrap_servers))
    return written


@pytest.fixture
def connection(file: Path) -> KafkaConnection:
    return load_connection(file)


def create(secured: SecuredBroker, *topics: str, policy: str = "delete") -> None:
    admin = secured.admin()
    new = [NewTopic(topic, 1, 1, config={"cleanup.policy": policy}) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result()


def test_a_wrong_password_is_known_at_once_and_names_its_reference(
    connection: KafkaConnection, secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READER_PASSWORD", "not-the-password")
    started = time.monotonic()
    with pytest.raises(KafkaError) as error:
        partitions(connection)
    assert time.monotonic() - started < 8
    assert not isinstance(error.value, BrokerUnavailableError)
    assert str(error.value) == (
        f"The broker at {secured.bootstrap_servers} does not let in the user reader with the password in the variable "
        "READER_PASSWORD: not authenticated. Check both, and that the broker knows this user by PLAIN."
    )


def test_a_client_without_security_is_told_what_it_speaks(secured: SecuredBroker) -> None:
    with pytest.raises(
        BrokerUnavailableError, match=r"it speaks PLAINTEXT there \(security_protocol of --kafka-config\)"
    ):
        partitions(KafkaConnection(bootstrap_servers=secured.bootstrap_servers))


def test_a_topic_that_one_may_not_see_is_not_called_missing(
    connection: KafkaConnection, secured: SecuredBroker
) -> None:
    create(secured, "unseen", "seen")
    secured.grant(ResourceType.TOPIC, "seen", AclOperation.DESCRIBE)
    secured.grant(ResourceType.TOPIC, "absent", AclOperation.DESCRIBE)
    known = partitions(connection)
    assert "seen" in known
    with pytest.raises(KafkaError) as error:
        require_topics(connection, reads("seen", "unseen", "absent"), known=known)
    assert str(error.value) == (
        f"At {secured.bootstrap_servers}, the user reader has no right to read unseen. Grant Describe and Read on each "
        "topic."
    )
    with pytest.raises(TopicMissingError, match="does not have: topic absent"):
        require_topics(connection, reads("seen", "absent"), known=known)


def reads(*topics: str) -> Source:
    return Source.model_validate({"kind": "mysql", "feeds": {"orders": {"topics": topics, "envelope": "table"}}})


def test_the_topic_is_created_only_by_who_may_and_only_when_it_is_absent(
    connection: KafkaConnection, secured: SecuredBroker
) -> None:
    refused = (
        r"reader has no right to write to unified-1\. Grant Describe, DescribeConfigs, Read and Write on topic unif"
    )
    with pytest.raises(KafkaError, match=refused):
        ensure_compacted_topic(connection, "unified-1", partitions=1, replication_factor=1)
    secured.grant(ResourceType.TOPIC, "unified-1", AclOperation.WRITE)
    with pytest.raises(KafkaError, match=r"did not create topic unified-1.*grant the user reader Create on it"):
        ensure_compacted_topic(connection, "unified-1", partitions=1, replication_factor=1)
    create(secured, "unified-1", policy="compact")
    refused = r"does not say how topic unified-1 is kept.*Grant the user reader Describe and DescribeConfigs on it"
    with pytest.raises(KafkaError, match=refused):
        ensure_compacted_topic(connection, "unified-1", partitions=1, replication_factor=1)
    secured.grant(ResourceType.TOPIC, "unified-1", AclOperation.DESCRIBE_CONFIGS)
    ensure_compacted_topic(connection, "unified-1", partitions=1, replication_factor=1)
    secured.grant(ResourceType.TOPIC, "unified-2", AclOperation.WRITE, AclOperation.CREATE)
    ensure_compacted_topic(connection, "unified-2", partitions=1, replication_factor=1)
    assert "unified-2" in partitions(connection)


def test_publishing_without_a_right_is_one_sentence(connection: KafkaConnection, secured: SecuredBroker) -> None:
    create(secured, "unified-3")
    secured.grant(ResourceType.TOPIC, "unified-3", AclOperation.DESCRIBE)
    refused = (
        r"reader has no right to write in transactions as publish-3\. Grant Describe and Write on the transactional"
    )
    with pytest.raises(KafkaError, match=refused):
        produce(connection, "unified-3", transactional_id="publish-3")
    secured.grant(ResourceType.TRANSACTIONAL_ID, "publish-3", AclOperation.DESCRIBE, AclOperation.WRITE)
    with pytest.raises(
        KafkaError, match=r"reader has no right to write to unified-3\. Grant Describe, DescribeConfigs"
    ):
        produce(connection, "unified-3", transactional_id="publish-3")
    secured.grant(ResourceType.TOPIC, "unified-3", AclOperation.WRITE)
    produce(connection, "unified-3", transactional_id="publish-3")


def produce(connection: KafkaConnection, topic: str, *, transactional_id: str) -> None:
    """Three records, in a transaction."""
    with transactional_producer(connection, transactional_id=transactional_id, max_message_bytes=1_000_000) as producer:
        for number in range(3):
            producer.send(topic, key=str(number).encode(), value=b"{}", headers={})
        producer.commit()


# In a process of its own, whose whole output can be searched: Spark says all that it ever says.
READ = """
import sys
from pathlib import Path

from bronze import ingest
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.errors import LakehouseError
from lakehouse.kafka.broker import partitions
from lakehouse.spark.session import spark_session

started = ingest._start


def start_and_explain(*arguments, **named):
    query = started(*arguments, **named)
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress)
    return query


ingest._start = start_and_explain
chosen = settings(warehouse=sys.argv[1], kafka_config=Path(sys.argv[2]))
known = partitions(chosen.kafka())
spark = spark_session()
spark.sparkContext.setLogLevel("INFO")
ingest.run(spark, chosen, load_contracts().topics, known=known)
"""


@pytest.mark.spark
def test_bronze_reads_with_the_rights_it_names_and_no_less(
    file: Path, secured: SecuredBroker, spark: SparkSession, contracts: Contracts, warehouse: Warehouse
) -> None:
    create(secured, *TOPICS)
    producer = Producer({**secured.admin_config()})
    for topic in TOPICS:
        producer.produce(topic, key=b"{}", value=b"{}")
    assert producer.flush(20) == 0
    chosen = Settings(warehouse.location, warehouse.checkpoints, kafka_config=file)

    def read() -> None:
        ingest.run(spark, chosen, contracts.topics, known=partitions(chosen.kafka()))

    refused = r"the user reader has no right to read .*postgres_prod_tables\.public\.orders"
    with pytest.raises(KafkaError, match=refused):
        read()
    for topic in TOPICS:
        secured.grant(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    with pytest.raises(KafkaError, match=r"the user reader has no right to read \S+\. Grant Describe and Read on each"):
        read()
    for topic in TOPICS:
        secured.grant(ResourceType.TOPIC, topic, AclOperation.READ)
    read()
    _search_all_that_a_run_leaves(file, warehouse.location + "-2")
    stored = [warehouse.read(f"bronze.{source}_events").count() for source in contracts.topics.sources]
    assert sum(stored) == len(TOPICS)


def _search_all_that_a_run_leaves(file: Path, warehouse: str) -> None:
    """The password is in no line of the output, no plan and no file of a run."""
    done = subprocess.run(
        [sys.executable, "-c", READ, warehouse, str(file)], cwd=ROOT, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [one for one in Path(warehouse).rglob("*") if one.is_file()]
    assert b"sasl.jaas.config = [hidden]" in done.stderr, "Spark's clients said their settings"
    assert b"== Optimized Logical Plan ==" in done.stdout
    assert any("_checkpoints" in one.parts for one in files)
    for said in (done.stdout, done.stderr, *(one.read_bytes() for one in files)):
        assert READER_MARK.encode() not in said


@pytest.mark.spark
def test_both_clients_show_their_certificate(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_PASSWORD", KEY_PASSWORD)
    with tls_broker(tmp_path) as broker:
        text = f"bootstrap_servers: {broker.bootstrap_servers}\nsecurity_protocol: SSL\ntimeout_seconds: 10\n"
        (tmp_path / "nobody.yaml").write_text(f"{text}ca_file: {tmp_path}/ca.pem\n")
        with pytest.raises(KafkaError, match=r"No TLS connection to .* as this client, which has no user: one side"):
            partitions(load_connection(tmp_path / "nobody.yaml"))
        (tmp_path / "distrust.yaml").write_text(text)
        with pytest.raises(KafkaError, match=r"No TLS connection to .* Check ca_file"):
            partitions(load_connection(tmp_path / "distrust.yaml"))
        (tmp_path / "client.yaml").write_text(
            f"{text}ca_file: {tmp_path}/ca.pem\nclient_certificate_file: {tmp_path}/client.pem\n"
            "client_key_password: {env: KEY_PASSWORD}\n"
        )
        connection = load_connection(tmp_path / "client.yaml")
        ensure_compacted_topic(connection, "guarded", partitions=1, replication_factor=1)
        produce(connection, "guarded", transactional_id="publish-guarded")
        options = spark_options(connection, credentials(connection), shaded=False)
        read = spark.read.format("kafka").options(**options).option("subscribe", "guarded").load()
        assert read.count() == 3
