"""Every recording ends as the database that was recorded, however it is cut into batches and by both decoders.

Without Spark: silver's rows are those of the reference decoder and of the flow in plain Python. A part of the
recordings goes through Spark and Delta too (tests/laws/test_recordings.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from lakehouse.contracts.models import Contracts, Feed
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record as Message
from tests.support.captures import AS_TEXT, BIG, CASE, SMALL, Capture, contracts_of_captures, feed_of
from tests.support.conversions import text_in_spark
from tests.support.decoding import batch_of, decoded, plain
from tests.support.events import Record
from tests.support.final_state import final_tables
from tests.support.laws.recordings import OF_BIG, OF_TABLES, Way, one_batch
from tests.support.pure import PureSilver
from tests.support.recorded import (
    ONLY_INSERTS,
    Row,
    differences,
    events_without_a_key,
    expected_rows,
    said,
    times_sent_again,
)
from tests.support.recordings import per_partition

OF_DATABASES = [capture for capture in SMALL if not capture.is_outbox]
WITH_KEYLESS = [capture for capture in OF_DATABASES if "ordering" not in capture.name]
PER_PARTITION = 833  # of the big recordings


def named(capture: Capture) -> str:
    return capture.name


@pytest.fixture(scope="module")
def of_captures(contracts: Contracts) -> Contracts:
    return contracts_of_captures(contracts)


def feed_alone(of_captures: Contracts, capture: Capture, table: str) -> Feed:
    """The feed of a capture's table as one recording has it: the case is no column."""
    feed = feed_of(of_captures, capture, table)
    columns = {name: column for name, column in feed.columns.items() if name != CASE}
    return feed.model_copy(update={"columns": columns, "keys": tuple(key for key in feed.keys if key != CASE)})


def records_of(capture: Capture, feed: Feed, way: Way = one_batch) -> list[Record]:
    return [record for record in capture.records(way.__name__) if feed.has_topic(record["topic"])]


def told(feed: Feed, records: Sequence[Record], way: Way) -> PureSilver:
    silver = PureSilver(feed, rejects_negative=False)
    for batch in way(records, Random(f"{feed.name} {way.__name__}")):  # noqa: S311
        silver.tell(batch)
    return silver


def as_text(row: Mapping[str, object], feed: Feed) -> Row:
    return {name: text_in_spark(row[name], column.type.ddl) for name, column in feed.columns.items()}


@pytest.mark.parametrize("way", OF_TABLES, ids=lambda way: way.__name__)
@pytest.mark.parametrize("capture", OF_DATABASES, ids=named)
def test_silver_is_the_database_in_the_end(of_captures: Contracts, capture: Capture, way: Way) -> None:
    differing = {}
    for table in set(final_tables(capture.final)) - {"orders_nopk"}:
        feed = feed_alone(of_captures, capture, f"{table}{AS_TEXT if capture.as_text else ''}")
        silver = told(feed, records_of(capture, feed, way), way)
        assert not [one for one in silver.read if one.event.problems]
        rows = {str(key[-1]): row for key, row in silver.rows().items() if row is not None}
        found: dict[str | None, Row] = {key: as_text(row, feed) for key, row in rows.items()}
        differing[table, way.__name__] = differences(found, expected_rows(capture, table, feed))
    assert not said(differing)


@pytest.mark.parametrize("capture", BIG, ids=named)
def test_two_batches_end_as_one(of_captures: Contracts, capture: Capture) -> None:
    """The beginning of a big recording: all rows, deleted ones too, and which record each is from."""
    feed = feed_alone(of_captures, capture, "orders")
    records = per_partition(records_of(capture, feed), lambda number: number < PER_PARTITION)
    in_one, in_two = (told(feed, records, way) for way in OF_BIG)
    rows = in_one.rows()
    assert len(rows) > 100
    assert in_two.rows() == rows
    records_in_one, records_in_two = (
        {key: row.last.at for key, row in silver.folded()[1].rows.items()} for silver in (in_one, in_two)
    )
    assert records_in_two == records_in_one


@pytest.mark.parametrize("capture", SMALL, ids=named)
def test_both_decoders_state_the_same(of_captures: Contracts, capture: Capture) -> None:
    for feed in of_captures.feeds.values():
        messages = [
            Message(
                record["topic"],
                None if record["key"] is None else record["key"].encode(),
                None if record["value"] is None else record["value"].encode(),
                [(name, None if value is None else value.encode()) for name, value in record["headers"]],
            )
            for record in (records_of(capture, feed) if feed.source == capture.source else ())
        ]
        # Twice: the second time the schemas of messages are known.
        found = decoded([batch_of(messages), batch_of(messages, offset=len(messages))], feed) if messages else {}
        reference = ReferenceDecoder(feed)
        for number, message in enumerate(messages):
            # NaN is itself, and zeros have signs.
            stated = repr(plain(reference.event(message)))
            for offset in (number, number + len(messages)):
                assert repr(plain(found[offset])) == stated, message


@pytest.mark.parametrize("capture", WITH_KEYLESS, ids=named)
def test_a_table_without_a_key_is_the_list_of_its_changes(of_captures: Contracts, capture: Capture) -> None:
    table = f"orders_nopk{AS_TEXT if capture.as_text else ''}"
    feed = feed_alone(of_captures, capture, table)
    silver = told(feed, records_of(capture, feed), one_batch)
    changes = sorted(
        (one for one in silver.read if one.event.kind == "change"), key=lambda one: (one.topic_partition[2], one.offset)
    )
    found = [
        {**as_text(dict(zip(feed.columns, one.event.row or (), strict=True)), feed), "_op": one.event.op}
        for one in changes
    ]
    expected = events_without_a_key(capture, table)
    ops = {"r", "c"} if capture.name in ONLY_INSERTS else {"r", "c", "u", "d"}
    assert {event["_op"] for event in expected} >= ops
    names = [*expected[0]]
    assert [{name: row[name] for name in names} for row in found] == expected


@pytest.mark.parametrize("capture", OF_DATABASES, ids=named)
def test_changes_that_a_connector_sent_again_are_counted(of_captures: Contracts, capture: Capture) -> None:
    for table in ("orders", "orders_trunc", "orders_types"):
        name = f"{table}{AS_TEXT if capture.as_text else ''}"
        feed = feed_alone(of_captures, capture, name)
        records = records_of(capture, feed)
        counted = Counter(told(feed, records, one_batch).folded()[1].outcomes.values()) if records else Counter()
        repeated = 122 if "restart" in capture.name and table == "orders" else 0
        assert (counted["duplicate"], times_sent_again(capture, name)) == (repeated, repeated), name
