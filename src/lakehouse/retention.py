"""What `ops.batches` and `quality.results` keep of the past: what jobs and people read of them follows the last weeks.

Plain Python. Of `ops.batches` (lakehouse.batches) goes what a later row has replaced; what batches that are older than
DAYS_KEPT have read becomes one row for each topic-partition, with the sums and the same ranges of offsets. So
`lakehouse verify` proves as much as before. A batch that does not add up stays as it is: it is to be found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, compress, pairwise
from typing import Any

DAYS_KEPT = 30

Stored = Mapping[str, Any]
# Offsets from one to another, both included.
_Range = tuple[int, int]
_TOPIC_PARTITION = ("topic", "topic_id", "partition")
_FEED = ("source", "generation", "feed")
_ENDED = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")
# Which row of silver replaces which: of a connector run in a topic-partition; and (all NULL) of what silver has read.
REPLACED_BY = ("source", "generation", "feed", *_TOPIC_PARTITION, "run_id", "snapshot_at")
# Which rows are looked at besides those that are older.
ARE_REPLACED = (
    "layer = 'silver' AND (segment IS NOT NULL OR read_ranges IS NOT NULL) OR layer = 'gold' AND state IS NOT NULL"
)


def condensed(rows: Iterable[Stored], *, before: datetime) -> list[Stored]:
    """What is left of rows of `ops.batches`: no fewer facts about records and offsets, in fewer rows.

    `rows`: all that were written `before` then, and all that are replaced by later ones (ARE_REPLACED). The same rows
    again are left as they are; nor does it matter whether they come at once or some of them condensed.
    """
    rows = list(rows)
    of_silver = [row for row in rows if row["layer"] == "silver"]
    current = {max(group, key=_sequence)["generation"] for group in _grouped(of_silver, "source")}
    # What an earlier silver of a source had read is asked by nobody: it was rebuilt.
    is_live = [row["written_at"] >= before or row["layer"] != "silver" or row["generation"] in current for row in rows]
    kinds: dict[str, list[Stored]] = defaultdict(list)
    for row in compress(rows, is_live):
        kind = _kind(row)
        kinds[kind if row["written_at"] < before or kind in ("replaced", "gold") else "other"].append(row)
    return [
        *_not_resumed(kinds["other"]),
        *_last(kinds["replaced"], REPLACED_BY, _sequence),
        *chain.from_iterable(_joined_plans(group) for group in _grouped(kinds["planned"], "source", *_TOPIC_PARTITION)),
        *chain.from_iterable(
            _summed_batches(group) for group in _grouped(kinds["audit"], "source", "generation", "writer")
        ),
        *_last_state(kinds["gold"], before=before),
        *_last(kinds["fingerprint"], ("layer",), _written),
    ]


def last_results(rows: Iterable[Stored]) -> list[Stored]:
    """Of rows of `quality.results` those with which each gate has last judged each table."""
    results = []
    for group in _grouped(rows, "gate", "source", "feed"):
        last = max(row["evaluated_at"] for row in group)
        results += [row for row in group if row["evaluated_at"] == last]
    return results


def _kind(row: Stored) -> str:
    """`replaced` and `gold`: only the last one counts. `audit`: what a batch has read. Else the column that it has."""
    is_silver = row["layer"] == "silver"
    if is_silver and (row["segment"] is not None or row["read_ranges"] is not None):
        return "replaced"
    if is_silver and row["read"] is not None:
        return "audit"
    if row["layer"] == "gold":
        return "gold"
    return next((name for name in ("planned", "fingerprint") if row[name] is not None), "other")


def _last_state(rows: Sequence[Stored], *, before: datetime) -> list[Stored]:
    """The last state of gold; of others that are not older, when they were written, without what they state."""
    last = max((row for row in rows if row["state"] is not None), key=_sequence, default=None)
    return [
        row if row is last else {**row, "state": None} for row in rows if row is last or row["written_at"] >= before
    ]


def _not_resumed(rows: Sequence[Stored]) -> list[Stored]:
    """The rows without ranges that were pending for a suspended table, and that it has taken since."""
    resumed = {
        _values(group[0], _FEED): max(row["batch"] for row in group)
        for group in _grouped((row for row in rows if row["resumed"]), *_FEED)
    }
    return [
        row
        for row in rows
        if row["suspended"] is None
        or row["suspended"]["first_offset"] is None
        or row["batch"] > resumed.get(_values(row, _FEED), -1)
    ]


def _joined_plans(rows: Sequence[Stored]) -> list[Stored]:
    """The plans of a topic-partition; those that go on where another one ends are one with it."""
    plans: list[Stored] = []
    for row in sorted(rows, key=lambda row: (row["planned"]["from_offset"], row["planned"]["until_offset"])):
        if plans and plans[-1]["planned"]["until_offset"] == row["planned"]["from_offset"]:
            plans[-1] = _joined(plans[-1], row)
        else:
            plans.append(row)
    return plans


def _joined(plan: Stored, following: Stored) -> Stored:
    """A plan and the one that goes on where it ends, as one, with the number of the later batch."""
    first, then = plan["planned"], following["planned"]
    planned = {
        "from_offset": first["from_offset"],
        "until_offset": then["until_offset"],
        **{name: first[name] + then[name] for name in ("records", "value_bytes")},
        **{name: _least(first[name], then[name]) for name in ("first_offset", "first_ms")},
        "last_offset": max((at for at in (first["last_offset"], then["last_offset"]) if at is not None), default=None),
    }
    times = {
        "started_at": _least(plan["started_at"], following["started_at"]),
        "written_at": max(_written(plan), _written(following)),
    }
    later = following if _sequence(following) > _sequence(plan) else plan
    return {**later, **times, "planned": planned}


def _summed_batches(rows: Sequence[Stored]) -> list[Stored]:
    """The audit rows of one writer; those of batches that add up as one row a feed and topic-partition.

    They are called by the last of these batches, and have no run: they are of many.
    """
    batches = [group for group in _grouped(rows, "batch") if group[0]["batch"] is not None and _adds_up(group)]
    sound = list(chain.from_iterable(batches))
    if not sound or _are_read_twice(sound):
        return list(rows)
    numbers = {row["batch"] for row in sound}
    others = [row for row in rows if row["batch"] not in numbers]
    return [*others, *(_sum(group, batch=max(numbers)) for group in _grouped(sound, "feed", *_TOPIC_PARTITION))]


def _sum(rows: Sequence[Stored], *, batch: int) -> Stored:
    """Audit rows of one feed and topic-partition as one, called by this batch."""
    last = max(rows, key=_sequence)
    ranges = sorted(chain.from_iterable(map(_ranges, rows)))
    return {
        **last,
        "batch": batch,
        **({"run": None, "started_at": None} if len(rows) > 1 else {}),
        "written_at": max(map(_written, rows)),
        **{name: sum(row[name] or 0 for row in rows) for name in ("read", *_ENDED, "judged")},
        **{name: _added(row[name] for row in rows) for name in ("failed_rules", "absent_columns")},
        "first_offset": ranges[0][0] if ranges else None,
        "last_offset": ranges[-1][1] if ranges else None,
        "gaps": _between(ranges) if ranges else None,
    }


def _adds_up(batch: Sequence[Stored]) -> bool:
    """Whether every record that a batch has read has one outcome, and it has read as many as its offsets."""
    if any((row["read"] or 0) != sum(row[name] or 0 for name in _ENDED) for row in batch):
        return False
    return all(
        sum(row["read"] or 0 for row in group) == sum(last - first + 1 for row in group for first, last in _ranges(row))
        for group in _grouped(batch, *_TOPIC_PARTITION)
    )


def _are_read_twice(rows: Iterable[Stored]) -> bool:
    """Whether an offset is in the ranges of two of the rows."""
    for group in _grouped(rows, *_TOPIC_PARTITION):
        ranges = sorted(chain.from_iterable(map(_ranges, group)))
        if any(following[0] <= before[1] for before, following in pairwise(ranges)):
            return True
    return False


def _ranges(row: Stored) -> list[_Range]:
    """The offsets that an audit row has read: from its first to its last, without the gaps."""
    if row["first_offset"] is None:
        return []
    gaps = row["gaps"] or ()
    firsts = [row["first_offset"], *(gap["last"] + 1 for gap in gaps)]
    lasts = [*(gap["first"] - 1 for gap in gaps), row["last_offset"]]
    return list(zip(firsts, lasts, strict=True))


def _between(ranges: Sequence[_Range]) -> list[dict[str, int]]:
    """The gaps between ranges that are in order."""
    gaps = [{"first": before[1] + 1, "last": following[0] - 1} for before, following in pairwise(ranges)]
    return [gap for gap in gaps if gap["first"] <= gap["last"]]


def _added(counts: Iterable[Iterable[tuple[str, int]] | Mapping[str, int] | None]) -> dict[str, int]:
    """Counts by name, of maps as Arrow or Python has them."""
    sums: Counter[str] = Counter()
    for count in counts:
        sums.update(dict(count or {}))
    return dict(sums)


def _last(rows: Iterable[Stored], names: Sequence[str], order: Callable[[Stored], Any]) -> list[Stored]:
    """Of the rows with the same values the one that is last in order."""
    return [max(group, key=order) for group in _grouped(rows, *names)]


def _grouped(rows: Iterable[Stored], *names: str) -> list[list[Stored]]:
    """The rows with the same values together, in their order."""
    groups: dict[tuple[Any, ...], list[Stored]] = defaultdict(list)
    for row in rows:
        groups[_values(row, names)].append(row)
    return list(groups.values())


def _values(row: Stored, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(tuple(row[name]) if isinstance(row[name], list) else row[name] for name in names)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


def _sequence(row: Stored) -> int:
    return row["sequence"] or 0


def _written(row: Stored) -> datetime:
    at: datetime = row["written_at"]
    return at
