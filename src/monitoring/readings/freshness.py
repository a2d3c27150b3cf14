"""How old the rows of gold are that were changed last: from when their changes could first be read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate

from lakehouse.contracts.models import Contracts
from monitoring.model import Freshness
from monitoring.readings.tables import Tables
from monitoring.readings.warehouse import Row, moment

# Rows of gold whose age is looked at.
MAX_AGES = 100_000
# The last runs that read all there was: what is older is of no use for what they brought.
MAX_LOOKS = 20


@dataclass(frozen=True)
class Reads:
    """What is known of when records could be read: a record's timestamp is its producer's, and may be of last year.

    `began`: by source, when a run first looked at its topics. `looks`: by topic and partition, where it ended when a
    run looked at it that read all of it: the offsets in order, each with the last time that it ended there or before.
    """

    began: Mapping[str, datetime] = field(default_factory=dict)
    looks: Mapping[tuple[str, int], tuple[Sequence[int], Sequence[datetime]]] = field(default_factory=dict)

    def not_before(self, source: str, topic: str, partition: int, offset: int) -> datetime | None:
        """A time before which no run could have read this record; None where nothing is known."""
        ends, times = self.looks.get((topic, partition), ((), ()))
        at = bisect_right(ends, offset)
        known = [self.began[source]] if source in self.began else []
        return max([*known, *times[at - 1 : at]], default=None)


def read_times(tables: Tables) -> Reads:
    """When sources were first read, and where topics ended when the last runs read all of them."""
    began = tables.rows("""
        SELECT source, min(coalesce(started_at, written_at)) AS began FROM {ops.batches}
        WHERE layer = 'bronze' AND source IS NOT NULL GROUP BY source
    """)
    looks = tables.rows(f"""
        SELECT started_at, fingerprint['ends'] AS ends FROM {{ops.batches}}
        WHERE layer = 'run' AND started_at IS NOT NULL AND fingerprint IS NOT NULL
        ORDER BY started_at DESC LIMIT {MAX_LOOKS}
    """)
    found: dict[tuple[str, int], list[tuple[int, datetime]]] = {}
    for look in looks:
        for topic_partition, end in dict(look["ends"] or ()).items():
            # An id may have a slash, and no topic's name has one.
            topic, partition, _topic_id = topic_partition.split("/", 2)
            found.setdefault((topic, int(partition)), []).append((end, look["started_at"]))
    return Reads(
        {row["source"]: row["began"] for row in began},
        {topic_partition: _rising(own) for topic_partition, own in found.items()},
    )


def _rising(ends: Sequence[tuple[int, datetime]]) -> tuple[Sequence[int], Sequence[datetime]]:
    """The offsets in order; of each the latest time of those up to it."""
    ordered = sorted(ends)
    return [end for end, _at in ordered], list(accumulate((at for _end, at in ordered), max))


def freshness(tables: Tables, contracts: Contracts, *, since: datetime, reads: Reads) -> list[Freshness]:
    """The ages of the rows of gold that were changed since then, by source.

    A row's age begins with the commit of its change in the source, or when it could first be read if that is later.
    """
    found = []
    key = contracts.gold.key
    for source, of_gold in contracts.gold.sources.items():
        ages: list[float] = []
        for name in (f"silver.{feed}" for feed in of_gold.feeds):
            if not tables.exists(name):
                continue
            rows = tables.rows(f"""
                SELECT ordered.processed_at AS processed_at, kept._source_ts AS source_ts, kept._topic AS at_topic,
                    kept._partition AS at_partition, kept._offset AS at_offset
                FROM {{gold.unified_orders}} AS ordered JOIN {{{name}}} AS kept ON ordered.{key} = kept.{key}
                WHERE ordered.source_database = '{of_gold.name}' AND ordered.processed_at >= {moment(since)}
                    AND kept._applied_at >= {moment(since - timedelta(hours=1))}
                    AND kept._applied_at <= ordered.processed_at AND kept._source_ts IS NOT NULL
                LIMIT {MAX_AGES}
            """)
            of_topics = contracts.feeds[name.removeprefix("silver.")].source
            ages += [(row["processed_at"] - _since(row, of_topics, reads)).total_seconds() for row in rows]
        if ages:
            ages.sort()
            found.append(Freshness(source, _quantile(ages, 0.5), _quantile(ages, 0.99), len(ages)))
    return found


def _since(row: Row, source: str, reads: Reads) -> datetime:
    """When the age of a row begins."""
    committed: datetime = row["source_ts"]
    if row["at_offset"] is None:
        return committed
    readable = reads.not_before(source, row["at_topic"], row["at_partition"], row["at_offset"])
    return committed if readable is None else max(committed, readable)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return max(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 0.0)
