"""Which tables can keep the history of their rows, and where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from lakehouse.contracts.checks.references import mistakes
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import SilverTable
from tests.support.feeds import feed

TABLE = {
    "keys": ("id",),
    "sequence_by": "source_position",
    "scd_type": 2,
    "columns": {"id": "BIGINT", "name": "STRING", "rank": "BIGINT"},
}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"scd_type": 1, "track_history_columns": ("name",)}, "are of `scd_type: 2`"),
        ({"scd_type": 1, "track_history_except": ("name",)}, "are of `scd_type: 2`"),
        ({"track_history_columns": ("name",), "track_history_except": ("rank",)}, "either `track_history_columns` or"),
        ({"sequence_by": "kafka_offset"}, "needs `keys` and `sequence_by: source_position`"),
        ({"keys": (), "append_only": True}, "needs `keys` and `sequence_by: source_position`"),
        ({"track_history_columns": ("name", "nosuch")}, "could be tracked: nosuch "),
        ({"track_history_except": ("id",)}, "could be tracked: id "),
    ],
)
def test_what_cannot_have_a_history_is_refused(given: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        SilverTable.model_validate({**TABLE, **given})


def test_a_table_with_a_history_has_a_second_table() -> None:
    assert feed().silver_tables == ("silver.things",)
    assert feed(scd_type=2).silver_tables == ("silver.things", "silver.things_history")
    assert SilverTable.model_validate({**TABLE, "track_history_except": ("rank",)}).has_history


def test_no_feed_has_the_name_of_a_history(contracts: Contracts) -> None:
    tables, source = contracts.silver.tables, contracts.topics.sources["postgres"]
    kept = SilverTable.model_validate({**tables["postgres_orders"].model_dump(), "scd_type": 2})
    feeds = {**source.feeds, "postgres_orders_history": source.feeds["postgres_orders"]}
    sources = {**contracts.topics.sources, "postgres": source.model_copy(update={"feeds": feeds})}
    topics = contracts.topics.model_copy(update={"sources": sources})

    def said(table: SilverTable) -> list[str]:
        both = {**tables, "postgres_orders": table, "postgres_orders_history": tables["postgres_orders"]}
        silver = contracts.silver.model_copy(update={"tables": both})
        found = mistakes(contracts.model_copy(update={"topics": topics, "silver": silver}))
        return [one.what for one in found if "is where the history of" in one.what]

    assert said(kept) == ["silver.postgres_orders_history is where the history of postgres_orders is"]
    assert said(tables["postgres_orders"]) == []
