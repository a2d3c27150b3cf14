"""Sampling a topic: the records at both ends of every partition, committed ones only, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

from cli.proposal.broker import proposed_database
from cli.proposal.propose import propose
from cli.proposal.sample import NO_ANSWER, NO_OFFSETS, NO_RIGHT, NO_TIME, Unread, sample, samples
from demo.replay import replay
from lakehouse.contracts.files import load_contracts
from lakehouse.errors import BrokerUnavailableError, KafkaError, TopicMissingError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection, load_connection
from lakehouse.process.steps import ProgressStep
from silver.decode.reference.message import Record
from tests.support.brokers import READER_PASSWORD, SecuredBroker

pytestmark = pytest.mark.kafka

RECORDINGS = Path(__file__).parents[2] / "demo" / "data"

NewTopicOf = Callable[[int], str]


@pytest.fixture
def kafka(bootstrap_servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


@pytest.fixture
def topic_of(kafka: KafkaConnection) -> Iterator[NewTopicOf]:
    """Makes a topic of that many partitions, and deletes it afterwards."""
    admin = AdminClient(client_config(kafka))
    made: list[str] = []

    def make(partitions: int) -> str:
        name = f"sampled-{uuid4()}"
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result()
        made.append(name)
        while name not in admin.list_topics(timeout=10).topics:  # it is told a moment after it was made
            time.sleep(0.01)
        return name

    yield make
    for deleted in admin.delete_topics(made).values():
        deleted.result()


def produce(kafka: KafkaConnection, topic: str, values: range, *, partition: int = 0) -> None:
    producer = Producer(client_config(kafka))
    for value in values:
        producer.produce(topic, partition=partition, key=b"k", value=str(value).encode(), headers=[("h", b"1")])
    assert producer.flush(30) == 0


def numbers(records: object) -> list[int]:
    assert isinstance(records, tuple)
    return [int(record.value or b"") for record in records]


def test_a_small_topic_is_read_whole_and_once(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(3)
    produce(kafka, topic, range(5), partition=0)
    produce(kafka, topic, range(5, 7), partition=2)
    records = sample(kafka, topic)
    assert numbers(records) == [0, 1, 2, 3, 4, 5, 6]
    assert records[0] == Record(topic, key=b"k", value=b"0", headers=(("h", b"1"),))


def test_of_a_large_topic_both_ends_of_every_partition_are_read(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(2)
    produce(kafka, topic, range(1000), partition=0)
    produce(kafka, topic, range(1000, 1004), partition=1)
    assert numbers(sample(kafka, topic, most=10)) == [0, 1, 2, 997, 998, 999, 1000, 1001, 1002, 1003]


def test_a_replayed_recording_can_be_proposed_from(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    replay(kafka.bootstrap_servers, RECORDINGS / "pg_default.jsonl.gz", topics={"pg.public.orders": topic})
    texts = propose(topic, sample(kafka, topic))
    assert "121 records: 99 change events, 11 deletes, 11 tombstones" in texts["bronze/topics.yaml"]


def test_tombstones_and_records_without_a_key_are_records(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    producer = Producer(client_config(kafka))
    producer.produce(topic, value=None)
    assert producer.flush(30) == 0
    assert sample(kafka, topic) == (Record(topic, key=None, value=None),)


def test_only_committed_records_are_read_at_either_end(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    writer = Producer({**client_config(kafka), "transactional.id": f"writer-{uuid4()}"})
    writer.init_transactions()
    for values, end in (
        (range(5), writer.abort_transaction),
        (range(5, 10), writer.commit_transaction),
        (range(10, 15), writer.abort_transaction),
    ):
        writer.begin_transaction()
        for value in values:
            writer.produce(topic, value=str(value).encode())
        writer.flush()
        end()
    started = time.monotonic()
    assert numbers(sample(kafka, topic, seconds=30)) == [5, 6, 7, 8, 9]
    # The end of a partition is known: nobody waits for more.
    assert time.monotonic() - started < 20
    # Four from the beginning, five from the end, where only aborted ones are.
    assert numbers(sample(kafka, topic, most=8, seconds=8)) == [5, 6, 7, 8]


def test_an_open_transaction_does_not_hold_it_up(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    writer = Producer({**client_config(kafka), "transactional.id": f"writer-{uuid4()}"})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, value=b"3")
    writer.flush()
    started = time.monotonic()
    assert numbers(sample(kafka, topic, seconds=30)) == [0, 1, 2]
    assert time.monotonic() - started < 20
    writer.abort_transaction()


def test_an_empty_topic_has_no_records(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    assert sample(kafka, topic_of(2)) == ()


def test_it_leaves_no_group_behind(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    sample(kafka, topic)
    groups = AdminClient(client_config(kafka)).list_consumer_groups().result()
    assert not [group.group_id for group in groups.valid if group.group_id.startswith("lakehouse-sample")]


def test_a_topic_that_is_not_there_is_named_with_what_was_meant(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    with pytest.raises(TopicMissingError, match=f"did you mean '{topic}'") as refused:
        sample(kafka, topic[:-1])
    assert kafka.bootstrap_servers in refused.value.what


def test_records_that_do_not_come_in_time_are_an_error(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    with pytest.raises(KafkaError, match="in 0 s"):
        sample(kafka, topic, seconds=0)


def test_a_broker_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.kafka.broker.FIRST_LOOK_SECONDS", 0.2)
    monkeypatch.setattr("lakehouse.kafka.broker.TIMEOUT_SECONDS", 0.5)
    with pytest.raises(KafkaError, match="No Kafka broker answers"):
        sample(KafkaConnection(bootstrap_servers="127.0.0.1:1"), "any")


@pytest.fixture
def create(kafka: KafkaConnection) -> Iterator[Callable[[str, int], None]]:
    """Makes a topic of that name and of so many partitions, and deletes it afterwards."""
    admin = AdminClient(client_config(kafka))
    made: list[str] = []

    def make(name: str, partitions: int) -> None:
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result()
        made.append(name)
        while name not in admin.list_topics(timeout=10).topics:
            time.sleep(0.01)

    yield make
    for deleted in admin.delete_topics(made).values():
        deleted.result()


def test_many_topics_are_sampled_each_at_both_ends(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topics = {topic_of(partitions): tuple(range(partitions)) for partitions in (1, 2, *[1] * 10)}
    one, two, *_others, last = topics
    produce(kafka, one, range(100))
    produce(kafka, two, range(3), partition=1)
    produce(kafka, last, range(2))
    found = [*samples(kafka, topics, most=4, seconds=30)]
    assert [len(some) for some in found] == [10, 2]
    merged = {topic: read for some in found for topic, read in some.items()}
    assert [*merged] == [*topics]
    assert numbers(merged[one]) == [0, 1, 98, 99]
    assert numbers(merged[two]) == [0, 1, 2]
    assert numbers(merged[last]) == [0, 1]
    assert [len(records(merged, name)) for name in topics if name not in (one, two, last)] == [0] * 9


def records(found: Mapping[str, Sequence[Record] | Unread], topic: str) -> Sequence[Record]:
    read = found[topic]
    assert not isinstance(read, Unread)
    return read


def test_of_many_topics_what_the_time_was_too_short_for_is_named(
    kafka: KafkaConnection, topic_of: NewTopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    assert [*samples(kafka, {topic: (0,)}, most=4, seconds=0)] == [{topic: NO_TIME}]
    monkeypatch.setattr("cli.proposal.sample.SECONDS", 0)
    assert [*samples(kafka, {topic: (0,)}, most=4, seconds=30)] == [{topic: NO_ANSWER}]


def test_a_topic_that_went_away_leaves_the_others(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    gone = f"gone-{uuid4()}"
    (found,) = samples(kafka, {gone: (0,), topic: (0,)}, most=4, seconds=30)
    assert found[gone] == NO_OFFSETS
    assert numbers(found[topic]) == [0, 1, 2]


def test_many_topics_of_a_broker_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.kafka.offsets.TIMEOUT_SECONDS", 0.5)
    with pytest.raises(BrokerUnavailableError):
        list(samples(KafkaConnection(bootstrap_servers="127.0.0.1:1"), {"any": (0,)}, most=4, seconds=30))


class Noted(ProgressStep):
    """What a step says of itself, kept."""

    def __init__(self) -> None:
        super().__init__(lambda _text, *, urgent=False: None)


def test_a_database_is_proposed_from_the_topics_of_a_broker(
    kafka: KafkaConnection, create: Callable[[str, int], None], tmp_path: Path
) -> None:
    """The recorded topics of MySQL, under names that have nothing of the database in them, beside other topics."""
    mark = uuid4().hex
    names = {
        "mysql.ecommerce.orders": f"{mark}_orders",
        "mysql.ecommerce.orders_nopk": f"{mark}_orders_nopk",
        "mysql.ecommerce.orders_types": f"{mark}_orders_types",
        "mysql": f"ddl_{mark}",
        "mysql.transaction": f"transactions_{mark}",
        "__debezium-heartbeat.mysql": f"beats_{mark}",
    }
    for name in names.values():
        create(name, 1)
    create(f"clicks_{mark}", 2)
    produce(kafka, f"clicks_{mark}", range(3))
    replay(kafka.bootstrap_servers, RECORDINGS / "mysql.jsonl.gz", topics=names)
    note = Noted()
    proposal = proposed_database("ecommerce", kafka, note)
    assert len(note.came_of_it) == 1
    assert "topics looked at" in note.came_of_it[0]
    for file, text in proposal.texts.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    ((_name, source),) = load_contracts(tmp_path).topics.sources.items()
    rule = source.by_rule["ecommerce"]
    assert f"{mark}_.*" in rule.include
    assert rule.schema_changes == f"ddl_{mark}"
    assert f"beats_{mark}" in source.ignored_topics
    rows = {one.topic: one for one in proposal.rows}
    types = rows[f"{mark}_orders_types"]
    assert (types.table, types.keys, types.types_by) == ("ecommerce.orders_types", (), "topic of schema changes")
    # The recorded database was altered, and these messages have no schema.
    assert "was DECIMAL(10,2) and DECIMAL(12,4) in turn" in types.remark
    assert rows[f"{mark}_orders"].records == 20
    assert "no key" in rows[f"{mark}_orders_nopk"].remark
    assert not rows[f"clicks_{mark}"].taken
    assert "transaction markers" in rows[f"transactions_{mark}"].remark


def test_a_topic_that_may_not_be_read_leaves_the_others(
    secured: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READER_PASSWORD", READER_PASSWORD)
    (tmp_path / "kafka.yaml").write_text(
        f"bootstrap_servers: {secured.bootstrap_servers}\nsecurity_protocol: SASL_PLAINTEXT\nsasl_mechanism: PLAIN\n"
        "username: reader\npassword: {env: READER_PASSWORD}\n"
    )
    readable, described = (f"sampled-{uuid4()}" for _ in range(2))
    admin = secured.admin()  # named: its requests end with it
    for created in admin.create_topics([NewTopic(one, 1, 1) for one in (readable, described)]).values():
        created.result()
    secured.grant(ResourceType.TOPIC, readable, AclOperation.DESCRIBE, AclOperation.READ)
    secured.grant(ResourceType.TOPIC, described, AclOperation.DESCRIBE)
    producer = Producer(secured.admin_config())
    for topic in (readable, described):
        producer.produce(topic, value=b"1")
    assert producer.flush(30) == 0
    reader = load_connection(tmp_path / "kafka.yaml")
    with pytest.raises(KafkaError, match=f"does not let topic {described} be read"):
        sample(reader, described)
    (found,) = samples(reader, {described: (0,), readable: (0,)}, most=4, seconds=30)
    assert found[described] == NO_RIGHT
    assert numbers(found[readable]) == [1]
