"""Random histories through silver in plain Python (tests/support/pure), and where its rows are not the history's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import SourceKind
from silver.order.position import FULL_SNAPSHOT
from tests.support.events import mysql_image, postgres_image
from tests.support.model.batches import Batches
from tests.support.model.history import History
from tests.support.model.reader import rows_of
from tests.support.pure import PureSilver, expected

FEEDS: Mapping[SourceKind, str] = {
    "postgresql": "postgres_orders",
    "mysql": "mysql_orders",
    "mariadb": "mysql_orders",
}
KINDS = tuple(FEEDS)


def told(
    contracts: Contracts, history: History, batches: Batches, *, waiting: Collection[tuple[int, int]] = ()
) -> PureSilver:
    silver = PureSilver(contracts.feeds[FEEDS[history.kind]], waiting=waiting)
    for batch in batches:
        silver.tell(batch)
    assert not silver.is_suspended
    return silver


def differing(silver: PureSilver, history: History) -> dict[Any, Any]:
    """The keys whose row is another than the history's, or that the history does not have.

    But for those of which a full snapshot's row waits, and that are gone until it may pass; and those that the reader
    of the whole topic (tests/support/model/reader) does not end with either: compaction has removed what states them.
    """
    rows, ends = silver.rows(), expected(history.rows)
    waits = {
        silver.key_of(one)
        for one in silver.read
        if one.event.kind == "quarantined" and one.event.source and one.event.source.snapshot in FULL_SNAPSHOT
    }
    beyond = {key: (rows[key], None) for key in rows.keys() - ends.keys()}
    found = {key: (rows.get(key), row) for key, row in ends.items() if rows.get(key) != row}
    found = {key: both for key, both in found.items() if not (key in waits and both[0] is None)}
    if not found:
        return beyond
    image = postgres_image if history.kind == "postgresql" else mysql_image
    read = rows_of(history.records)
    stated = {(key,) for key, row in history.rows.items() if read[key] == (None if row is None else image(row))}
    return beyond | {key: both for key, both in found.items() if key in stated}
