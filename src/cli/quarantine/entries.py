"""Entries of the quarantine: which ones a command means, and what is shown of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import CommandContext
from lakehouse.contracts.models import Feed
from lakehouse.errors import SettingsError
from lakehouse.quality.masking import has_sensitive_key, shown_key, shown_value
from lakehouse.secrets import MASK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from lakehouse.delta.tables import Warehouse


@dataclass(frozen=True)
class Filter:
    """Which entries are meant, as options; nothing given means all that are open."""

    entries: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC/PARTITION/OFFSET]...", help="These records.", show_default=False),
    ] = None
    feed: Annotated[str | None, typer.Option(help="Only of this silver table.", show_default=False)] = None
    rule: Annotated[str | None, typer.Option(help="Only those that fail this rule.", show_default=False)] = None
    reason: Annotated[
        str | None, typer.Option(help="Only those with a reason that contains this.", show_default=False)
    ] = None
    state: Annotated[
        str | None, typer.Option(help="open, retried, released, discarded, or all.", show_default="open")
    ] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing narrows it."""
        return not (self.entries or self.feed or self.rule or self.reason or self.state)


@dataclass(frozen=True)
class ListFilter(Filter):
    """The options of a list: it names no record."""

    entries: list[str] | None = field(default=None, init=False)


@dataclass(frozen=True)
class DiscardFilter(Filter):
    """The options of a decision about what is open alone."""

    state: str | None = field(default=None, init=False)


def entries_of(warehouse: Warehouse, chosen: CommandContext, narrowed: Filter) -> DataFrame:
    """The entries that are meant."""
    from silver.rejects.quarantine import QUARANTINE, STATES

    feeds = chosen.contracts.feeds
    if narrowed.feed is not None and narrowed.feed not in feeds:
        raise SettingsError(
            f"There is no silver table {narrowed.feed}.", hint=f"There are: {', '.join(sorted(feeds))}."
        )
    if narrowed.state not in {None, "all", *STATES}:
        raise SettingsError(f"There is no state {narrowed.state!r}.", hint=f"States are: {', '.join(STATES)}, or all.")
    return warehouse.read(QUARANTINE.name).where(condition_of(chosen, narrowed))


def condition_of(chosen: CommandContext, narrowed: Filter) -> Column:
    """The filter as a condition on entries of the contract's tables. Named entries are meant whatever their state."""
    from pyspark.sql import functions as F

    meant = F.col("feed").isin(*chosen.contracts.feeds)
    if narrowed.entries:
        storage_paths = [record_of(entry) for entry in narrowed.entries]
        is_one = F.lit(False)
        for topic, partition, offset in storage_paths:
            is_one |= (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") == offset)
        meant &= is_one
    state = narrowed.state or (None if narrowed.entries else "open")
    if state not in {None, "all"}:
        meant &= F.col("state") == state
    if narrowed.feed is not None:
        meant &= F.col("feed") == narrowed.feed
    if narrowed.rule is not None:
        meant &= F.array_contains("rules", narrowed.rule)
    if narrowed.reason is not None:
        meant &= F.exists("reasons", lambda reason: F.contains(reason, F.lit(narrowed.reason)))
    return meant


def record_of(entry: str) -> tuple[str, int, int]:
    """Topic, partition and offset of an entry. Raises SettingsError for what names none."""
    parts = re.fullmatch(r"(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>\d+)", entry)
    if parts is None:
        raise SettingsError(
            f"{entry!r} is no record.", hint="Name it as TOPIC/PARTITION/OFFSET, as `lakehouse quarantine list` does."
        )
    return parts["topic"], int(parts["partition"]), int(parts["offset"])


def shown_entry(row: Row, feeds: Mapping[str, Feed]) -> dict[str, Any]:
    """What is said of an entry, without what the record says."""
    feed = feeds[row["feed"]]
    return {
        "record": f"{row['topic']}/{row['partition']}/{row['offset']}",
        "feed": row["feed"],
        "key": MASK if has_sensitive_key(feed) else row["row_key"],
        "state": row["state"],
        "reasons": list(row["reasons"]),
        "rules": list(row["rules"]),
        "contract": row["contract"],
        **{name: row[name] for name in _TIMES},
        "state_by": row["state_by"],
        "state_why": row["state_why"],
    }


_TIMES = ("first_seen", "last_seen", "state_at", "finished_at")


def with_times_as_text(entries: DataFrame) -> DataFrame:
    """The same entries, their times written by Spark, whose session is in UTC: Python would take the machine's zone."""
    from pyspark.sql import functions as F

    return entries.withColumns({name: F.date_format(name, "yyyy-MM-dd HH:mm:ss") for name in _TIMES})


def content_of(row: Row, feed: Feed) -> dict[str, Any]:
    """What the record says, as far as it may be shown."""
    headers = [header["key"] for header in row["headers"] or ()]
    return {"headers": headers, "kafka key": shown_key(row["key"], feed), "value": shown_value(row["value"], feed)}
