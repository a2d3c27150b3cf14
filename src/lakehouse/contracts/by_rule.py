"""A table that a rule has made: what is known of it beside the rule. Kept as JSON, a version a change of it."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.parts.column_types import STRING
from lakehouse.contracts.parts.names import PLACEHOLDERS, Name, TopicName, as_name
from lakehouse.contracts.parts.schema_policy import Kind
from lakehouse.contracts.tables import Column, SilverTable
from lakehouse.contracts.topics import FeedTopics, Source, TableRule

KnownBy = Literal["schema of the messages", "topic of schema changes", "values"]


class MadeColumn(Model):
    """A column that a rule has made, and the types of the source that it is accepted to come with.

    `came_as`: what the messages' schemas or the database say it is, in their words; empty where only values are known.
    """

    declared: Column
    came_as: tuple[str, ...] = Field(default=(), strict=False)


class SchemaChange(Model):
    """A change that events or definitions have shown of a table."""

    kind: Kind
    mark: str
    """Names it, in all records that show it (silver.decode.drift)."""
    field: str
    what: str
    """What it is, in words."""
    is_undefined: bool = False
    """Whether the field is new, and nothing says yet what it is."""
    is_beyond: bool = False
    """Whether the type is one of the same kind, and its values are written otherwise."""


class DiscoveredTable(Model):
    """A table that a rule has made, or could not make yet: then it has no columns, and `why` says what is missing."""

    source: Name
    rule: Name
    name: Name
    """Of the feed and of its silver table."""
    topic: TopicName
    table: str
    """As the source block names it, `database.table`; empty while it is not known."""
    known_by: KnownBy
    """What says its types."""
    keys: tuple[Name, ...] = Field(default=(), strict=False)
    """Without one the table is the list of its changes."""
    columns: dict[Name, MadeColumn] = Field(default_factory=dict)
    why: str = ""
    may_be_accepted: bool = True
    """Whether a person can let it go on for all that `why` says."""
    waiting: tuple[SchemaChange, ...] = Field(default=(), strict=False)
    """The changes that it waits for an operator to approve."""
    approved: tuple[str, ...] = Field(default=(), strict=False)
    """The marks of all changes that an operator has approved, in order."""
    version: int = Field(default=1, ge=1)

    @property
    def is_made(self) -> bool:
        """Whether it is known what the table is."""
        return bool(self.columns)

    def feed(self, rule: TableRule) -> FeedTopics:
        """Its feed, as bronze/topics.yaml would declare it."""
        tables = (self.table,) if self.table else ()
        return FeedTopics(topics=(self.topic,), envelope="table", tables=tables, **rule.options)

    def silver_table(self, rule: TableRule) -> SilverTable:
        """Its table, as silver/tables.yaml would declare it; of one that is not made a list of changes of no column."""
        columns = {name: column.declared for name, column in self.columns.items()}
        return SilverTable(
            keys=self.keys,
            append_only=not self.keys,
            sequence_by="source_position",
            scd_type=rule.scd_type if self.keys else 1,
            max_reject_ratio=rule.max_reject_ratio,
            max_record_bytes=rule.max_record_bytes,
            on_schema_change=rule.policy_of(self.table),
            columns=columns or {"nothing": Column(type=STRING, optional=True)},
        )


def may_make(source: Source, name: str) -> bool:
    """Whether a rule of the source may make a table of this name: what is known before there is an event."""
    # A name that is taken has a number behind it.
    names = {name, re.sub(r"_\d+$", "", name)}
    return any(
        one in rule.names.values() or _may_be_of(rule.name, one) for rule in source.by_rule.values() for one in names
    )


def _may_be_of(route: str, name: str) -> bool:
    """Whether the fixed parts of the route stand in the name, in their order."""
    placeholders = "|".join(rf"\{{{one}\}}" for one in PLACEHOLDERS)
    # Of a letter before each: a number is the beginning of a name only where it is the beginning of the route.
    first, *others = re.split(placeholders, route.replace("<>", "{table}"))
    fixed = [as_name(first), *(as_name(f"x{part}")[1:].strip("_") for part in others)]
    # What stands for a placeholder may be nothing that a name can have.
    return re.fullmatch("_?.*_?".join(map(re.escape, fixed)), name) is not None
