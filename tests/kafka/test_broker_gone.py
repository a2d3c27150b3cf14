"""A broker that goes away in the middle: the job says so and tries again, and no record is lost or taken twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bronze import ingest
from demo.__main__ import RECORDINGS
from demo.broker import Broker, restartable_broker
from demo.check import read_topic
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import BrokerUnavailableError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.producer import TransactionalProducer, transactional_producer
from lakehouse.kafka.retry import RetryPolicy
from tests.support.brokers import plain_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

TOPICS = sorted({target for topics in RECORDINGS.values() for target in topics.values()})
FILLED = ("postgres_prod_tables.public.orders", "mysql_prod_tables.ecommerce.orders")
RECORDS = 60
# A fetch brings one record: what was not asked for yet is still with the broker when it goes.
FILE = """
bootstrap_servers: {servers}
timeout_seconds: 6
properties: {{max.partition.fetch.bytes: 1}}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with the topics of the contracts; two of them have records, each in a batch of its own."""
    with restartable_broker(tmp_path / "broker") as running:
        admin = AdminClient(plain_config(running.bootstrap_servers))
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in TOPICS]).values():
            created.result()
        producer = Producer({**plain_config(running.bootstrap_servers), "batch.num.messages": 1})
        for topic in FILLED:
            for number in range(RECORDS):
                producer.produce(topic, key=str(number), value="x" * 1000)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def chosen(broker: Broker, warehouse: Warehouse, tmp_path: Path) -> Settings:
    file = tmp_path / "kafka.yaml"
    file.write_text(FILE.format(servers=broker.bootstrap_servers))
    return Settings(warehouse.location, warehouse.checkpoints, kafka_config=file, max_offsets_per_trigger=20)


@pytest.fixture
def killed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The broker; it is killed when the first stream has its second batch in its hands."""
    appended = ingest.append_batch

    def append_without_broker(batch: DataFrame, batch_id: int, **more: Any) -> None:
        if batch_id == 1:
            broker.kill()
        appended(batch, batch_id, **more)

    monkeypatch.setattr(ingest, "append_batch", append_without_broker)
    return broker


def offsets(warehouse: Warehouse) -> dict[str, list[int]]:
    """The offsets in bronze, by topic."""
    found: dict[str, list[int]] = {}
    for source in ("postgres", "mysql"):
        for row in warehouse.read(f"bronze.{source}_events").select("topic", "offset").collect():
            found.setdefault(row["topic"], []).append(row["offset"])
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def once() -> dict[str, list[int]]:
    return {topic: list(range(RECORDS)) for topic in FILLED}


def starting(broker: Broker, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A listener that starts the broker again at the first announcement, for good."""

    def note(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            monkeypatch.undo()
            broker.start()

    return note


def test_a_broker_that_comes_back_is_waited_for(
    killed: Broker, chosen: Settings, warehouse: Warehouse, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = partitions(chosen.kafka())
    said: list[str] = []
    retry_policy = RetryPolicy("bronze", starting(killed, said, monkeypatch), waits=(1, 1, 1, 1, 1))
    ingest.run(warehouse.spark, chosen, contracts.topics, known=known, retry_policy=retry_policy)
    # Both streams run at a time: which of them misses the broker first is open.
    goes_on = f"the broker at {killed.bootstrap_servers} does not answer; trying again in 1 s (1 of 5)"
    assert said[0] in {f"bronze {source}: {goes_on}" for source in ("postgres", "mysql")}
    assert offsets(warehouse) == once()


def test_a_broker_that_stays_away_ends_the_run_and_the_next_one_resumes(
    killed: Broker, chosen: Settings, warehouse: Warehouse, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = partitions(chosen.kafka())
    said: list[str] = []
    retry_policy = RetryPolicy("bronze", said.append, waits=(0.5, 0.25))
    with pytest.raises(
        BrokerUnavailableError, match=r"stopped answering\. Run the job again when it is back: it resumes"
    ):
        ingest.run(warehouse.spark, chosen, contracts.topics, known=known, retry_policy=retry_policy)
    again = [text.split("; ")[1] for text in said if text.startswith("bronze postgres: ")]
    assert again == ["trying again in 0.5 s (1 of 2)", "trying again in 0.25 s (2 of 2)"]
    assert sum(len(numbers) for numbers in offsets(warehouse).values()) < 2 * RECORDS
    monkeypatch.undo()
    killed.start()
    ingest.run(warehouse.spark, chosen, contracts.topics, known=known)
    assert offsets(warehouse) == once()


def test_publishing_waits_too_and_sends_every_record_once(
    broker: Broker, chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (topic,) = (topic for topic in TOPICS if topic.startswith("__debezium") and "mysql" in topic)
    retry_policy = RetryPolicy("publish", starting(broker, said, monkeypatch), waits=(20, 20))
    with transactional_producer(
        chosen.kafka(), transactional_id="of this test", max_message_bytes=1_000_000, retry_policy=retry_policy
    ) as producer:
        produce(producer, topic, range(250))
        producer.commit()
        broker.kill()
        produce(producer, topic, range(250, 500))
        producer.commit()
    assert said == [f"publish: the broker at {broker.bootstrap_servers} does not answer; trying again in 20 s (1 of 2)"]
    assert sorted(int(key) for key, _value in read_topic(broker.bootstrap_servers, topic)) == list(range(500))
    broker.kill()
    impatient = RetryPolicy("publish", said.append, waits=())
    with (
        pytest.raises(BrokerUnavailableError, match=r"publish: .* stopped answering\. Run the job again"),
        transactional_producer(
            chosen.kafka(), transactional_id="of this test", max_message_bytes=1_000_000, retry_policy=impatient
        ),
    ):
        pass


def produce(producer: TransactionalProducer, topic: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        producer.send(topic, key=str(number).encode(), value=b"{}", headers={})
