"""`gold/tables.yaml` for tables that a rule makes: nothing is declared, and comments show how.

Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence

from cli.proposal.texts.text import comment, scalar
from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.topics import TableRule

_MAX_COLUMNS = 3


def gold_text(rule: TableRule, discovered: Sequence[DiscoveredTable]) -> list[str]:
    """The lines of the file, which declares no table and no topic. The examples in it name tables that there are."""
    keyed = sorted((one for one in discovered if one.keys and one.is_made), key=lambda one: one.name)
    if not keyed:
        return [
            *comment("No table is joined or published. Only a table with a key can be, and none has one yet."),
            "joins: {}",
            "upsert_topics: {}",
        ]
    return [
        *comment("Nothing is joined or published yet. Each example stands in place of the line above it."),
        "joins: {}",
        *_join(keyed),
        "upsert_topics: {}",
        *_upsert_topic(rule, keyed[0]),
    ]


_OF_ANY_TABLES = (
    "# joins:",
    "#   order_joined: # the table gold.order_joined",
    "#     table: order",
    "#     columns: # column of the join: column of the table; those of the key are among them",
    "#       order_id: id",
    "#     left_join:",
    "#       - table: customer",
    "#         by: { id: customer_id } # its key: the column of order",
    "#         columns:",
    "#           customer_name: name",
)


def _join(keyed: Sequence[DiscoveredTable]) -> list[str]:
    found = _reference(keyed)
    if found is None:
        return [*comment("No column seems to name a row of another table. A join of two such tables:"), *_OF_ANY_TABLES]
    table, column, other = found
    (key,) = other.keys
    own = [*table.keys, *(name for name in table.columns if name not in table.keys)][: len(table.keys) + _MAX_COLUMNS]
    joined = [name for name in other.columns if name != key][:_MAX_COLUMNS] or [key]
    taken = [f"{other.name}_{name}" for name in joined]
    return [
        *comment(f"A row for each of {table.name}, with columns of the row of {other.name} that {column} names:"),
        "# joins:",
        f"#   {table.name}_joined: # the table gold.{table.name}_joined",
        f"#     table: {table.name}",
        "#     columns: # column of the join: column of the table; those of the key are among them",
        *(f"#       {scalar(name)}: {scalar(name)}" for name in own),
        "#     left_join:",
        f"#       - table: {other.name}",
        f"#         by: {{ {scalar(key)}: {scalar(column)} }} # its key: the column of {table.name}",
        "#         columns:",
        *(f"#           {scalar(name)}: {scalar(of)}" for name, of in zip(taken, joined, strict=True)),
    ]


def _reference(keyed: Sequence[DiscoveredTable]) -> tuple[DiscoveredTable, str, DiscoveredTable] | None:
    """A table, its column that seems to refer to the key of another, and that one; by the names of both."""
    for other in keyed:
        if len(other.keys) != 1:
            continue
        (key,) = other.keys
        plain = other.table.rsplit(".", 1)[-1].lower()
        names = {f"{plain}_{key}", f"{plain.removesuffix('s')}_{key}", *([key] if key != "id" else [])}
        for table in keyed:
            for name, column in table.columns.items():
                is_of_type = column.declared.type == other.columns[key].declared.type
                if table is not other and name in names and is_of_type and (name,) != table.keys:
                    return table, name, other
    return None


def _upsert_topic(rule: TableRule, table: DiscoveredTable) -> list[str]:
    # Bronze must not read it.
    names = (f"lakehouse.{table.name}", f"published.{table.name}.rows")
    topic = next((name for name in names if not rule.has_topic(name)), names[-1])
    return [
        *comment(f"The rows of {table.name} as they are, in a compacted topic; a deleted one has a null value:"),
        "# upsert_topics:",
        f"#   {table.name}:",
        f"#     table: silver.{table.name} # or gold.<join>",
        f"#     topic: {topic} # created, compacted, when it is absent",
        "#     value_fields: except_key # or all: the columns of the key stand in the value too",
        "#     partitions: 3",
        "#     replication_factor: 1 # as many copies as your other topics have: check",
    ]
