"""A commit of a table, as jobs remember it that go on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from lakehouse.quality.counting import Counts


@dataclass(frozen=True)
class Version:
    """A commit of one table. `created_ms` distinguishes a table from a later one of the same name.

    These do not identify a version: `size_in_bytes` of its data, which is not stored; and what gate 2 has counted of
    it, where it has: its `rows`, and the `counts` of rules about the whole table.
    """

    table: str
    created_ms: int
    number: int
    size_in_bytes: Annotated[int, Field(exclude=True)] = field(default=0, compare=False)
    rows: int | None = field(default=None, compare=False)
    counts: Mapping[str, Counts] = field(default_factory=dict, compare=False)

    def goes_on_to(self, later: Version) -> bool:
        """Whether `later` is a later commit of this very table: not of one rebuilt, or restored to before this."""
        return self.created_ms == later.created_ms and self.number <= later.number
