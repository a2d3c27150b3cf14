"""Joins of silver tables, as `gold/tables.yaml` declares them. Imports without pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.parts.names import Name


class LeftJoin(Model):
    """A silver table that a join takes columns from: of each row of the join the one row that `by` finds."""

    table: Name
    """The silver table, by the name of its feed."""
    by: dict[Name, Name] = Field(min_length=1)
    """Column of its key: the column of the join's own `table` that has the same value. It has every column of the key,
    so at most one row is found. NULL finds none."""
    columns: dict[Name, Name] = Field(min_length=1)
    """Column of the join: the column of this table that it is. NULL where no live row is found."""

    @model_validator(mode="before")
    @classmethod
    def _on_is_no_key(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and any(key is True or key == "on" for key in value):
            raise ValueError("write `by` in place of `on`, which YAML reads as true")
        return value


class Join(Model):
    """A table of gold with one row for each live row of a silver table, and columns of others that it refers to."""

    table: Name
    """The silver table, by the name of its feed. Its key is the join's key."""
    columns: dict[Name, Name] = Field(min_length=1)
    """Column of the join: the column of `table` that it is. All columns of the key are among them."""
    left_join: tuple[LeftJoin, ...] = Field(min_length=1, strict=False)
    """The other silver tables. A row stays when they have none that fits."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Every silver table that it reads, once, its own first."""
        return tuple(dict.fromkeys((self.table, *(one.table for one in self.left_join))))

    @property
    def parts(self) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """The table and its columns, then those of the others: column of the join, column of the table."""
        return ((self.table, self.columns), *((one.table, one.columns) for one in self.left_join))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Its columns, in their order."""
        return tuple(column for _table, columns in self.parts for column in columns)

    def keys(self, of_table: tuple[str, ...]) -> tuple[str, ...]:
        """Its key: the columns that are the key `of_table`, in that order."""
        column_of = {source: column for column, source in reversed(self.columns.items())}
        return tuple(column_of[key] for key in of_table)
