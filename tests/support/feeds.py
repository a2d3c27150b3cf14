"""Feeds whose tables do not matter."""

from __future__ import annotations

from typing import Any

from lakehouse.contracts.models import Feed


def feed(**given: Any) -> Feed:
    """A feed of a table, with the connector's defaults where nothing else is given."""
    told = {
        "name": "things",
        "source": "shop",
        "kind": "postgresql",
        "topics": ("shop.things",),
        "envelope": "table",
        "keys": ("id",),
        "sequence_by": "source_position",
        "columns": {"id": "BIGINT"},
    }
    return Feed.model_validate({**told, **given})
