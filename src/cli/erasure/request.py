"""What `lakehouse forget` is about: keys of a table, the feeds that are erased as one, their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.contracts.models import Contracts, Feed
    from lakehouse.delta.tables import Warehouse
    from silver.erasure.erase import TypedKeys


@dataclass(frozen=True)
class ErasureRequest:
    """The keys, and the feeds whose rows they are: the first one decides whether a row is deleted."""

    warehouse: Warehouse
    contracts: Contracts
    feeds: Sequence[Feed]
    keys: TypedKeys

    @property
    def source(self) -> str:
        """The source of the feeds."""
        return self.feeds[0].source

    @property
    def is_of_unified(self) -> bool:
        """Whether gold's unified orders are made of these feeds."""
        sources = self.contracts.gold.sources.values()
        return any(self.feeds[0].name in one.feeds for one in sources)

    @property
    def joins(self) -> list[str]:
        """The joins that read one of the feeds."""
        names = {feed.name for feed in self.feeds}
        return [name for name, join in self.contracts.gold.joins.items() if not names.isdisjoint(join.tables)]

    def tables(self) -> list[str]:
        """Every table that may have a row, or a copy of a row, of these keys, and is there."""
        from bronze.events import events_table
        from lakehouse.quality.results import RESULTS
        from silver.accounts.audit import OUTBOX_EVENTS
        from silver.rejects.quarantine import QUARANTINE

        named = [
            events_table(self.source).name,
            *(table for feed in self.feeds for table in feed.silver_tables),
            *(self.contracts.gold.unified_tables if self.is_of_unified else ()),
            *(f"gold.{join}" for join in self.joins),
            *(spec.name for spec in (QUARANTINE, RESULTS, OUTBOX_EVENTS)),
        ]
        return [name for name in named if self.warehouse.exists(name)]

    def prefix(self) -> str:
        """What stands before the keys in gold's composite keys."""
        return next(one.prefix for one in self.contracts.gold.sources.values() if self.feeds[0].name in one.feeds)

    @contextmanager
    def matching_records(self) -> Iterator[dict[str, DataFrame]]:
        """By feed the records of bronze that are of these keys, kept inside the block.

        Raises TableError where a key was changed from or to one that is not named.
        """
        from lakehouse.spark.materialized import materialized
        from silver.erasure.erase import matching_records, records_of_rows, require_no_links

        with ExitStack() as stack:
            found: dict[str, DataFrame] = {}
            for feed in self.feeds:
                matches = stack.enter_context(materialized(matching_records(self.warehouse, feed, self.keys)))
                require_no_links(feed, matches)
                found[feed.name] = stack.enter_context(materialized(records_of_rows(matches)))
            yield found
