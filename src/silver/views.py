"""Views, in a catalog only: a folder of tables has none.

`clean.<feed>`: what analysts read of silver: the rows that the source has now, without what only the pipeline needs.
`ops.audit`: what was read, and what became of it.
"""

from __future__ import annotations

from lakehouse.batches import BATCHES
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import Warehouse
from silver.order.state import OUTCOMES

# A row a feed, topic-partition and batch. `read` is the sum of the outcomes; `batch`: NULL where decisions about
# quarantined records were carried out, which moves them from one outcome to another and reads none.
AUDIT_COLUMNS = (
    *("run", "source", "generation", "batch", "feed", "topic", "topic_id", "partition", "first_offset", "last_offset"),
    *("read", *OUTCOMES, "gaps", "started_at", "written_at"),
)


def ensure_views(warehouse: Warehouse, contracts: Contracts) -> None:
    """Create the views of the audit and of every feed, and replace those with other columns. Needs the tables."""
    if warehouse.in_catalog:
        columns = ", ".join(AUDIT_COLUMNS)
        query = f"SELECT {columns} FROM {warehouse.sql_name(BATCHES.name)} WHERE layer = 'silver' AND read IS NOT NULL"
        warehouse.ensure_view("ops.audit", columns=AUDIT_COLUMNS, query=query)
    for feed in contracts.feeds.values():
        if feed.discovered is None:  # else it comes with its table
            ensure_view_of(warehouse, feed)


def ensure_view_of(warehouse: Warehouse, feed: Feed) -> None:
    """The same of one feed."""
    if warehouse.in_catalog:
        warehouse.ensure_view(f"clean.{feed.name}", columns=clean_columns(feed), query=clean_rows(warehouse, feed))


def clean_columns(feed: Feed) -> list[str]:
    """The columns of the contract that are not marked `sensitive`."""
    return [name for name in feed.columns if name not in feed.sensitive_columns]


def clean_rows(warehouse: Warehouse, feed: Feed) -> str:
    """The query of the view: every row that is not deleted; of a list of changes every change."""
    columns = ", ".join(f"`{name}`" for name in clean_columns(feed))
    condition = "" if feed.append_only else " WHERE NOT _is_deleted"
    return f"SELECT {columns} FROM {warehouse.sql_name(f'silver.{feed.name}')}{condition}"
