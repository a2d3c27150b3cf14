"""The schemas of the registry: asked for once, kept in `ops.schemas`, so that a rebuild needs no registry.

A record of the Confluent wire format names its schema by an id, and an id means one schema for ever. So what a batch
needs is known before it is decoded: nothing goes to quarantine because a registry is away.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.errors import RegistryError
from lakehouse.kafka.registry import SchemaRegistry, registry
from lakehouse.registered import ABSENT, RegisteredSchema
from silver.batch.events import is_confluent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMAS = TableSpec(
    name="ops.schemas", columns="id BIGINT, kind STRING, schema STRING, registry STRING, fetched_at TIMESTAMP"
)
# Of a topic-partition and batch: a table has one, and another after a change of it. What are more are no ids.
MAX_IDS = 1000
# A registry's ids are numbers of 32 bits with a sign: of a greater one it takes the question for another address.
HIGHEST_ID = 2**31 - 1
NOT_THERE = RegisteredSchema(ABSENT, "")


@dataclass(frozen=True)
class Schemas:
    """Those that this warehouse has, by id (`known`, which grows), and the registry that is asked for others.

    `known` None: there are none, and no registry is named. Of one source: others learn at the same time, and what it
    knows is pickled with what Spark runs of its batches.
    """

    registry: SchemaRegistry | None = None
    known: dict[int, RegisteredSchema] | None = None

    def copied(self) -> Schemas:
        """The same for another source, which learns others."""
        return replace(self, known=None if self.known is None else {**self.known})

    def learn(self, warehouse: Warehouse, ids: Collection[int]) -> None:
        """Ask the registry for the ids that are not known, and keep what it has.

        One that it does not have is asked for again by the next batch that names it: it may come to be there. Raises
        RegistryError, RegistryGoneError where it does not answer.
        """
        known = self.known
        if known is None:
            return
        known.update(dict.fromkeys((number for number in ids if number > HIGHEST_ID), NOT_THERE))
        missing = sorted(number for number in {*ids} if number <= HIGHEST_ID and known.get(number) in (None, NOT_THERE))
        if not missing:
            return
        if self.registry is None:
            raise RegistryError(
                f"Records name schema {missing[0]}, which this warehouse does not have; no schema registry is named.",
                hint="Add schema_registry to the file of --kafka-config (docs/kafka.md), and run again: no record is "
                "skipped.",
            )
        with closing(registry(self.registry)) as client:
            answers = {number: client.schema(number) or NOT_THERE for number in missing}
        found = {number: one for number, one in answers.items() if one != NOT_THERE}
        if found:
            warehouse.ensure(SCHEMAS)
            rows = [
                {"id": number, "kind": one.kind, "schema": one.text, "registry": self.registry.url}
                for number, one in found.items()
            ]
            table = inline_rows(warehouse.spark, rows, "id BIGINT, kind STRING, schema STRING, registry STRING")
            warehouse.append(SCHEMAS.name, table.withColumn("fetched_at", F.current_timestamp()))
        known.update(answers)


def schemas(warehouse: Warehouse, connection: SchemaRegistry | None) -> Schemas:
    """What the warehouse has, with the registry of these settings."""
    if not warehouse.exists(SCHEMAS.name):
        return Schemas(connection, None if connection is None else {})
    rows = warehouse.read(SCHEMAS.name).select("id", "kind", "schema").distinct().collect()
    return Schemas(connection, {row["id"]: RegisteredSchema(row["kind"], row["schema"]) for row in rows})


def ids_in(column: str) -> str:
    """SQL, an aggregate: the ids of the schemas that values of this column name (Confluent's wire format)."""
    number = f"CAST(conv(hex(substring({column}, 2, 4)), 16, 10) AS BIGINT)"
    return f"slice(collect_set(IF({is_confluent(column)}, {number}, NULL)), 1, {MAX_IDS})"


def learn_of(warehouse: Warehouse, records: DataFrame, known: Schemas) -> None:
    """Know the schemas of these records: one query, where there are any schemas."""
    if known.known is not None:
        (row,) = records.selectExpr(f"{ids_in('key')} AS keys", f"{ids_in('value')} AS vals").collect()
        known.learn(warehouse, {*row["keys"], *row["vals"]})
