"""Where every record of a batch is in its source's history: all of a batch's records at once. Rules: docs/ordering.md.

`add_positions` gives what `silver.order.position` describes. It works on narrow events (silver.order.narrow_events) and
on what is known of the topic-partitions (`History.position_contexts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from silver.order.position import FULL_SNAPSHOT, position_fields

_TOPIC_PARTITION = ["topic", "topic_id", "partition"]
# Log coordinates, as far as the kind of source has them, compare in this order.
COORDINATES = ("coordinate_0", "coordinate_1", "coordinate_2")
PositionContexts = Sequence[Mapping[str, Any]]


def add_coordinates(records: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The records with the fields of their log coordinates, `streamed` (1; of a row of a snapshot 0), `is_snapshot`
    (whether it is one of the whole table), and COORDINATES: null without, or before the beginning of every log.

    PostgreSQL: `commit_lsn`, the later of the last commit and the LSN, and `lsn`. MySQL and MariaDB: `binlog_file`,
    `binlog_pos`, `binlog_row`.
    """
    positioned = records.with_columns(
        streamed=pl.when(pl.col("snapshot").is_null()).then(1).otherwise(0).cast(pl.Int64),
        is_snapshot=pl.col("snapshot").is_in(FULL_SNAPSHOT).fill_null(False),
    )
    if feed.kind == "postgresql":
        positioned = positioned.with_columns(
            commit_lsn=pl.when(pl.col("lsn").is_not_null()).then(pl.max_horizontal("last_commit", "lsn"))
        )
        is_negative = (pl.col("lsn") < 0) | (pl.col("last_commit") < 0).fill_null(False)
        parts = ["commit_lsn", "lsn"]
    else:
        is_negative = (pl.col("binlog_pos") < 0) | (pl.col("binlog_row") < 0)
        parts = ["binlog_file", "binlog_pos", "binlog_row"]
    is_known = pl.all_horizontal([pl.col(part).is_not_null() for part in parts]) & ~is_negative
    known = [pl.when(is_known).then(part).alias(name) for part, name in zip(parts, COORDINATES, strict=False)]
    absent = [pl.lit(None, pl.Int64).alias(name) for name in COORDINATES[len(parts) :]]
    return positioned.with_columns(*known, *absent)


def add_positions(records: pl.DataFrame, feed: Feed, position_contexts: PositionContexts) -> pl.DataFrame:
    """The records with `position`, `is_replay` (an earlier run has sent it) and `run_from` (the run's first offset).

    `records`: with their coordinates; of a feed that goes by Kafka's offsets, all of a batch, or with
    `highest_timestamp_ms`, the highest timestamp up to the record. `position_contexts`: what is known of each
    topic-partition (`History.position_contexts`).
    """
    with_runs = _with_runs(records, position_contexts)
    if feed.sequence_by == "kafka_offset":
        positioned = with_runs
        if "highest_timestamp_ms" not in records.columns:
            positioned = with_runs.join(
                _highest_timestamps(position_contexts), on=_TOPIC_PARTITION, how="left", maintain_order="left"
            )
        return _by_timestamp(positioned, feed).with_columns(is_replay=pl.lit(False))
    epoch_at = _epoch_at(with_runs, position_contexts)
    positioned = with_runs.with_columns(epoch=pl.coalesce("run_epoch", epoch_at, pl.lit(0, pl.Int64)))
    if feed.kind == "postgresql":
        behind = pl.lit(_snapshot_lsn(positioned, position_contexts))
        ordered = pl.when(pl.col("streamed") == 1).then(pl.max_horizontal("commit_lsn", behind)).otherwise("commit_lsn")
        positioned = positioned.with_columns(ordered_lsn=ordered)
        has_position = pl.col("lsn").is_not_null()
    else:
        has_position = pl.col("binlog_file").is_not_null() & pl.col("binlog_pos").is_not_null()
    fields = position_fields(feed)
    position = pl.struct([pl.col("offset" if name == "kafka_offset" else name).alias(name) for name in fields])
    return positioned.with_columns(
        position=pl.when(has_position).then(position),
        is_replay=(pl.col("streamed") == 1) & _is_not_above_repeated(),
    )


def _with_runs(records: pl.DataFrame, position_contexts: PositionContexts) -> pl.DataFrame:
    """The records with what is known of their run in their topic-partition."""
    rows = [
        {
            **{name: topic_partition[name] for name in _TOPIC_PARTITION},
            "run_id": run["run_id"],
            "run_from": run["from_offset"],
            "run_epoch": run["epoch"],
            **dict(zip(_REPEATED, [*(run["repeats_to"] or ()), None, None, None], strict=False)),
        }
        for topic_partition in position_contexts
        for run in topic_partition["runs"]
    ]
    kinds: dict[str, Any] = {"topic": pl.String, "topic_id": pl.String, "partition": pl.Int32, "run_id": pl.String}
    kinds |= dict.fromkeys(("run_from", "run_epoch", *_REPEATED), pl.Int64)
    return records.join(
        pl.DataFrame(rows, schema=kinds), on=[*_TOPIC_PARTITION, "run_id"], how="left", maintain_order="left"
    )


_REPEATED = ("repeats_0", "repeats_1", "repeats_2")


def _is_not_above_repeated() -> pl.Expr:
    """Whether the coordinates are not above those up to which earlier runs are repeated."""
    is_not_above = pl.lit(True)
    for at, below in reversed(list(zip(COORDINATES, _REPEATED, strict=True))):
        is_not_above = (pl.col(at) < pl.col(below)) | (pl.col(at).eq_missing(pl.col(below)) & is_not_above)
    return is_not_above & pl.col(COORDINATES[0]).is_not_null() & pl.col(_REPEATED[0]).is_not_null()


def _entries(position_contexts: PositionContexts, name: str, kinds: Mapping[str, Any]) -> list[pl.DataFrame]:
    """What is known of topic-partitions under this name: the first entry of each, then the second of each, and on."""
    most = max((len(topic_partition[name]) for topic_partition in position_contexts), default=0)
    schema = {"topic": pl.String, "topic_id": pl.String, "partition": pl.Int32, **kinds}
    found = []
    for number in range(most):
        rows = [
            {
                **{at: topic_partition[at] for at in _TOPIC_PARTITION},
                **{f"known_{at}": value for at, value in topic_partition[name][number].items()},
            }
            for topic_partition in position_contexts
            if number < len(topic_partition[name])
        ]
        found.append(pl.DataFrame(rows, schema=schema))
    return found


def _highest(records: pl.DataFrame, entries: Sequence[pl.DataFrame], value: pl.Expr) -> pl.Series:
    """The highest value that any entry of its topic-partition gives a record; null where none does."""
    highest = pl.Series("highest", [None] * records.height, dtype=pl.Int64)
    for known in entries:
        joined = records.join(known, on=_TOPIC_PARTITION, how="left", maintain_order="left")
        highest = joined.select(highest=pl.max_horizontal(pl.lit(highest), value)).to_series()
    return highest


def _epoch_at(records: pl.DataFrame, position_contexts: PositionContexts) -> pl.Series:
    """The epoch that the record's offset lies in, where one has begun."""
    entries = _entries(position_contexts, "epochs", {"known_from_offset": pl.Int64, "known_epoch": pl.Int64})
    begun = pl.when(pl.col("offset") >= pl.col("known_from_offset")).then("known_epoch")
    return _highest(records, entries, begun)


def _snapshot_lsn(records: pl.DataFrame, position_contexts: PositionContexts) -> pl.Series:
    """The highest LSN of the full snapshots that a streamed change stands behind.

    A record may be sent again much later. So of earlier runs, those before the record's own, in its epoch, where the
    connector has no stored offsets yet; and of snapshots in the middle of its run, those that were taken before it was
    read. Without the names of runs only the clock tells a record that is sent again behind the snapshot.
    """
    numbers = dict.fromkeys(("known_epoch", "known_from_offset", "known_lsn", "known_read_from_ms"), pl.Int64)
    entries = _entries(position_contexts, "snapshots", {"known_run_id": pl.String, **numbers})
    has_run, begins = pl.col("run_id") != "", pl.col("known_from_offset")
    opens_run = has_run & (pl.col("run_from") == begins)
    was_read_later = (pl.col("read_ms") >= pl.col("known_read_from_ms")).fill_null(True)
    is_of_run = (pl.col("run_id") == pl.col("known_run_id")) & (pl.col("offset") > begins)
    is_of_run &= opens_run | was_read_later
    run_begins = pl.when(has_run).then("run_from").otherwise("offset")
    is_earlier = pl.col("last_commit").is_null() & (pl.col("epoch") == pl.col("known_epoch"))
    is_earlier &= (begins < run_begins) & (has_run | was_read_later)
    return _highest(records, entries, pl.when(is_of_run | is_earlier).then("known_lsn"))


def _highest_timestamps(position_contexts: PositionContexts) -> pl.DataFrame:
    rows = [
        {name: topic_partition[name] for name in (*_TOPIC_PARTITION, "highest_timestamp_ms")}
        for topic_partition in position_contexts
    ]
    kinds: dict[str, Any] = {"topic": pl.String, "topic_id": pl.String, "partition": pl.Int32}
    return pl.DataFrame(rows, schema={**kinds, "highest_timestamp_ms": pl.Int64})


def _by_timestamp(records: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """Within a partition the offset decides, so the timestamp is the highest one up to the record; across partitions
    the timestamp does.
    """
    highest = records.select(*_TOPIC_PARTITION, "offset", "timestamp_ms").with_row_index().sort("offset")
    up_to_here = pl.col("timestamp_ms").cum_max().over(_TOPIC_PARTITION)
    here = highest.with_columns(highest=up_to_here).sort("index").get_column("highest")
    known = records.with_columns(here).with_columns(
        highest=pl.max_horizontal("highest", "highest_timestamp_ms"),
    )
    parts = dict(zip(position_fields(feed), ("highest", "topic", "partition", "offset"), strict=True))
    return known.with_columns(position=pl.struct([pl.col(part).alias(name) for name, part in parts.items()]))
