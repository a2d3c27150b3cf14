"""The index frame of a fold: one row an event, with what decides the order and nothing else.

The fold never looks at values. It works on this frame, where every position is one whole number, and answers with the
numbers of the events that a row takes its values from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import polars as pl

from lakehouse.contracts.models import Feed
from silver.order.position import position_fields
from silver.order.runs import Cutoff

# A position as one number: the rank of its coordinates, and below them twice the rank of its Kafka offset.
OFFSET_BITS = 32

# The columns of an event, beside its position (`silver.order.position.position_fields`), the columns of its key
# (`key:<name>`) and a flag a versioned column (`missing:<name>`).
EVENT: Mapping[str, pl.DataType] = {
    **dict.fromkeys(("topic", "topic_id"), pl.String()),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "key": pl.Binary(),
    **dict.fromkeys(("key_text", "run_id", "kind", "op"), pl.String()),
    **dict.fromkeys(("is_delete", "is_streamed", "is_replay"), pl.Boolean()),
    **dict.fromkeys(("event_id", "old_key"), pl.String()),
    **dict.fromkeys(("image", "run_from", "timestamp_ms"), pl.Int64()),
}


@dataclass(frozen=True)
class Positions:
    """All positions of a fold in their order.

    `coordinates`: the distinct ones in ascending order; `rank` counts from 1. `offsets`: the Kafka offsets, ascending.
    """

    fields: Sequence[str]
    coordinates: pl.DataFrame
    offsets: pl.Series

    @classmethod
    def of(cls, frames: Sequence[pl.DataFrame], feed: Feed, *, offsets: pl.Series) -> Self:
        """The positions in these frames, each with the fields of a position; one whose fields are null is none.

        `offsets`: of records that may get a position.
        """
        *coordinates, offset = fields = position_fields(feed)
        present = [frame.filter(pl.col(fields[0]).is_not_null()) for frame in frames]
        ranked = pl.concat([frame.select(coordinates) for frame in present]).unique().sort(coordinates)
        kafka = pl.concat([offsets, *(frame.get_column(offset) for frame in present)])
        return cls(fields, ranked.with_row_index("rank", offset=1), kafka.unique().sort())

    def encode(self, frame: pl.DataFrame) -> pl.Series:
        """The position of every row as a number that compares as positions do; null where there is none."""
        *coordinates, offset = self.fields
        joined = frame.select(self.fields).join(self.coordinates, on=coordinates, how="left", maintain_order="left")
        rank, at = joined.get_column("rank").cast(pl.Int64), self.offset_codes(joined.get_column(offset))
        return (rank * (1 << OFFSET_BITS) + at).alias("position")

    def offset_codes(self, offsets: pl.Series) -> pl.Series:
        """The part of a position's number that is of its offset."""
        return (self.offsets.search_sorted(offsets).cast(pl.Int64) + 1) * 2

    def offsets_of(self, positions: pl.Series) -> pl.Series:
        """The Kafka offsets of these positions. 0: before all; an odd code: just before that offset."""
        code = positions % (1 << OFFSET_BITS)
        offsets = self.offsets.gather(((code + 1) // 2 - 1).clip(lower_bound=0)) - code % 2
        return pl.select(pl.when(code == 0).then(-1).otherwise(offsets)).to_series() if len(code) else offsets

    def decode(self, positions: pl.Series) -> pl.DataFrame:
        """The fields of these positions; null where there is none."""
        *coordinates, offset = self.fields
        ranks = pl.DataFrame({"rank": (positions // (1 << OFFSET_BITS)).cast(pl.UInt32)})
        found = ranks.join(self.coordinates, on="rank", how="left", maintain_order="left").select(coordinates)
        offsets = self.offsets_of(positions.fill_null(0)).to_frame("offset")
        kept = pl.select(pl.when(positions.is_not_null()).then(offsets.to_series())).to_series()
        return found.with_columns(kept.alias(offset))


def coordinates_of(position: str = "position") -> pl.Expr:
    """The rank of a position's coordinates: equal where two positions differ in nothing but the Kafka offset."""
    return pl.col(position) // (1 << OFFSET_BITS)


def before_all_offsets(position: str = "position") -> pl.Expr:
    """The position just before every record with the same coordinates."""
    return coordinates_of(position) * (1 << OFFSET_BITS)


def cutoff_frame(cutoffs: Iterable[tuple[str, Cutoff]], feed: Feed) -> pl.DataFrame:
    """A row a cutoff, of (shard, cutoff): its `shard`, the fields of its position, `cutoff_op`, the record that says so
    (`at_…`), and `cutoff_ms`, its time at the source.
    """
    rows: list[dict[str, Any]] = [
        {
            "shard": shard,
            **dict(zip(position_fields(feed), cutoff.as_position(), strict=True)),
            "cutoff_op": "t" if cutoff.reason == "truncate" else "r",
            "at_topic": cutoff.at_topic,
            "at_partition": cutoff.at_partition,
            "at_offset": cutoff.at_offset,
            "cutoff_ms": cutoff.source_ms,
        }
        for shard, cutoff in cutoffs
    ]
    kinds: dict[str, Any] = {"shard": pl.String, **position_types(feed)}
    kinds |= {"cutoff_op": pl.String, "at_topic": pl.String, "at_partition": pl.Int32, "at_offset": pl.Int64}
    kinds |= {"cutoff_ms": pl.Int64}
    return pl.DataFrame(rows, schema=kinds)


def position_types(feed: Feed) -> dict[str, Any]:
    """The fields of a position, with their types."""
    kinds = {"kafka_topic": pl.String, "kafka_partition": pl.Int32}
    return {name: kinds.get(name, pl.Int64) for name in position_fields(feed)}
