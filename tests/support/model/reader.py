"""A reader in plain Python, which has the whole topic before it: the rules of the order, each in a few lines.

It checks the model: a history that even this reader does not end where the table did is told wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.events import Record
from tests.support.model.connector import NOT_A_DECIMAL, PLACEHOLDER

Position = tuple[int, ...]
Image = Mapping[str, Any]
BEFORE_ALL: Position = (-1, 0)
ENDS = frozenset({"last", "last_in_data_collection"})


@dataclass(frozen=True)
class Told:
    """A record that is a change; a lone tombstone as well."""

    record: Record

    @cached_property
    def value(self) -> Mapping[str, Any] | None:
        return None if self.record["value"] is None else json.loads(self.record["value"])

    @cached_property
    def key(self) -> int | None:
        return None if self.record["key"] is None else int(json.loads(self.record["key"])["order_id"])

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return dict(self.record["headers"])

    @property
    def run(self) -> str:
        return self.headers.get("__debezium.context.runId", "")

    @property
    def old_key(self) -> int | None:
        header = self.headers.get("__debezium.oldkey")
        return None if header is None else int(json.loads(header)["order_id"])

    @property
    def at(self) -> tuple[int, int]:
        return self.record["partition"], self.record["offset"]

    @property
    def after(self) -> Image | None:
        return None if self.value is None else self.value["after"]

    @property
    def source(self) -> Mapping[str, Any]:
        return {} if self.value is None else self.value["source"]

    @property
    def op(self) -> str:
        return "d" if self.value is None else self.value["op"]

    @property
    def is_streamed(self) -> bool:
        return bool(self.source.get("snapshot") == "false")

    @property
    def is_of_snapshot(self) -> bool:
        return self.op == "r" and self.source["snapshot"] != "incremental"

    @property
    def is_bad(self) -> bool:
        """An amount that is negative or no number."""
        amount = self.after and self.after["total_amount"]
        return amount == NOT_A_DECIMAL or (bool(amount) and _is_negative(str(amount)))

    @cached_property
    def coordinates(self) -> Position:
        """Where the change stands, as its source block says."""
        if self.source["connector"] == "postgresql":
            last_commit, lsn = (int(text or 0) for text in json.loads(self.source["sequence"]))
            return max(last_commit, lsn), lsn
        return int(self.source["file"].rpartition(".")[2]), self.source["pos"], self.source["row"]


def rows_of(records: Iterable[Record]) -> Mapping[int, Image | None]:
    """The last image of every key, None for a deleted one; the records may come in any order."""
    told = sorted(map(Told, records), key=lambda change: change.at)
    tombstones = _lone_tombstones(told)
    changes = [change for change in told if change.value is not None]
    epochs = _epochs(changes)
    positions = {change.at: _position(change, changes, epochs) for change in changes}
    changes = [change for change in changes if not _is_forged(change, changes, positions)]
    for tombstone in tombstones:
        positions[tombstone.at] = _position_of_tombstone(tombstone, changes, positions)
    floors = list(_floors(changes, positions))
    good = [change for change in [*changes, *tombstones] if not change.is_bad]
    keys = sorted({change.key for change in told if change.key is not None})
    return {key: _row(key, good, positions, floors) for key in keys}


def _row(
    key: int,
    good: Sequence[Told],
    positions: Mapping[tuple[int, int], Position],
    floors: Sequence[tuple[Position, frozenset[int]]],
) -> Image | None:
    floor = max((floor for floor, kept in floors if key not in kept), default=())
    valid = [change for change in good if change.key == key and positions[change.at] > floor]
    if not valid:
        return None
    last = max(valid, key=lambda change: positions[change.at])
    return None if last.after is None else _with_note(last, good, positions)


def _with_note(change: Told, good: Sequence[Told], positions: Mapping[tuple[int, int], Position]) -> Image:
    """A placeholder is the note of the newest older event of the key, or of the key that it was before."""
    assert change.after is not None
    image = dict(change.after)
    if image["note"] != PLACEHOLDER:
        return image
    key = change.key if change.old_key is None else change.old_key
    place = positions[change.at][:-1]
    older = [
        other
        for other in good
        if other.key == key and other.after is not None and (positions[other.at][:-1], other.at) < (place, change.at)
    ]
    newest = max(older, key=lambda other: positions[other.at])
    image["note"] = _with_note(newest, good, positions)["note"]
    return image


def _position(change: Told, changes: Sequence[Told], epochs: Mapping[str, int]) -> Position:
    """(epoch, coordinates and whether it was streamed, offset)."""
    epoch, offset = epochs[change.run], change.at[1]
    if change.source["connector"] != "postgresql":
        return epoch, *change.coordinates, int(change.is_streamed), offset
    snapshot = 0
    if change.is_streamed:
        of_run = (other for other in changes if other.is_of_snapshot and other.run == change.run)
        lower = (other for other in of_run if _is_behind(change, other))
        snapshot = max((other.coordinates[0] for other in lower), default=0)
    return epoch, max(change.coordinates[0], snapshot), int(change.is_streamed), *change.coordinates, offset


def _is_behind(change: Told, other: Told) -> bool:
    return change.at[0] == other.at[0] and change.at[1] > other.at[1]


def _epochs(changes: Sequence[Told]) -> Mapping[str, int]:
    """The epoch of every run: a new one where its coordinates fall in a partition, and tell nothing again."""
    falls: dict[str, bool] = {}
    highest: dict[int, Position] = {}
    seen: set[str] = set()
    before: dict[int, str] = {}
    for change in changes:
        partition, same = change.at[0], json.dumps([change.key, change.source, change.op, change.after])
        is_first = before.get(partition) != change.run
        fell = is_first and change.coordinates < highest.get(partition, ()) and same not in seen
        falls[change.run] = falls.get(change.run, False) or fell
        if fell:
            highest[partition] = ()
        if change.coordinates[0] < 10**18 and max(change.coordinates) < 10**18:
            highest[partition] = max(highest.get(partition, ()), change.coordinates)
        seen.add(same)
        before[partition] = change.run
    # Debezium's run ids go by the time.
    return {run: sum(falls[earlier] for earlier in falls if earlier <= run) for run in falls}


def _is_forged(change: Told, changes: Sequence[Told], positions: Mapping[tuple[int, int], Position]) -> bool:
    """A position that a later change of the key in the same run falls behind."""
    return change.key is not None and any(
        other.key == change.key
        and other.run == change.run
        and _is_behind(other, change)
        and positions[other.at] < positions[change.at]
        for other in changes
    )


def _floors(
    changes: Sequence[Told], positions: Mapping[tuple[int, int], Position]
) -> Iterator[tuple[Position, frozenset[int]]]:
    """Below which everything is gone, but for some keys: truncates, and full snapshots that open a run."""
    snapshots: dict[tuple[str, Position], list[Told]] = {}
    for change in changes:
        if change.op == "t":
            yield positions[change.at], frozenset()
        if change.is_of_snapshot:
            snapshots.setdefault((change.run, change.coordinates), []).append(change)
    for (run, _), rows in snapshots.items():
        is_complete = any(row.source["snapshot"] in ENDS for row in rows)
        streamed = [change for change in changes if change.run == run and not change.is_of_snapshot]
        if is_complete and not any(_is_behind(row, change) for row in rows for change in streamed):
            yield min(positions[row.at][:-1] for row in rows), frozenset(row.key for row in rows if row.key is not None)


def _lone_tombstones(told: Sequence[Told]) -> Sequence[Told]:
    """Those whose `d` is not there, and that are not sent again behind a younger record of their key and run.

    The connector tells a `d` and its tombstone at one time.
    """
    deletes = {_told_at(change) for change in told if change.value is not None and change.op == "d"}
    return [
        tombstone
        for tombstone in told
        if tombstone.value is None
        and _told_at(tombstone) not in deletes
        and not any(
            (change.key, change.run) == (tombstone.key, tombstone.run)
            and change.value is not None
            and _is_behind(tombstone, change)
            and change.record["timestamp"] > tombstone.record["timestamp"]
            for change in told
        )
    ]


def _told_at(change: Told) -> tuple[int | None, str, int]:
    return change.key, change.run, change.record["timestamp"]


def _position_of_tombstone(
    tombstone: Told, changes: Sequence[Told], positions: Mapping[tuple[int, int], Position]
) -> Position:
    """Right behind the key's highest position at lower offsets, in its run or an earlier one; the latest offset may be
    an old change's replay.
    """
    lower = [
        change
        for change in changes
        if change.key == tombstone.key and change.run <= tombstone.run and _is_behind(tombstone, change)
    ]
    highest = max((positions[change.at] for change in lower), default=BEFORE_ALL)
    return *highest[:-1], tombstone.at[1]


def _is_negative(base64_amount: str) -> bool:
    import base64

    return base64.b64decode(base64_amount)[0] >= 128
