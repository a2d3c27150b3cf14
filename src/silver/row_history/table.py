"""`silver.<table>_history`: what the table is, and the MERGEs that bring it up to what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.delta.declared import OWN_PROPERTY
from lakehouse.delta.tables import UPSERTED, TableSpec
from silver.batch.merge import searched_columns
from silver.order.position import position_fields, position_type
from silver.order.runs import Cutoff
from silver.row_history.versions import has_unresolved, tracked_columns

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column


_SEARCHED = ("_valid_from", "_valid_to", "_topic", "_partition", "_offset")


def history_table(feed: Feed) -> TableSpec:
    """The table: the contract's columns, then from when to when a version held, and which change began it."""
    made_by = {
        f"{OWN_PROPERTY}source": feed.source,
        f"{OWN_PROPERTY}keys": ", ".join(feed.keys),
        f"{OWN_PROPERTY}tracked": "all" if not _has_chosen(feed) else ", ".join(tracked_columns(feed)),
    }
    with_statistics = {"delta.dataSkippingStatsColumns": ",".join((*searched_columns(feed), *_SEARCHED))}
    columns = ", ".join(f"{name} {kind}" for name, kind in {**_columns(feed), "_applied_at": "TIMESTAMP"}.items())
    return TableSpec(name=feed.history_table, columns=columns, properties={**UPSERTED, **with_statistics, **made_by})


def _has_chosen(feed: Feed) -> bool:
    return bool(feed.track_history_columns or feed.track_history_except)


def version_type(feed: Feed) -> str:
    """The Spark type of a version, all but when it was applied."""
    return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in _columns(feed).items())}>"


def version_columns(feed: Feed) -> str:
    """The same as columns."""
    return ", ".join(f"{name} {kind}" for name, kind in _columns(feed).items())


def _columns(feed: Feed) -> dict[str, str]:
    position = position_type(feed)
    return {
        **{column: declared.type.ddl for column, declared in feed.columns.items()},
        **dict.fromkeys(("_from_position", "_to_position", "_last_position"), position),
        **{"_valid_from": "TIMESTAMP", "_valid_to": "TIMESTAMP", "_is_current": "BOOLEAN", "_is_deleted": "BOOLEAN"},
        **{"_op": "STRING", "_topic": "STRING", "_partition": "INT", "_offset": "BIGINT"},
        **({"_unresolved_columns": "ARRAY<STRING>"} if has_unresolved(feed) else {}),
    }


def merge_versions(
    table: DeltaTable, versions: DataFrame, feed: Feed, *, between: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Put these versions in the place of those that begin where they do, or beside the others.

    `between`: of keys that are whole numbers, the lowest and the highest that `versions` have.
    """
    same = [
        _same_version(feed),
        *[f"target.{key} BETWEEN {lowest} AND {highest}" for key, (lowest, highest) in (between or {}).items()],
    ]
    (
        table.alias("target")
        .merge(versions.withColumn("_applied_at", F.current_timestamp()).alias("version"), " AND ".join(same))
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )


def replace_versions(table: DeltaTable, versions: DataFrame, keys: DataFrame, feed: Feed) -> None:
    """Have these versions of these keys (the columns of the key, distinct), and no others."""
    identity = [*feed.keys, "_from_position"]
    columns = versions.columns
    stored = table.toDF().join(keys, on=[*feed.keys], how="left_semi").select(*identity)
    gone = stored.join(versions.select(*identity), on=identity, how="left_anti").withColumn("is_gone", F.lit(True))
    found = versions.withColumn("is_gone", F.lit(False)).unionByName(gone, allowMissingColumns=True)
    is_other = " OR ".join(f"NOT (version.`{name}` <=> target.`{name}`)" for name in columns)
    values: dict[str, str | Column] = {f"`{name}`": f"version.`{name}`" for name in columns}
    values["_applied_at"] = "current_timestamp()"
    (
        table.alias("target")
        .merge(found.alias("version"), _same_version(feed))
        .whenMatchedDelete(condition="version.is_gone")
        .whenMatchedUpdate(condition=is_other, set=values)
        .whenNotMatchedInsert(condition="NOT version.is_gone", values=values)
        .execute()
    )


def _same_version(feed: Feed) -> str:
    same_key = [f"target.{key} = version.{key}" for key in feed.keys]
    return " AND ".join([*same_key, "target._from_position = version._from_position"])


def ended_by(stored: DataFrame, cutoffs: Sequence[Cutoff], feed: Feed) -> DataFrame:
    """The current versions (`stored`: the table) that end at one of these cutoffs, and the deletes that begin there."""
    above = f"filter({_cutoffs(cutoffs, feed)}, one -> one.position > _last_position)"
    ended = (
        stored.drop("_applied_at")
        .where("_is_current AND NOT _is_deleted")
        .withColumn("cutoff", F.expr(f"array_min({above})"))
        .where("cutoff IS NOT NULL")
        .withColumn("at", F.expr("coalesce(greatest(timestamp_millis(cutoff.source_ms), _valid_from), _valid_from)"))
    )
    names = stored.drop("_applied_at").columns
    end = {"_to_position": F.col("cutoff.position"), "_valid_to": F.col("at"), "_is_current": F.lit(False)}
    begin: dict[str, Column] = {
        **{name: F.lit(None).cast(feed.columns[name].type.ddl) for name in feed.columns if name not in feed.keys},
        **dict.fromkeys(("_from_position", "_last_position"), F.col("cutoff.position")),
        **{"_valid_from": F.col("at"), "_is_deleted": F.lit(True)},
        **{"_op": F.expr("IF(cutoff.reason = 'truncate', 't', 'r')")},
        **{f"_{name}": F.col(f"cutoff.at_{name}") for name in ("topic", "partition", "offset")},
        **({"_unresolved_columns": F.lit(None).cast("array<string>")} if has_unresolved(feed) else {}),
    }
    return ended.withColumns(end).select(*names).unionByName(ended.withColumns(begin).select(*names))


def crossed_by(stored: DataFrame, cutoffs: Sequence[Cutoff], feed: Feed) -> DataFrame:
    """The versions (`stored`: the table) that a cutoff falls into behind which more of their key was applied already.

    Its record came late. That of a snapshot does where its last row is of a later batch than what changed meanwhile; a
    row that the snapshot has lives through it.
    """
    *log, _offset = position_fields(feed)

    def coordinates(position: str) -> str:
        return f"struct({', '.join(f'{position}.{name}' for name in log)})"

    at, last, to = (coordinates(position) for position in ("one.position", "_last_position", "_to_position"))
    is_later = f"({last} > {at} OR (_last_position < one.position AND _to_position IS NOT NULL))"
    is_within = f"_from_position < one.position AND (_to_position IS NULL OR {at} < {to})"
    return stored.where(f"NOT _is_deleted AND exists({_cutoffs(cutoffs, feed)}, one -> {is_within} AND {is_later})")


def _cutoffs(cutoffs: Sequence[Cutoff], feed: Feed) -> str:
    """SQL: the cutoffs of a row of the table, by their position."""
    by_topic: dict[str, list[dict[str, object]]] = {}
    for cutoff in cutoffs:
        by_topic.setdefault(cutoff.topic or "", []).append(cutoff.as_json())
    kind = (
        f"MAP<STRING, ARRAY<STRUCT<position: {position_type(feed)}, reason: STRING, at_topic: STRING,"
        " at_partition: INT, at_offset: BIGINT, source_ms: BIGINT>>>"
    )
    shard = "_topic" if feed.is_sharded else "''"
    return f"try_element_at(from_json('{json.dumps(by_topic)}', '{kind}'), {shard})"
