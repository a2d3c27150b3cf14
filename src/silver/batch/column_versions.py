"""Column versions: a column that an event may pass over keeps its own last word.

Partial payloads of an outbox name some columns only; a change of PostgreSQL does not send a large value that it did not
touch. A row keeps, for each such column, the position of the event that stated it, and that of its own last delete: so
the table is a function of the set of events here too, however they are cut into batches. A column that a change left
unchanged, and that nothing has stated since the row came to be, is unresolved: it is NULL, and `_unresolved_columns`
names it. Of a row whose key was changed the value is the previous key's: silver.batch.rederive looks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from silver.batch.position import at_offset
from silver.order.column_versions import versioned_columns

if TYPE_CHECKING:
    from pyspark.sql import Column


def version_columns(feed: Feed, position: str) -> dict[str, str]:
    """What a table with such columns has beside the technical columns of every silver table."""
    if not versioned_columns(feed):
        return {}
    versioned = ", ".join(f"{column}: {position}" for column in versioned_columns(feed))
    columns = {"_column_versions": f"STRUCT<{versioned}>", "_deleted_position": position}
    return columns if feed.payload == "partial" else {**columns, "_unresolved_columns": "ARRAY<STRING>"}


def version_folds(feed: Feed) -> list[Column]:
    """Aggregates over a key's changes: the last value of each such column, its position, and the last delete."""
    if not versioned_columns(feed):
        return []
    passed_over = "absent" if feed.payload == "partial" else "left_out"
    deleted = "IF(is_delete, position, NULL)"
    if feed.payload != "partial":
        # There was no such row before a key was changed to this one: nothing older is of it.
        deleted = f"coalesce({deleted}, IF(old_key IS NOT NULL, {at_offset('position', '-1', feed)}, NULL))"
    folds = {"_deleted_at": f"max({deleted})"}
    for column in versioned_columns(feed):
        said_at = f"IF(NOT is_delete AND NOT array_contains({passed_over}, '{column}'), position, NULL)"
        folds[f"_at_{column}"] = f"max({said_at})"
        folds[f"_said_{column}"] = f"max_by(named_struct('value', row.`{column}`), {said_at})"
    return [F.expr(f"{value} AS `{name}`") for name, value in folds.items()]


def version_values(feed: Feed) -> dict[str, str]:
    """SQL: the values stated after the key's last delete, and the technical columns that go with them."""
    versioned = versioned_columns(feed)
    if not versioned:
        return {}
    values = {column: _if_after_delete(column, f"_said_{column}.value") for column in versioned}
    positions = {column: _if_after_delete(column, f"_at_{column}") for column in versioned}
    values["_column_versions"] = f"named_struct({', '.join(f'{c!r}, {at}' for c, at in positions.items())})"
    values["_deleted_position"] = "_deleted_at"
    if feed.payload != "partial":
        unsaid = f"array_compact(array({', '.join(f'IF({at} IS NULL, {c!r}, NULL)' for c, at in positions.items())}))"
        values["_unresolved_columns"] = f"IF(NOT _last.is_delete AND size({unsaid}) > 0, {unsaid}, NULL)"
    return values


def version_updates(feed: Feed) -> dict[str, str]:
    """SQL of a MERGE of `latest` into `target`: what the versioned columns of a known row become."""
    versioned = versioned_columns(feed)
    if not versioned:
        return {}
    deleted = "greatest(target._deleted_position, latest._deleted_position)"
    updates = {
        "_deleted_position": deleted,
        "_column_versions": f"named_struct({', '.join(f'{c!r}, {_position(c, deleted)}' for c in versioned)})",
        **{column: _value(column, deleted) for column in versioned},
    }
    if feed.payload != "partial":
        names = (
            f"array_compact(array({', '.join(f'IF({_position(c, deleted)} IS NULL, {c!r}, NULL)' for c in versioned)}))"
        )
        is_live = f"NOT ({deleted} <=> greatest(target._position, latest._position))"
        updates["_unresolved_columns"] = f"IF({is_live} AND size({names}) > 0, {names}, NULL)"
    return updates


def has_newer_versions(feed: Feed) -> list[str]:
    """SQL conditions: `latest` has a later version of a column of `target`, or of its delete."""
    versioned = versioned_columns(feed)
    if not versioned:
        return []
    deleted = "greatest(target._deleted_position, latest._deleted_position)"
    news = [f"({_is_newer(column)} AND {_stands(column, deleted)})" for column in versioned]
    return [f"NOT (target._deleted_position <=> {deleted})", *news]


def _if_after_delete(column: str, value: str) -> str:
    return f"IF(_deleted_at IS NULL OR `_at_{column}` > _deleted_at, {value}, NULL)"


def _is_newer(column: str) -> str:
    ours, theirs = f"latest._column_versions.{column}", f"target._column_versions.{column}"
    return f"({ours} IS NOT NULL AND ({theirs} IS NULL OR {ours} > {theirs}))"


def _stands(column: str, deleted: str) -> str:
    """Whether the column was stated after the row's last delete."""
    said = f"greatest(target._column_versions.{column}, latest._column_versions.{column})"
    return f"coalesce({deleted} IS NULL OR {said} > {deleted}, false)"


def _position(column: str, deleted: str) -> str:
    said = f"greatest(target._column_versions.{column}, latest._column_versions.{column})"
    return f"IF({_stands(column, deleted)}, {said}, NULL)"


def _value(column: str, deleted: str) -> str:
    newer = f"IF({_is_newer(column)}, latest.{column}, target.{column})"
    return f"IF({_stands(column, deleted)}, {newer}, NULL)"
