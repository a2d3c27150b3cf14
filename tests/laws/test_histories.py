"""The law of the changelog: whatever the batches, their order and the duplicates, silver is the source's table.

Random histories are told by a model of a database, its log, its connector and its topic, and each is read in one of
several ways.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import functions as F

from demo.check import as_text
from lakehouse.contracts.topics import SourceKind
from tests.support.laws.histories import ALL_WAYS, HISTORIES, SEED, SOURCES, Histories, read_histories
from tests.support.laws.played import Played
from tests.support.model.batches import Way
from tests.support.model.history import History, features_of
from tests.support.sharded import CASE

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Silver:
    """What silver made of all histories of a source: its rows by history and key, and what it has quarantined."""

    rows: Mapping[str, Mapping[int, Mapping[str, Any]]]
    quarantined: Mapping[str, frozenset[tuple[int, int]]]


@pytest.fixture(scope="module")
def silver(played: Played, histories: Histories) -> Mapping[str, Silver]:
    """By source, behind the batch in which all is read, once more what was read before."""
    found = {}
    for source, cases in histories.of_source.items():
        feed = played.contracts.feeds[f"{source}_orders"]
        table = played.table(feed.name).withColumn("id", F.concat_ws(" ", CASE, "order_id"))
        rows: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for row in as_text(table, ["id", *feed.columns, "_is_deleted"], key="id").values():
            if row[CASE] in cases:
                rows[row[CASE]][int(row["order_id"])] = row
        quarantined = defaultdict(set)
        for entry in played.quarantine(source).collect():
            quarantined[entry["topic"].split(".")[1]].add((entry["partition"], entry["offset"]))
        found[source] = Silver(rows, {case: frozenset(offsets) for case, offsets in quarantined.items()})
    return found


@pytest.mark.parametrize("way", ALL_WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("source", SOURCES)
def test_silver_is_the_table_that_the_history_ends_with(
    silver: Mapping[str, Silver], histories: Histories, seed: int, source: str, way: Way
) -> None:
    broken = []
    for case, (history, read_by) in histories.of_source[source].items():
        if read_by is way:
            rows = silver[source].rows.get(case, {})
            broken += [
                (case, sorted(history.features), key, found, row)
                for key, row in history.rows.items()
                if (found := _as_model(rows.get(key))) != row
            ]
    assert not broken, f"LAWS_SEED={seed}: {_summary(broken)}"


def test_every_feature_is_in_a_history_of_every_kind() -> None:
    """Of the default ones: so few that a feature could be missing by chance."""
    features: dict[SourceKind, set[str]] = defaultdict(set)
    for cases in read_histories(SEED).of_source.values():
        for history, _way in cases.values():
            features[history.kind] |= history.features
    assert features == {kind: set(features_of(kind)) for kinds in SOURCES.values() for kind in kinds}


def test_batches_were_folded_on_the_driver_and_in_partitions(played: Played, histories: Histories) -> None:
    assert played.transports.keys() == {True, False}, sorted(histories.of_source)


def _summary(broken: Sequence[tuple[Any, ...]]) -> str:
    histories = {case: features for case, features, *_rest in broken}
    features = Counter(feature for one in histories.values() for feature in one)
    return f"{len(broken)} rows of {len(histories)} histories differ; {features.most_common()}; some: {broken[:3]}"


def _as_model(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A silver row in the model's form; None when it is deleted, or was never there."""
    if found is None or found["_is_deleted"]:
        return None
    return {name: value for name, value in found.items() if not name.startswith("_") and name not in {CASE, "id"}}


@pytest.mark.parametrize("source", SOURCES)
def test_no_row_stands_for_nothing(silver: Mapping[str, Silver], histories: Histories, seed: int, source: str) -> None:
    strange = [
        (case, key)
        for case, rows in silver[source].rows.items()
        for key in rows
        if key not in histories.of_source[source][case][0].rows
    ]
    assert not strange, f"LAWS_SEED={seed}"


@pytest.mark.parametrize("source", SOURCES)
def test_quarantine_has_the_bad_records_and_no_other(
    silver: Mapping[str, Silver], histories: Histories, seed: int, source: str
) -> None:
    different = {
        case: (sorted(history.features), sorted(found), sorted(history.bad_offsets))
        for case, (history, _way) in histories.of_source[source].items()
        if not frozenset(history.bad_offsets) - _far_ahead(history)
        <= (found := silver[source].quarantined.get(case, frozenset()))
        <= frozenset(history.bad_offsets) | _far_ahead(history)
    }
    assert not different, f"LAWS_SEED={seed}: {len(different)}: {list(different.items())[:3]}"


def _far_ahead(history: History) -> frozenset[tuple[int, int]]:
    """The forged records, and those that repeat them: where a new file or epoch follows, nothing tells them apart."""
    return frozenset(
        (record["partition"], record["offset"])
        for record in history.records
        if record["value"] and "9000000000000000000" in record["value"]
    )


@pytest.mark.parametrize("source", SOURCES)
def test_the_position_of_a_key_only_grows(played: Played, histories: Histories, seed: int, source: str) -> None:
    table = f"silver.{source}_orders"
    commits = played.warehouse.changes(table, first=1, last=played.warehouse.version(table))
    of_row = (CASE, "order_id", "_commit_version")
    # In the source: a tombstone that deletes keeps its own offset, which a copy of the change before it may be behind.
    in_source = F.col("_position").dropFields("kafka_offset")
    before = commits.where("_change_type = 'update_preimage'").select(*of_row, in_source.alias("_position"))
    after = commits.where("_change_type = 'update_postimage'").select(*of_row, in_source.alias("new_position"))
    not_forged = [
        case for case, (history, _way) in histories.of_source[source].items() if "forged" not in history.features
    ]
    updates = before.join(after, on=list(of_row), how="inner").where(F.col(CASE).isin(*not_forged))
    rows = updates.select("*", (F.col("new_position") >= F.col("_position")).alias("is_growing")).collect()
    falling = [
        (row[CASE], row["order_id"], row["_position"], row["new_position"]) for row in rows if not row["is_growing"]
    ]
    assert not falling, f"LAWS_SEED={seed}: {falling[:3]}"
    assert len(rows) > HISTORIES, f"LAWS_SEED={seed}"
