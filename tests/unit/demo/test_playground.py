"""The playground's records are of the databases that the packaged contracts name."""

from __future__ import annotations

import json
from collections import Counter

from demo.__main__ import DATA, RECORDINGS
from demo.playground import MORE, as_contracts_name_it
from demo.replay import recorded
from lakehouse.contracts.files import load_contracts
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record
from silver.decode.reference.table import OTHER_TABLE


def test_every_record_is_of_a_table_of_its_feed() -> None:
    contracts = load_contracts()
    looked_at: Counter[str] = Counter()
    for recording, topics in RECORDINGS.items():
        for record in recorded(DATA / f"{recording}.jsonl.gz"):
            topic = topics.get(record.topic, "")
            for feed in contracts.feeds.values():
                if feed.has_topic(topic) and looked_at[feed.name] < 2_000:
                    looked_at[feed.name] += 1
                    sent = as_contracts_name_it(record)
                    value = None if sent.value is None else str(sent.value).encode()
                    event = ReferenceDecoder(feed).event(Record(topic, str(sent.key).encode(), value))
                    assert OTHER_TABLE not in event.problems
    assert set(looked_at) == set(contracts.feeds)


def test_nothing_else_of_a_record_changes() -> None:
    file = DATA / "mysql_big_20k.jsonl.gz"
    record = next(
        one for one in recorded(file) if one.topic in RECORDINGS["mysql_big_20k"] and "after" in str(one.value)
    )
    sent = as_contracts_name_it(record)
    before, after = json.loads(str(record.value)), json.loads(str(sent.value))
    assert (before["source"].pop("db"), after["source"].pop("db")) == ("ecommerce_big2", "ecommerce")
    assert before == after
    assert (sent.key, sent.timestamp, sent.headers) == (record.key, record.timestamp, record.headers)


def test_recordings_of_the_same_database_stay_as_they_were() -> None:
    for recording, topics in MORE.items():
        for record in recorded(DATA / f"{recording}.jsonl.gz"):
            assert record.topic not in topics or as_contracts_name_it(record) == record
