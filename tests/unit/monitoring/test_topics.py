"""The pure parts of what the broker says: times of records, delays, and what retention removes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from lakehouse.contracts.files import load_contracts
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition
from monitoring.readings import topics
from monitoring.readings.topics import WINDOW, Sent, SourceTopics, _retention, began_at, connector_seconds, source_ms
from monitoring.readings.unified_topic import _is_of, composite_key_in
from tests.support.events import change, compact, order, postgres_image, postgres_source
from tests.unit.monitoring.scenes import NOW_MS, ORDERS, OUTBOX, sent

COMMITTED = 1_767_225_600_123
EVENT = change("u", postgres_source(5, last_commit=4, ts_ms=COMMITTED), postgres_image(order(7)), ts_ms=COMMITTED + 900)
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "value",
    [
        EVENT,
        EVENT.encode(),
        compact({"schema": {"type": "struct", "fields": []}, "payload": json.loads(EVENT)}),
        compact({"op": "d", "before": {"order_id": 7}, "after": None, "source": {"ts_ms": COMMITTED}}),
    ],
    ids=["text", "bytes", "with a schema", "a delete"],
)
def test_a_change_says_when_it_was_committed(value: bytes | str) -> None:
    assert source_ms(value) == COMMITTED


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", "", "garbage", b"\xff\xfe\x00", "[1, 2]", "7", "null", '"text"', "{}", "{"),
        *('{"payload": null}', '{"payload": "text"}', '{"source": null}', '{"source": "orders"}', '{"source": []}'),
        *("[" * 100_000, '{"source":' * 100_000, "1" * 5_000),
        *('{"source": {}}', '{"source": {"ts_ms": null}}', '{"source": {"ts_ms": "1"}}', '{"source": {"ts_ms": 1.5}}'),
    ],
)
def test_what_does_not_say_when_it_was_committed_has_no_time(value: bytes | str | None) -> None:
    assert source_ms(value) is None


@pytest.mark.parametrize(
    "value",
    [
        compact({"ts_ms": COMMITTED}),
        compact({"schema": {}, "payload": {"ts_ms": COMMITTED}}),
        compact(order(7)),
        compact({"schema": {"type": "string"}, "payload": compact(order(7))}),
        compact({"payload": compact(order(7)), "timestamp": 1}),
        compact(compact(order(7))),
    ],
    ids=["heartbeat", "heartbeat with a schema", "outbox", "outbox with a schema", "expanded outbox", "text"],
)
def test_heartbeats_and_events_of_an_outbox_have_no_commit(value: str) -> None:
    assert source_ms(value) is None


def test_the_delay_is_of_the_slowest_of_the_newest_records() -> None:
    last = [sent(1, delay=0.25), sent(30, delay=12.5), sent(2, delay=3)]
    assert connector_seconds(last, now_ms=NOW_MS) == 12.5


def test_records_without_a_commit_and_old_ones_say_nothing_of_the_delay() -> None:
    window = WINDOW.total_seconds()
    assert connector_seconds([], now_ms=NOW_MS) == 0.0
    assert connector_seconds([sent(1), sent(2)], now_ms=NOW_MS) == 0.0
    assert connector_seconds([sent(window + 1, delay=99)], now_ms=NOW_MS) == 0.0
    assert connector_seconds([sent(window, delay=99)], now_ms=NOW_MS) == 99.0
    assert connector_seconds([sent(window + 1, delay=99), sent(1, delay=0.5)], now_ms=NOW_MS) == 0.5


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"retention.ms": "604800000", "cleanup.policy": "delete"}, 604_800_000),
        ({"retention.ms": "604800000", "cleanup.policy": "compact,delete"}, 604_800_000),
        ({"retention.ms": "0", "cleanup.policy": "delete"}, 0),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, None),
        ({"retention.ms": "604800000", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "604800000"}, None),
        ({"cleanup.policy": "delete"}, None),
        ({}, None),
    ],
)
def test_retention_is_of_topics_whose_records_go_by_age(settings: Mapping[str, str], kept: int | None) -> None:
    assert _retention(settings) == kept


def lost_in(unread: Mapping[Partition, Sent], kept_ms: Mapping[str, int]) -> float | None:
    return SourceTopics(unread=unread, kept_ms=kept_ms).lost_in_seconds(now_ms=NOW_MS)


def test_retention_removes_the_record_first_that_is_oldest_for_its_topic() -> None:
    unread = {ORDERS: sent(600), OUTBOX: sent(60), Partition(ORDERS.topic, 1): sent(900)}
    assert lost_in(unread, {ORDERS.topic: HOUR_MS}) == 2_700.0
    assert lost_in(unread, {ORDERS.topic: HOUR_MS, OUTBOX.topic: 100_000}) == 40.0
    assert lost_in({ORDERS: sent(5_400)}, {ORDERS.topic: HOUR_MS}) == -1_800.0


@pytest.mark.parametrize(
    ("unread", "kept_ms"), [({}, {ORDERS.topic: 1}), ({ORDERS: sent(9)}, {OUTBOX.topic: 1}), ({}, {})]
)
def test_nothing_is_lost_that_is_kept_or_was_read(unread: Any, kept_ms: Any) -> None:
    assert lost_in(unread, kept_ms) is None


def test_where_nothing_came_within_the_window_none_is_counted() -> None:
    ended = {ORDERS: Ends(3, 90)}
    assert began_at({ORDERS: 40}, ended, ORDERS) == 40
    assert began_at({ORDERS: None}, ended, ORDERS) == 90


@pytest.mark.parametrize(
    ("key", "is_of"),
    [
        (b'{"composite_key":"PG-7"}', True),
        (b'{"schema":{},"payload":{"composite_key":"PG-7"}}', True),
        (b'{"composite_key":"APG-7"}', False),
        (b'{"composite_key":"PGX-7"}', False),
        (b"", False),
    ],
)
def test_a_key_of_the_unified_topic_is_of_the_source_of_its_prefix(key: bytes, is_of: bool) -> None:
    assert _is_of(key, "PG") == is_of


@pytest.mark.parametrize(
    ("key", "composite_key"),
    [
        (b'{"composite_key":"PG-1"}', "PG-1"),
        (b'{"schema":{"type":"struct"},"payload":{"composite_key":"PG-1"}}', "PG-1"),
        (b"\0\0\0\0\x07\x08PG-1", "PG-1"),
        (b"\0\0\0\0\x07\x82\x01PG-" + b"1" * 62, "PG-" + "1" * 62),
        (b'"PG-1"', None),
        (b'{"order_id":1}', None),
        (b'{"composite_key":1}', None),
        (b"PG-1", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"payload":' * 100_000, None),
        (b"1" * 5_000, None),
        (b"", None),
    ],
)
def test_the_composite_key_is_read_in_each_format(key: bytes, composite_key: str | None) -> None:
    assert composite_key_in(key) == composite_key


def test_what_the_broker_has_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition is read to its end, one is behind, one has lost what was not read, and one is empty."""
    heartbeat, absent = "__debezium-heartbeat.postgres_prod", "outbox.event.postgres.orders"
    topic = ORDERS.topic
    read, behind, beats = Partition(topic, 0), Partition(topic, 1), Partition(heartbeat, 0)
    lost, empty = Partition("mysql_prod_tables.ecommerce.orders", 0), Partition("outbox.event.mysql.orders", 0)
    limits = {read: Ends(0, 50), behind: Ends(2, 90), beats: Ends(0, 9), lost: Ends(30, 40), empty: Ends(5, 5)}
    records = {
        (behind, 70): Sent(1_000),
        (lost, 30): Sent(2_000),
        (read, 45): Sent(5_000, has_key=False),
        (behind, 85): Sent(6_000, names_run=False),
        (beats, 4): Sent(7_000, has_key=False, names_run=False),
        (lost, 35): Sent(8_000),
    }
    began = {read: 40, behind: 30, beats: None, lost: 40, empty: None}
    partitions = {topic: (0, 1), heartbeat: (0,), lost.topic: (0,), empty.topic: (0,)}
    settings = {topic: {"retention.ms": "1000", "cleanup.policy": "delete"}}
    answers: Mapping[str, Callable[..., Any]] = {
        "partitions": lambda _broker: partitions,
        "ends": lambda _broker, asked: {partition: limits[partition] for partition in asked},
        "offsets_at_time": lambda _broker, _asked, *, timestamp_ms: began,
        "topic_settings": lambda _broker, _topics: settings,
        "read_one": lambda _broker, wanted, *, newest=False: {
            partition: records[partition, offset] for partition, offset in wanted.items()
        },
    }
    for name, answer in answers.items():
        monkeypatch.setattr(topics, name, answer)
    beats_read = ("postgres", heartbeat, 0)
    mysql_read = ("mysql", lost.topic, 0)
    offsets = {("postgres", topic, 0): 50, ("postgres", topic, 1): 70, beats_read: 9, mysql_read: 12}
    found = topics.topics_of(
        KafkaConnection(bootstrap_servers="nowhere"), load_contracts(), next_offsets=offsets, now=datetime.now(UTC)
    )
    assert found == {
        "postgres": SourceTopics(
            absent=[absent],
            ends={read: limits[read], behind: limits[behind], beats: limits[beats]},
            unread={behind: Sent(1_000)},
            unread_from={behind: 70},
            unread_records=20,
            last={read: records[read, 45], behind: records[behind, 85], beats: records[beats, 4]},
            rate=(10 + 60) / WINDOW.total_seconds(),
            lost=[],
            keyless={topic},
            nameless={topic},
            kept_ms={topic: 1_000},
        ),
        "mysql": SourceTopics(
            absent=[],
            ends={lost: limits[lost], empty: limits[empty]},
            unread={lost: Sent(2_000)},
            unread_from={lost: 30},
            unread_records=10,
            last={lost: records[lost, 35]},
            rate=0.0,
            lost=[lost],
            keyless=set(),
            nameless=set(),
            kept_ms={topic: 1_000},
        ),
    }
