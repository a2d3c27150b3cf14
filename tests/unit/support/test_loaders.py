"""BigQuery's table is the topic's last state, in whichever way it is loaded; and what each way needs for that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from lakehouse.kafka.log import Record
from tests.support.loaders import Table, change_data_capture, change_sequence, sink

KEYS = ("PG-1", "PG-2", "PG-3", "MY-1", "MY-2")
PARTITIONS = 3
Topic = Sequence[Record]


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Records as they were published: a key in one partition, its sequences growing, deleted and back again."""
    changes = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans(), st.integers(1, 200)), max_size=25))
    records: list[Record] = []
    version = generation = 1
    for key, is_deleted, step in changes:
        # A gold table that is made anew begins its versions again.
        generation, version = (generation + 1, 0) if step == 200 else (generation, version + step)
        value = json.dumps({"composite_key": key, "status": f"{generation}, {version}"}).encode()
        records.append(
            Record(
                partition=KEYS.index(key) % PARTITIONS,
                offset=len(records),
                key=json.dumps({"composite_key": key}).encode(),
                value=None if is_deleted else value,
                headers={
                    "change_type": "DELETE" if is_deleted else "UPSERT",
                    "change_sequence": f"{generation:016X}/{version:016X}",
                },
            )
        )
    return records


def last_state(topic: Topic) -> Table:
    last = {record.key: record for record in topic}
    values = [json.loads(record.value) for record in last.values() if record.value is not None]
    return {value["composite_key"]: value for value in values}


def in_any_order(topic: Topic, dice: Random) -> Topic:
    """Every record twice, anywhere."""
    return dice.sample([*topic, *topic], k=2 * len(topic))


def in_partition_order(topic: Topic, dice: Random) -> Topic:
    """As a consumer may get it: records twice, stretches of a partition read again, partitions in any interleaving."""
    partitions = [_read_again([record for record in topic if record.partition == p], dice) for p in range(PARTITIONS)]
    turns = [number for number, records in enumerate(partitions) for _record in records]
    dice.shuffle(turns)
    unread = [iter(records) for records in partitions]
    return [next(unread[number]) for number in turns]


def _read_again(partition: Topic, dice: Random) -> Topic:
    read = [again for record in partition for again in (record, record)]
    for _ in range(dice.randrange(3)):
        stopped = dice.randrange(len(read) + 1)
        read = read[:stopped] + read[dice.randrange(stopped + 1) :]
    return read


def batches(topic: Topic, dice: Random) -> Sequence[int]:
    return [dice.randrange(1, 6) for _ in range(dice.randrange(len(topic) + 1))]


def dice() -> st.SearchStrategy[Random]:
    return st.integers(0, 2**32).map(Random)


@given(topic=topics(), dice=dice())
def test_change_data_capture_gives_the_last_state_in_any_order(topic: Topic, dice: Random) -> None:
    assert change_data_capture(in_any_order(topic, dice)) == last_state(topic)


@settings(max_examples=40, deadline=None)
@given(topic=topics(), dice=dice())
def test_the_sink_gives_the_last_state_in_the_order_of_the_partitions(topic: Topic, dice: Random) -> None:
    arriving = in_partition_order(topic, dice)
    assert sink(arriving, batches=batches(arriving, dice)) == last_state(topic)


def test_without_sequences_change_data_capture_needs_the_order() -> None:
    def goes_wrong(case: tuple[Topic, Random]) -> bool:
        topic, dice = case
        told = [replace(record, headers={**record.headers, "change_sequence": "0"}) for record in topic]
        assert change_data_capture(told) == last_state(topic)
        return change_data_capture(in_any_order(told, dice)) != last_state(topic)

    assert find(st.tuples(topics(), dice()), goes_wrong)


def test_the_sink_needs_the_order_of_the_partitions() -> None:
    def goes_wrong(topic: Topic) -> bool:
        return sink(topic[::-1], batches=[1] * len(topic)) != last_state(topic)

    assert find(topics(), goes_wrong)


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("77", "7B"), ("FFF/B", "FFF/ABC"), ("BA/FFFFFFFF", "ABC"), ("ABC", "FFF/ABC"), ("7b", "7C"), ("0/9", "00/A")],
)
def test_sequences_are_compared_as_numbers_section_by_section(lower: str, higher: str) -> None:
    assert change_sequence(lower) < change_sequence(higher)


@pytest.mark.parametrize("text", ["", "/1", "0x1", "1/2/3/4/5", "1" * 17])
def test_a_sequence_that_bigquery_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no _CHANGE_SEQUENCE_NUMBER"):
        change_sequence(text)
