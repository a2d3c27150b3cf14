"""The facts of a batch: what its records are, by topic-partition and connector run. A plan follows from them alone.

They are counted where the records are, part by part (`facts`), and added up on the driver (`merge_facts`): their size
does not grow with the number of records. Imports without pyspark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS
from silver.decode.reference.wrapper import OF_KEY
from silver.order.position import END_OF_SNAPSHOT
from silver.order.positions import COORDINATES
from silver.order.runs import SEGMENT_KEY, TopicPartition

# How the facts of two parts of a batch become one.
_SUMS = (
    *("read", "changes", "deletes", "truncates", "tombstones", "ignored", "quarantined", "with_unchanged_toast"),
    *("judged", "unread", "keyed", "unread_keys"),
)
_LOWEST = ("first_offset", "lowest", "first_ms", "read_from_ms")
_HIGHEST = ("last_offset", "highest", "read_to_ms", "highest_timestamp_ms", "key_problem")
_MAPS = ("failed_rules", "absent_columns")
_SETS = ("source_names", "drift")
_LAST = ("last_key", "last_is_delete")
Facts = Mapping[str, Any]
# The kinds of records whose coordinates say how far a run has come; and of those that are ignored by policy.
IN_THE_LOG = ("change", "truncate", "quarantined", "erased")
IGNORED = ("ignored", "erased")
# The columns of a judged record that facts are made of, beside those of the log (`log_columns`) and the keys of its row
# (`key:<name>`).
FACT_COLUMNS = (
    *("topic", "topic_id", "partition", "offset", "timestamp_ms", "key", "run_id", "kind", "is_delete", "read_ms"),
    *("unchanged_toast", "absent", "problems", "drift", "failed_rules", "is_judged", "is_unread"),
)


def facts(records: pl.DataFrame, feed: Feed, rules: Sequence[str]) -> list[dict[str, Any]]:
    """The facts of judged records with their coordinates (`silver.order.positions.add_coordinates`): one row a
    SEGMENT_KEY.

    Counts of records by kind, and of those that rules or missing fields concern (`failed_rules`, `absent_columns`);
    `lowest` and `highest` coordinates of what was streamed; first and last offset, Kafka timestamp and time of reading;
    the last record. `key_ranges`: between which values keys lie that are whole numbers. `drift`: where records have
    other columns than a table by rule. `keyed`: those with a key; `unread_keys`: whose key cannot be read, and what is
    wrong with one (`key_problem`).
    """
    by_source = feed.sequence_by == "source_position"
    kind, has_coordinates = pl.col("kind"), pl.col(COORDINATES[0]).is_not_null() & pl.lit(by_source)
    is_streamed = (pl.col("streamed") == 1) & kind.is_in(IN_THE_LOG) & has_coordinates
    of_snapshot = pl.col("is_snapshot") & has_coordinates
    problem = pl.col("problems").list.get(0, null_on_oob=True)
    has_unread_key = (kind == "quarantined") & problem.str.starts_with(OF_KEY)
    marked = records.with_columns(
        *[pl.when(of_snapshot).then(name).alias(f"snapshot_{at}") for at, name in enumerate(COORDINATES)],
        *[pl.when(is_streamed).then(name).alias(f"streamed_{at}") for at, name in enumerate(COORDINATES)],
        is_end=of_snapshot & pl.col("snapshot").is_in(END_OF_SNAPSHOT),
        snapshot_name=pl.when(of_snapshot).then("source_name"),
        placed_ms=pl.when(has_coordinates).then("read_ms"),
        has_unread_key=has_unread_key,
    )
    key = [*SEGMENT_KEY[:-1], *(f"snapshot_{at}" for at in range(len(COORDINATES)))]
    keys = [name for name in feed.keys if feed.columns[name].type.ddl in WHOLE_NUMBERS]
    lists = {"failed_rules": rules, "absent": [name for name in feed.columns if name not in feed.keys]}
    counted = {
        f"{name}/{element}": pl.col(name).list.contains(element).sum()
        for name, elements in lists.items()
        if marked.select((pl.col(name).list.len() > 0).any()).item()
        for element in elements
    }
    found = marked.group_by(key).agg(
        first_offset=pl.col("offset").min(),
        last_offset=pl.col("offset").max(),
        read=pl.len(),
        changes=(kind == "change").sum(),
        deletes=((kind == "change") & pl.col("is_delete")).sum(),
        truncates=(kind == "truncate").sum(),
        tombstones=(kind == "tombstone").sum(),
        ignored=kind.is_in(IGNORED).sum(),
        quarantined=(kind == "quarantined").sum(),
        with_unchanged_toast=(pl.col("unchanged_toast").list.len() > 0).sum(),
        judged=pl.col("is_judged").sum(),
        unread=pl.col("is_unread").sum(),
        has_end=pl.col("is_end").any(),
        first_ms=pl.col("timestamp_ms").min(),
        highest_timestamp_ms=pl.col("timestamp_ms").max(),
        read_from_ms=pl.col("placed_ms").min(),
        read_to_ms=pl.col("placed_ms").max(),
        source_names=pl.col("snapshot_name").drop_nulls().unique(),
        keyed=((pl.col("key").bin.size() > 0) & (kind != "ignored")).sum(),
        unread_keys=pl.col("has_unread_key").sum(),
        key_problem=problem.filter(pl.col("has_unread_key")).max(),
        last_key=pl.col("key").sort_by("offset").last(),
        last_is_delete=((kind == "change") & pl.col("is_delete")).sort_by("offset").last(),
        drift=pl.col("drift").list.explode().drop_nulls().unique(),
        **{f"lowest_{at}": one for at, one in enumerate(_extreme(pl.Expr.min))},
        **{f"highest_{at}": one for at, one in enumerate(_extreme(pl.Expr.max))},
        **{f"range/{name}/lowest": pl.col(f"key:{name}").min() for name in keys},
        **{f"range/{name}/highest": pl.col(f"key:{name}").max() for name in keys},
        **counted,
    )
    return [_fact(row, feed, keys) for row in found.iter_rows(named=True)]


def merge_facts(parts: Iterable[Facts]) -> list[dict[str, Any]]:
    """The facts of parts of a batch as those of the batch."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for part in parts:
        at = part["snapshot_at"]
        key = (part["feed"], *[part[name] for name in SEGMENT_KEY[:-1]], None if at is None else tuple(at))
        found[key] = dict(part) if key not in found else _merged(found[key], part)
    return list(found.values())


def ignored_facts(topic_partition: TopicPartition, *, first: int, last: int, records: int, first_ms: int) -> Facts:
    """The facts of the records of a topic-partition without a feed (heartbeat topics): read, and ignored by policy."""
    nothing: dict[str, Any] = dict.fromkeys(_SUMS, 0)
    nothing |= dict.fromkeys(("lowest", "highest", "read_from_ms", "read_to_ms", "highest_timestamp_ms"))
    nothing |= dict.fromkeys(("snapshot_at", "key_problem", *_LAST)) | {name: {} for name in _MAPS}
    return {
        **nothing,
        **{"feed": None, **dict(zip(("topic", "topic_id", "partition"), topic_partition, strict=True)), "run_id": ""},
        **{"first_offset": first, "last_offset": last, "read": records, "ignored": records, "first_ms": first_ms},
        **{"has_end": False, "source_names": [], "drift": [], "key_ranges": {}},
    }


def key_hash(key: bytes | None) -> int | None:
    """A number for a Kafka key, the same in every process."""
    return None if key is None else int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)


def _extreme(choose: Any) -> list[pl.Expr]:
    """The lowest or highest coordinates of what was streamed, compared field by field from the first on."""
    expressions: list[pl.Expr] = []
    is_extreme = pl.lit(True)
    for at in range(len(COORDINATES)):
        extreme = choose(pl.col(f"streamed_{at}").filter(is_extreme))
        expressions.append(extreme)
        is_extreme &= pl.col(f"streamed_{at}") == extreme
    return expressions


def _fact(row: Mapping[str, Any], feed: Feed, keys: Sequence[str]) -> dict[str, Any]:
    lists: dict[str, dict[str, int]] = {"failed_rules": {}, "absent": {}}
    for name, times in row.items():
        of, _slash, element = name.partition("/")
        if of in lists and times:
            lists[of][element] = times
    ranges = {name: {end: row[f"range/{name}/{end}"] for end in ("lowest", "highest")} for name in keys}
    plain = {name: value for name, value in row.items() if "/" not in name and not name[-1].isdigit()}
    return {
        **plain,
        "feed": feed.name,
        **{name: _coordinates(row, name) for name in ("lowest", "highest")},
        "snapshot_at": _coordinates(row, "snapshot"),
        "failed_rules": lists["failed_rules"],
        "absent_columns": lists["absent"],
        "key_ranges": {name: ends for name, ends in ranges.items() if ends["lowest"] is not None},
        "last_key": key_hash(row["last_key"]),
        **{name: sorted(row[name]) for name in _SETS},
    }


def _coordinates(row: Mapping[str, Any], name: str) -> list[int] | None:
    found = [row[f"{name}_{at}"] for at in range(len(COORDINATES)) if row[f"{name}_{at}"] is not None]
    return found or None


def _merged(one: Facts, other: Facts) -> dict[str, Any]:
    last = max(one, other, key=lambda part: part["last_offset"])
    ranges = dict(one["key_ranges"])
    for name, ends in other["key_ranges"].items():
        known = ranges.get(name, ends)
        ranges[name] = {
            "lowest": min(known["lowest"], ends["lowest"]),
            "highest": max(known["highest"], ends["highest"]),
        }
    return {
        **one,
        **{name: one[name] + other[name] for name in _SUMS},
        **{name: _chosen(min, one[name], other[name]) for name in _LOWEST},
        **{name: _chosen(max, one[name], other[name]) for name in _HIGHEST},
        **{name: _added(one[name], other[name]) for name in _MAPS},
        **{name: sorted({*one[name], *other[name]}) for name in _SETS},
        **{name: last[name] for name in _LAST},
        "has_end": one["has_end"] or other["has_end"],
        "key_ranges": ranges,
    }


def _chosen(choose: Any, one: Any, other: Any) -> Any:
    present = [value for value in (one, other) if value is not None]
    return choose(present) if present else None


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
