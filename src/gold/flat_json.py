"""Key and value of a record as flat JSON: what any reader understands without a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Times are instants with all their digits; a field without a value is null.
JSON_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC", "ignoreNullFields": "false"}


def key() -> Column:
    """`{"composite_key":"PG-1001"}`."""
    return F.to_json(F.struct("composite_key"))


def value(columns: Mapping[str, str]) -> Column:
    """The columns as one JSON object, in their order."""
    return F.to_json(F.struct(*columns), JSON_OPTIONS)
