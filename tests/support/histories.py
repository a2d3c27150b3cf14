"""Random histories of a table: what was done to it, as a connector tells it, and what the table holds in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from lakehouse.contracts import SourceKind
from tests.support.events import (
    Record,
    change,
    mysql_image,
    mysql_source,
    order,
    postgres_image,
    postgres_source,
    record,
)

KEYS = 4
STATUSES = ("pending", "paid", "shipped", "completed", "cancelled")
NOTES = (None, "", "null", "注文 🚀", 'a "b" \\ c\n')

Source = Mapping[str, Any]
Row = dict[str, Any]


class Log(Protocol):
    """Where a database writes its changes down: the source block of each, in the order of the commits."""

    def snapshot(self) -> Source:
        """The source block of rows that are read before any change."""

    def change(self) -> Source:
        """The source block of the next change."""


@dataclass
class PostgresLog:
    """Transactions overlap two by two: LSNs go by the time of writing, changes are sent by the time of the commit."""

    random: Random
    lsn: int = 1_000_000
    last_commit: int | None = None
    waiting: list[Source] = field(default_factory=list)

    def snapshot(self) -> Source:
        return postgres_source(self.lsn, last_commit=None, snapshot="true")

    def change(self) -> Source:
        if not self.waiting:
            self._write_two_transactions()
        return self.waiting.pop(0)

    def _write_two_transactions(self) -> None:
        first = ["first"] * self.random.randint(2, 4)  # the last of them is its commit
        second = ["second"] * self.random.randint(1, 3)
        lsns: dict[str, list[int]] = {"first": [], "second": []}
        for writer in self.random.sample(first + second, len(first + second)):
            self.lsn += 8 * self.random.randint(1, 20)
            lsns[writer].append(self.lsn)
        *of_first, commit = lsns["first"]
        self.waiting += [postgres_source(lsn, last_commit=self.last_commit) for lsn in of_first]
        self.waiting += [postgres_source(lsn, last_commit=commit) for lsn in lsns["second"]]
        self.lsn += 8
        self.last_commit = self.lsn


@dataclass
class MysqlLog:
    """The rows of one statement share a position, the first one may stand at the snapshot's; files rotate."""

    random: Random
    number: int = 999_998
    pos: int = 154
    waiting: list[Source] = field(default_factory=list)

    def snapshot(self) -> Source:
        return mysql_source(self.pos, file=self._file(), snapshot="true")

    def change(self) -> Source:
        if not self.waiting:
            rows = range(self.random.randint(1, 3))
            self.waiting = [mysql_source(self.pos, file=self._file(), row=row) for row in rows]
            self.pos += self.random.randint(40, 4000)
            if self.random.random() < 0.2:
                self.number, self.pos = self.number + 1, 4
        return self.waiting.pop(0)

    def _file(self) -> str:
        return f"mysql-bin.{self.number:06}"


@dataclass
class History:
    """The story of the keys from `first_key` on: its records by offset, and the rows in the end (None: deleted)."""

    kind: SourceKind
    topic: str
    partition: int
    first_key: int
    records: list[Record] = field(default_factory=list)
    rows: dict[int, Row | None] = field(default_factory=dict)

    def tell(self, op: str, row: Row, source: Source, *, run: str) -> None:
        """One change of a row, and the tombstone behind a delete."""
        key = row["order_id"]
        self.rows[key] = None if op == "d" else row
        image = postgres_image if self.kind == "postgresql" else mysql_image
        values = [change(op, source, None), None] if op == "d" else [change(op, source, image(row))]
        for value in values:
            self.append(
                record(
                    self.topic,
                    0,
                    key={"order_id": key},
                    value=value,
                    partition=self.partition,
                    headers=[("__debezium.context.runId", run)],
                )
            )

    def append(self, new: Record) -> None:
        """The record, under the next offset."""
        self.records.append({**new, "offset": len(self.records)})


def random_history(kind: SourceKind, random: Random, *, topic: str, partition: int, first_key: int) -> History:
    """Snapshot rows or none, then inserts, updates, deletes, changes of the key, and inserts of keys once deleted.

    In between, replays: all records from some change on once more, equal, under new offsets.
    """
    told = History(kind, topic, partition, first_key)
    log: Log = PostgresLog(random) if kind == "postgresql" else MysqlLog(random)
    for key in random.sample(range(first_key, first_key + KEYS), random.choice((0, 2))):
        told.tell("r", _random_row(random, key), log.snapshot(), run="0")
    snapshot = len(told.records)
    for run in range(random.randint(1, 5)):
        for _ in range(random.randint(1, 8)):
            _tell_one_change(told, random, log.change(), run=str(run))
        if random.random() < 0.4:
            for replayed in told.records[random.randrange(snapshot, len(told.records)) :]:
                told.append(replayed)
    return told


def _tell_one_change(told: History, random: Random, source: Source, *, run: str) -> None:
    keys = range(told.first_key, told.first_key + KEYS)
    live = [key for key in keys if told.rows.get(key) is not None]
    free = [key for key in keys if told.rows.get(key) is None]
    possible = ["insert"] * bool(free) + ["update", "update", "delete"] * bool(live) + ["rekey"] * bool(free and live)
    chosen = random.choice(possible)
    if chosen in {"delete", "rekey"}:
        told.tell("d", {"order_id": random.choice(live)}, source, run=run)
    if chosen in {"insert", "rekey"}:
        told.tell("c", _random_row(random, random.choice(free)), source, run=run)
    if chosen == "update":
        told.tell("u", _random_row(random, random.choice(live)), source, run=run)


def _random_row(random: Random, key: int) -> Row:
    return order(
        key,
        customer_id=random.randrange(1000),
        product_id=random.choice((None, 70)),
        status=random.choice(STATUSES),
        total_amount=random.choice((None, "0.00", "99999999.99", f"{random.randrange(1000)}.50")),
        note=random.choice(NOTES),
    )
