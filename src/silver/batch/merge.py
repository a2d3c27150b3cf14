"""The guarded MERGE: a key's row is replaced only by what is later in the source's history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.delta.declared import OWN_PROPERTY
from lakehouse.delta.tables import UPSERTED, TableSpec
from silver.fold.column_versions import versioned_columns
from silver.order.position import position_type
from silver.order.runs import Cutoff

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame


# What else than its contract's columns a silver table is searched by.
_WITH_STATISTICS = ("_topic", "_partition", "_offset")
_WITHOUT_STATISTICS = ("ARRAY", "BINARY", "BOOLEAN")


def cutoff_type(feed: Feed) -> str:
    """The Spark type of a cutoff."""
    position = position_type(feed)
    return f"STRUCT<reason: STRING, position: {position}, at_topic: STRING, at_partition: INT, at_offset: BIGINT>"


def silver_table(feed: Feed) -> TableSpec:
    """`silver.<feed>`: the contract's columns, then what the pipeline knows about each row (columns with `_`)."""
    made_by = {
        f"{OWN_PROPERTY}source": feed.source,
        f"{OWN_PROPERTY}keys": ", ".join(feed.keys) or "none",
        f"{OWN_PROPERTY}payload": feed.payload,
        # A history that begins in the middle would look as if there had been nothing before.
        f"{OWN_PROPERTY}history": "kept" if feed.has_history else "none",
    }
    # Of every row that is written Spark works out the statistics of 32 columns; most of those are parts of positions.
    with_statistics = {"delta.dataSkippingStatsColumns": ",".join((*searched_columns(feed), *_WITH_STATISTICS))}
    properties = {**UPSERTED, **with_statistics, **made_by}
    columns = {**({"_event_id": "STRING"} if feed.append_only else {}), **_of_row(feed), "_applied_at": "TIMESTAMP"}
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return TableSpec(name=f"silver.{feed.name}", columns=ddl, properties=properties)


def row_type(feed: Feed) -> str:
    """The Spark type of a row of a table of last words, all but when it was applied."""
    return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in _of_row(feed).items())}>"


def silver_columns(feed: Feed) -> str:
    """The same as columns."""
    return ", ".join(f"{name} {kind}" for name, kind in _of_row(feed).items())


def version_columns(feed: Feed, position: str) -> dict[str, str]:
    """What a table with columns that events may leave out has beside the technical columns of every silver table.

    A column that a change left unchanged, and that nothing has sent since the row came to be, is NULL, and
    `_unresolved_columns` names it.
    """
    if not versioned_columns(feed):
        return {}
    versioned = ", ".join(f"{column}: {position}" for column in versioned_columns(feed))
    columns = {"_column_versions": f"STRUCT<{versioned}>", "_deleted_position": position}
    return columns if feed.payload == "partial" else {**columns, "_unresolved_columns": "ARRAY<STRING>"}


def _of_row(feed: Feed) -> dict[str, str]:
    position = position_type(feed)
    return {
        **{column: declared.type.ddl for column, declared in feed.columns.items()},
        "_position": position,
        "_op": "STRING",
        "_is_deleted": "BOOLEAN",
        "_source_ts": "TIMESTAMP",
        "_topic": "STRING",
        "_partition": "INT",
        "_offset": "BIGINT",
        **version_columns(feed, position),
    }


def searched_columns(feed: Feed) -> list[str]:
    """The contract's columns that Delta takes statistics of: for other types it refuses to make the table."""
    return [name for name, declared in feed.columns.items() if not declared.type.ddl.startswith(_WITHOUT_STATISTICS)]


def merge_rows(
    table: DeltaTable,
    rows: DataFrame,
    feed: Feed,
    *,
    cutoffs: Sequence[Cutoff] = (),
    between: Mapping[str, tuple[int, int]] | None = None,
) -> int:
    """Replace the rows that the table has of these keys, unless they are of later changes; the number that changed.

    Deletes stay as rows with their position and nothing but their key: a late event finds the higher position and
    does nothing. `cutoffs`: rows below them, which `rows` do not name, are deleted. `between`: of keys that are whole
    numbers, the lowest and the highest that `rows` have.
    """
    same_key = " AND ".join(
        [
            *[f"target.{key} = latest.{key}" for key in feed.keys],
            *[f"target.{key} BETWEEN {lowest} AND {highest}" for key, (lowest, highest) in (between or {}).items()],
        ]
    )
    merge = (
        table.alias("target")
        .merge(rows.withColumn("_applied_at", F.current_timestamp()).alias("latest"), same_key)
        # The rows were folded with those of the table. Only a process that lost its lock finds later ones.
        .whenMatchedUpdateAll(condition="latest._position >= target._position")
        .whenNotMatchedInsertAll()
    )
    if cutoffs:
        merge = merge.whenNotMatchedBySourceUpdate(condition=_is_below(cutoffs, feed), set=_gone(cutoffs, feed))
    return int(merge.execute().collect()[0]["num_affected_rows"])


def first_rows(latest: DataFrame) -> DataFrame:
    """The rows as a table without any gets them: what a MERGE would insert."""
    return latest.withColumn("_applied_at", F.current_timestamp())


def replace_rows(table: DeltaTable, latest: DataFrame, feed: Feed) -> int:
    """Replace the rows that the table has of these keys, whatever their positions."""
    same_key = " AND ".join(f"target.{key} = latest.{key}" for key in feed.keys)
    is_other = " OR ".join(f"NOT (latest.{name} <=> target.{name})" for name in latest.columns)
    result = (
        table.alias("target")
        .merge(latest.withColumn("_applied_at", F.current_timestamp()).alias("latest"), same_key)
        .whenMatchedUpdateAll(condition=is_other)
        .whenNotMatchedInsertAll()
        .execute()
    )
    return int(result.collect()[0]["num_affected_rows"])


def append_changes(table: DeltaTable, rows: DataFrame, where: str | None) -> int:
    """Add the rows of an append-only table that it does not have; how many.

    `where` (SQL, of `target`): the rows that can be of the same events; None: any.
    """
    same = "target._event_id = latest._event_id"
    result = (
        table.alias("target")
        .merge(
            rows.withColumn("_applied_at", F.current_timestamp()).alias("latest"),
            same if where is None else f"{same} AND {where}",
        )
        .whenNotMatchedInsertAll()
        .execute()
    )
    return int(result.collect()[0]["num_affected_rows"])


def _cutoff(cutoffs: Sequence[Cutoff], feed: Feed) -> str:
    """SQL: the cutoff of a row of `target`; NULL without."""
    by_topic = json.dumps({cutoff.topic or "": cutoff.as_json() for cutoff in cutoffs})
    shard = "target._topic" if feed.is_sharded else "''"
    return f"try_element_at(from_json('{by_topic}', 'MAP<STRING, {cutoff_type(feed)}>'), {shard})"


def _is_below(cutoffs: Sequence[Cutoff], feed: Feed) -> str:
    return f"NOT target._is_deleted AND coalesce(target._position < {_cutoff(cutoffs, feed)}.position, false)"


def _gone(cutoffs: Sequence[Cutoff], feed: Feed) -> dict[str, str | Column]:
    """What a row becomes that a cutoff removes: its key, and where it was removed."""
    cutoff = _cutoff(cutoffs, feed)
    values: dict[str, str | Column] = {column: "NULL" for column in feed.columns if column not in feed.keys}
    values |= {
        "_position": f"{cutoff}.position",
        "_op": f"IF({cutoff}.reason = 'truncate', 't', 'r')",
        "_is_deleted": "true",
        "_source_ts": "NULL",
        "_topic": f"{cutoff}.at_topic",
        "_partition": f"{cutoff}.at_partition",
        "_offset": f"{cutoff}.at_offset",
        "_applied_at": "current_timestamp()",
    }
    if versioned_columns(feed):
        values |= {"_deleted_position": f"{cutoff}.position", "_column_versions": "NULL"}
        values |= {} if feed.payload == "partial" else {"_unresolved_columns": "NULL"}
    return values
