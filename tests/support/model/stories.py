"""What happens: an opening, then everything that was asked for, with random changes in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lakehouse.contracts.topics import SourceKind
from tests.support.model.broker import Broker
from tests.support.model.clocks import with_clocks
from tests.support.model.connector import Connector
from tests.support.model.history import NOT_SHUFFLABLE, History, chosen_features
from tests.support.model.log import Clock, Entry, Log, Transaction
from tests.support.model.mysql_log import LAST_OF_SIX_DIGITS, BinlogLog
from tests.support.model.postgres_log import PostgresLog
from tests.support.model.table import Change, Row, Table, key_of

KEYS = 5  # at least; more where a hash needs them to reach every partition


def random_history(
    kind: SourceKind, random: Random, *, topic: str, features: Collection[str] | None = None, first_key: int = 1
) -> History:
    """A history that contains these features (None: some at random), and what they imply; see history.py.

    Its keys begin with `first_key`. The same arguments and the same state of `random` make the same history.
    """
    chosen = chosen_features(kind, random, features)
    partitions = random.choice((2, 3)) if "partitions" in chosen else 1
    broker = Broker(topic, partitions)
    clock = Clock(random)
    story = Story(
        random=random,
        features=chosen,
        table=Table(random, keys_for(broker, first_key), chosen),
        log=_log(kind, random, clock, chosen),
        broker=broker,
        connector=Connector(kind, random, clock, broker, names_run="no_run_header" not in chosen),
    )
    story.tell()
    messages = with_clocks(broker.messages, random)
    keys = {json.loads(message.key)["order_id"] for message in messages if message.key is not None}
    return History(
        kind=kind,
        topic=topic,
        records=[message.record for message in messages],
        rows={key: story.connector.told[key] for key in sorted(keys)},
        features=chosen,
        bad_offsets=frozenset((message.partition, message.offset) for message in messages if message.notes.is_bad),
        shufflable=not chosen & NOT_SHUFFLABLE,
    )


def keys_for(broker: Broker, first_key: int) -> Sequence[int]:
    """The keys from the first on: so many that every partition has one."""
    keys = list(range(first_key, first_key + KEYS))
    while len({broker.partition_of(key) for key in keys}) < broker.partitions:
        keys.append(keys[-1] + 1)
    return keys


def _log(kind: SourceKind, random: Random, clock: Clock, features: frozenset[str]) -> Log:
    several_rows = "several_rows" in features
    if kind == "postgresql":
        return PostgresLog(random, clock, interleaved="interleaved" in features, several_rows=several_rows)
    return BinlogLog(
        kind,
        random,
        clock,
        rotates="rotation" in features,
        several_rows=several_rows,
        compressed="compressed" in features,
    )


@dataclass
class Story:
    """What happens to one table."""

    random: Random
    features: frozenset[str]
    table: Table
    log: Log
    broker: Broker
    connector: Connector

    def tell(self) -> None:
        self._open()
        steps = [step for name, step in self._steps().items() if name in self.features]
        self.random.shuffle(steps)
        if "rotation" in self.features:  # before an epoch takes the file's number away
            steps.remove(self._rotation)
            steps.insert(0, self._rotation)
        for step in steps:
            step()
            for _ in range(self.random.randrange(3)):
                self._changes()
        if "compacted" in self.features:
            self.broker.compact(self.random)

    def _steps(self) -> Mapping[str, Callable[[], None]]:
        return {
            "interleaved": self._interleaved,
            "several_rows": self._several_rows,
            "compressed": self._several_statements,
            "rotation": self._rotation,
            "key_change": self._key_change,
            "toast": self._toast,
            "key_change_toast": self._key_change_toast,
            "truncate": self._truncate,
            "full_snapshot": self._full_snapshot,
            "partial_snapshot": self._partial_snapshot,
            "blocking_opens_partition": self._blocking_opens_partition,
            "replay": self._replay,
            "epoch": self._epoch,
            "partitions": self._change_in_every_partition,
            "compacted": self._delete,
            "quarantine": self._quarantine,
            "forged": self._forged,
        }

    # The opening

    def _open(self) -> None:
        self.connector.last_commit = self.log.here().commit
        self.connector.start(stored_offsets="null_first" not in self.features)
        if "first_snapshot" in self.features:
            self.table.change_unseen(6)
            if "open_transaction_next_run" in self.features:
                self._snapshot_with_open_transaction(next_run=True)
            else:
                self._take_full_snapshot()
        self._changes()
        self._delete()
        self._changes()

    # Changes

    def _changes(self) -> None:
        """Some transactions of any changes."""
        self._commit(*[self.table.any_changes(self.random.randint(1, 4)) for _ in range(self.random.randint(1, 3))])

    def _commit(self, *transactions: Transaction) -> None:
        """The transactions are committed in this order, and streamed."""
        self.connector.stream(self.log.write(transactions))

    def _interleaved(self) -> None:
        """One that wrote first and commits last."""
        self._commit(*[self.table.any_changes(self.random.randint(1, 3)) for _ in range(2)])

    def _several_rows(self) -> None:
        """Two inserts or more, next to one another."""
        while len(self.table.free()) < 2:
            self._commit([self.table.delete(self._live_key())])
        self._commit([self.table.insert(key) for key in self.table.free()])

    def _several_statements(self) -> None:
        """One transaction that changes the same row again and again, at first in a statement of several rows."""
        key = self._live_key()
        others = [self.table.update(other) for other in self.table.live(besides=[key])]
        changes = [self.table.update(key), self.table.update(key), self.table.delete(key), self.table.insert(key)]
        self._commit([*others, *changes])

    def _rotation(self) -> None:
        assert isinstance(self.log, BinlogLog)
        while (file := self.log.file) <= LAST_OF_SIX_DIGITS:
            self._commit([self.table.any_change()])
            if self.log.file == file:
                self.log.rotate()
        self._changes()

    def _key_change(self) -> None:
        """A row gets another key, and sometimes a second row the key that became free, in one statement."""
        self._make_room()
        key = self._live_key()
        changes = [self.table.change_key(key, self._free_key())]
        others = self.table.live(besides=[key_of(changes[0].after)])
        if others and self.random.random() < 0.5:
            changes.append(self.table.change_key(self.random.choice(others), key))
        self._commit(changes)

    def _toast(self) -> None:
        """A large note, and an update that leaves it out."""
        key = self._key_with_large_note()
        self._commit([self.table.update(key, keep_note=True)])

    def _key_change_toast(self) -> None:
        key = self._key_with_large_note()
        self._make_room(besides=key)
        self._commit([self.table.change_key(key, self._free_key(), keep_note=True)])

    def _truncate(self) -> None:
        self._insert_if_empty()
        self._commit([self.table.truncate()])

    def _delete(self) -> None:
        """A delete, and most often an insert of the same key behind it."""
        key = self._live_key()
        self._commit([self.table.delete(key)])
        if self.random.random() < 0.7:
            self._commit([self.table.insert(key)])

    def _change_in_every_partition(self, *, besides: Collection[int] = ()) -> None:
        for partition in sorted(set(range(self.broker.partitions)) - set(besides)):
            self._change_in(partition)

    def _quarantine(self) -> None:
        """A bad record of a row that is well known, and of one that may not be."""
        self._commit([self.table.update(self._live_key(), bad="negative" if self.random.random() < 0.5 else "garbled")])
        if self.table.free():
            self._commit([self.table.insert(self._free_key(), bad=self.random.choice(("negative", "garbled")))])

    def _forged(self) -> None:
        """A record far ahead, other changes, and a normal one of the same key: all in one run, and never told again."""
        key = self.random.choice(self.table.keys)
        self.connector.keeps_all = True
        self.connector.forge(self.table.any_row(key), self.log.far_ahead())
        for _ in range(self.random.randrange(3)):
            self._commit([self.table.any_change(besides=[key])])
        if key not in self.table.rows:
            self._commit([self.table.insert(key)])
        elif self.random.random() < 0.3:
            self._commit([self.table.delete(key)])
        else:
            self._commit([self.table.update(key)])
        self.connector.keeps_all = False
        self.connector.store_offsets()

    # Snapshots

    def _full_snapshot(self) -> None:
        """The connector is down and loses its offsets; rows vanish and change meanwhile."""
        while len(self.table.rows) < 2:
            self._commit([self.table.insert(self._free_key())])
        self.table.delete(self._live_key())
        self._change_unseen()
        if "broken_snapshot" in self.features:
            self._break_a_snapshot_off()
        self.connector.start(stored_offsets=False)
        self._take_full_snapshot()
        self._changes()

    def _change_unseen(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.log.pass_unseen()
        self.table.change_unseen(self.random.randint(0, 3))

    def _break_a_snapshot_off(self) -> None:
        while len(self.table.rows) < 2:
            self.table.insert(self._free_key())
        self.connector.start(stored_offsets=False)
        self.connector.full_snapshot(self._read(), self.log.here(), breaks_off=True)
        self._change_unseen()

    def _take_full_snapshot(self) -> None:
        if "open_transaction" in self.features:
            self._snapshot_with_open_transaction(next_run=False)
        else:
            self.connector.full_snapshot(self._read(), self.log.here())

    def _snapshot_with_open_transaction(self, *, next_run: bool) -> None:
        """What a transaction has written is not read before it commits; others may commit in between."""
        assert isinstance(self.log, PostgresLog)
        rows = self._read()
        key = key_of(self.random.choice(rows))
        changes = [self.table.update(key) if self.random.random() < 0.6 else self.table.delete(key)]
        changes += self.table.any_changes(self.random.randrange(3))
        opened = self.log.begin(changes)
        self.log.write_next(opened)
        while not opened.is_written and self.random.random() < 0.5:
            self.log.write_next(opened)
        self.log.pass_unseen()
        self.connector.full_snapshot(rows, self.log.here())
        while not opened.is_written:
            self.log.write_next(opened)
        if next_run:
            self.connector.start(stored_offsets=True)
        others: Sequence[Sequence[Entry]] = []
        if not next_run and self.random.random() < 0.4 and set(self.table.keys) - self._keys_of(changes):
            others = self.log.write([self.table.any_changes(2, besides=self._keys_of(changes))])
        self.connector.stream([*others, self.log.commit(opened)])
        self.connector.written = len(self.connector.changes)

    def _partial_snapshot(self) -> None:
        """Both ways, or one."""
        ways = [self._incremental_snapshot, self._blocking_snapshot]
        for way in self.random.sample(ways, self.random.randint(1, 2)):
            way()

    def _incremental_snapshot(self) -> None:
        self._insert_if_empty()
        self.connector.incremental_snapshot(self._read(some=True), self.log.signal())

    def _blocking_snapshot(self) -> None:
        """In a run that has streamed something to every partition."""
        self._change_in_every_partition(besides=self._partitions_of_this_run())
        self._insert_if_empty()
        self.connector.blocking_snapshot(self._read(some=True), self.log.here())

    def _blocking_opens_partition(self) -> None:
        """The run has streamed to one partition only, and the snapshot reads a row of another."""
        self._change_in_every_partition()
        self.connector.start(stored_offsets=True)
        partition = self.random.randrange(self.broker.partitions)
        self._change_in(partition)
        others = [row for row in self._read() if self.broker.partition_of(key_of(row)) != partition]
        self.connector.blocking_snapshot(others, self.log.here())

    def _partitions_of_this_run(self) -> set[int]:
        streamed = (message for message in self.broker.messages if message.notes.change is not None)
        return {message.partition for message in streamed if message.notes.run == self.connector.run}

    def _read(self, *, some: bool = False) -> Sequence[Row]:
        """The rows as they are: all, or some."""
        rows = list(self.table.rows.values())
        if some:
            rows = self.random.sample(rows, self.random.randint(1, max(1, len(rows) - 1)))
        self.table.was_read(rows)
        return rows

    # Runs

    def _replay(self) -> None:
        connector = self.connector
        while len(connector.changes) < max(connector.stored + 2, connector.written + 1):
            self._changes()
        connector.replay(torn="torn_replay" in self.features)
        self._changes()

    def _epoch(self) -> None:
        """Something was told to every partition before the coordinates fall."""
        self._change_in_every_partition()
        overlap = "epoch_overlap" in self.features
        self.log.start_again(overlap=overlap)
        self.connector.start(stored_offsets=False)
        if self.random.random() < 0.5:
            self.table.change_unseen(3)
            self.connector.full_snapshot(self._read(), self.log.here())
        self._changes()

    # Keys

    def _live_key(self) -> int:
        """One that has a row, if need be a new one."""
        self._insert_if_empty()
        return self.random.choice(self.table.live())

    def _insert_if_empty(self) -> None:
        if not self.table.rows:
            self._commit([self.table.insert(self._free_key())])

    def _free_key(self) -> int:
        return self.random.choice(self.table.free())

    def _change_in(self, partition: int) -> None:
        """A row of that partition is there and told."""
        key = self.random.choice([key for key in self.table.keys if self.broker.partition_of(key) == partition])
        self._commit([self.table.update(key) if key in self.table.rows else self.table.insert(key)])

    def _key_with_large_note(self) -> int:
        """One whose large note stands in a good record."""
        key = self.random.choice(self.table.keys)
        if key in self.table.rows:
            self._commit([self.table.delete(key)])
        self._commit([self.table.insert(key, large=True)])
        return key

    def _make_room(self, *, besides: int | None = None) -> None:
        """There are a live key and a free one."""
        self._insert_if_empty()
        if not self.table.free():
            self._commit([self.table.delete(self.random.choice(self.table.live(besides=[besides or 0])))])

    def _keys_of(self, changes: Sequence[Change]) -> set[int]:
        return {key_of(row) for change in changes for row in (change.before, change.after) if row is not None}
