"""Where the tables of a deployment are, as plain data: a command knows it before it needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse

# The schemas of every warehouse, by the names that the code and the documents use. `clean` has views only.
SCHEMAS = ("bronze", "silver", "clean", "gold", "quality", "ops")


@dataclass(frozen=True)
class Address:
    """Where the tables and checkpoints of one deployment are: plain data, which travels with a stream.

    `location` is a path or URI (tables are in `<location>/<schema>/<table>`) or, without any slash, the name of a
    catalog. `checkpoints` is a path in both cases. `schemas`: what schemas are called there, where not as in SCHEMAS.
    """

    location: str
    checkpoints: str
    schemas: Mapping[str, str] = field(default_factory=dict)

    def open(self, spark: SparkSession) -> Warehouse:
        """The warehouse, in a session."""
        from lakehouse.delta.tables import Warehouse

        return Warehouse(spark, self.location, self.checkpoints, self.schemas)
