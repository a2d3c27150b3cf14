"""Faults of the broker and its topics."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from chaos.faults.fault import fault
from chaos.world import SOURCES, UNIFIED_TOPIC, ChaosError, SourceNames, World, hanging, last_words
from lakehouse.kafka.broker import GROUP_PREFIX, client_config

AREA = "kafka"
MOST_PARTITIONS = 8
TRANSACTIONAL_ID = f"{GROUP_PREFIX}-publish-{UNIFIED_TOPIC}"


@fault(AREA, "kill -9 of the broker in the middle of a pass, and a start a little later")
def broker_killed(world: World) -> None:
    """Jobs and connectors wait, or fail and go on when they are run again."""
    with world.writing():
        world.pipeline.begin_pass()
        time.sleep(world.random.uniform(0.2, 4))
        world.stack.broker.kill()
        time.sleep(world.random.uniform(0, 3))
        world.stack.broker.start()
    world.wait_for_connectors()


@fault(AREA, "the broker hangs (SIGSTOP) in the middle of a pass")
def broker_paused(world: World) -> None:
    """As above."""
    with world.writing():
        world.pipeline.begin_pass()
        time.sleep(world.random.uniform(0.2, 3))
        with hanging(world.stack.broker):
            time.sleep(world.random.uniform(3, 10))
    world.wait_for_connectors()


@fault(AREA, "the broker has lost all topics: others of the same names, with other ids", single_only=True)
def broker_lost(world: World) -> None:
    """Connectors are deployed again and take snapshots; gold is sent again. Bronze keeps what it had."""
    with world.writing():
        pass
    world.drain()
    world.stack.connect.stop()
    world.stack.broker.kill()
    world.stack.broker.wipe()
    world.stack.broker.start()
    world.stack.connect.start()
    world.stack.connect.wait()
    world.deploy()
    world.observer.forget()


@fault(AREA, "a source topic is deleted with records that nobody has read, and made again", single_only=True)
def topic_recreated(world: World) -> None:
    """The gap is named and recorded; a snapshot brings what is lost."""
    names = _source(world)
    with world.writing():
        pass
    world.drain()
    world.stop_connector(names.tables_connector)
    _delete_topic(world, names.tables_topic)
    _create_topic(world, names.tables_topic, partitions=3)
    world.stack.connect.worker.resume(names.tables_connector)
    world.snapshot_again(names.tables_connector)


@fault(AREA, "a source topic gets more partitions, so that keys move between them")
def partitions_added(world: World) -> None:
    """Order is by the source's position, not by offset."""
    names = _source(world)
    number = len(world.admin.list_topics(names.tables_topic, timeout=30).topics[names.tables_topic].partitions)
    if number >= MOST_PARTITIONS:
        world.say(f"{names.tables_topic} has {number} partitions already")
    with world.writing():
        world.pipeline.begin_pass()
        if number < MOST_PARTITIONS:
            _wait(world.admin.create_partitions([NewPartitions(names.tables_topic, number + 1)]))
            world.say(f"{names.tables_topic} has {number + 1} partitions")


@fault(AREA, "retention deletes records that bronze has not read", single_only=True)
def retention(world: World) -> None:
    """The gap is named and recorded; a snapshot brings what is lost."""
    names = _source(world)
    with world.writing():
        pass
    world.drain()
    known = world.admin.list_topics(names.tables_topic, timeout=30).topics[names.tables_topic]
    everything = [TopicPartition(names.tables_topic, number, -1) for number in known.partitions]  # -1: to the end
    _wait(world.admin.delete_records(everything))
    world.say(f"all records of {names.tables_topic} are deleted")
    world.snapshot_again(names.tables_connector)


@fault(AREA, "records of a transaction that was aborted are on a source topic")
def aborted_records(world: World) -> None:
    """They were never sent: bronze does not store them."""
    names = _source(world)
    producer = Producer({**_config(world), "transactional.id": f"chaos-{names.name}"})
    producer.init_transactions(30)
    with world.writing():
        for number in range(3):
            producer.begin_transaction()
            for order in (1, 2, 3):
                event = {"op": "c", "after": {"order_id": order, "status": "aborted"}, "source": {}}
                producer.produce(names.tables_topic, json.dumps(event).encode(), json.dumps({"order_id": order}))
            producer.flush(30)
            if number == 1:
                world.pipeline.begin_pass()
            producer.abort_transaction(30)
    world.say(f"9 records in 3 aborted transactions on {names.tables_topic}")


@fault(AREA, "another producer takes the transactional id of the unified topic in the middle of a pass")
def producer_fenced(world: World) -> None:
    """The pass fails, or ends before; the next one sends what is missing, once."""
    with world.writing():
        pass
    world.drain()
    world.pipeline.commits.new()
    world.pipeline.begin_pass()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not world.pipeline.has_ended():
        if "gold.unified_orders" in world.pipeline.commits.new():
            break
        time.sleep(0.01)
    for _ in range(3):
        time.sleep(world.random.uniform(0, 1))
        Producer({**_config(world), "transactional.id": TRANSACTIONAL_ID}).init_transactions(30)


@fault(AREA, "another application writes orders that nobody has into the unified topic", single_only=True)
def foreign_records(world: World) -> None:
    """`verify` names the keys; `publish --republish` mends them."""
    with world.writing():
        pass
    world.drain()
    _must_end(world, 0, "run")
    producer = Producer(_config(world))
    for order in (1, 2):
        key = {"composite_key": f"PG-{order}"}
        producer.produce(UNIFIED_TOPIC, json.dumps({**key, "status": "foreign"}).encode(), json.dumps(key))
    producer.flush(30)
    _must_end(world, 8, "verify")
    _must_end(world, 0, "publish", "--republish")
    world.observer.forget()


def _must_end(world: World, code: int, *arguments: str) -> None:
    done = world.pipeline.command(*arguments)
    if done.code != code:
        raise ChaosError(f"lakehouse {' '.join(arguments)} ended with {last_words(done)}, not with {code}")


def _source(world: World) -> SourceNames:
    return world.random.choice(SOURCES)


def _config(world: World) -> dict[str, Any]:
    return dict(client_config(world.kafka))


def _wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result()


def _delete_topic(world: World, topic: str) -> None:
    _wait(world.admin.delete_topics([topic]))
    world.wait_until(lambda: topic not in world.admin.list_topics(timeout=10).topics, f"{topic} is gone")
    world.say(f"{topic} deleted")


def _create_topic(world: World, topic: str, *, partitions: int) -> None:
    def create() -> bool:
        try:
            _wait(world.admin.create_topics([NewTopic(topic, partitions, 1)]))
        except KafkaException:
            return topic in world.admin.list_topics(timeout=10).topics
        return True

    world.wait_until(create, f"{topic} is made again")
