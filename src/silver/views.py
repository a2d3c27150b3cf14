"""`clean.<feed>`: what analysts read of silver. The rows that the source has now, without what only the pipeline needs.

Views stand in a catalog only: a folder of tables has none.
"""

from __future__ import annotations

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.spark.tables import Warehouse


def ensure_views(warehouse: Warehouse, contracts: Contracts) -> None:
    """Create the view of every feed, and replace one whose columns are no longer the contract's. Needs the tables."""
    for feed in contracts.feeds.values():
        if feed.made is None:  # else it comes with its table
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
