"""`on_schema_change`: what becomes of a table whose source changes its columns, by the kind of change."""

from __future__ import annotations

from typing import Literal

from lakehouse.contracts.parts.base import Model

Policy = Literal["evolve", "suspend", "quarantine"]
Kind = Literal["add", "widen", "narrow", "drop", "rename", "retype", "key"]


class OnSchemaChange(Model):
    """evolve: the table goes on with the change. suspend: it waits until an operator approves it. quarantine: it goes
    on as it is, and the records that show the change go to quarantine.

    By default nothing is lost and nothing stops that need not: what only adds evolves, and all else suspends. A column
    that evolves keeps all that it has: of one that is gone, later changes leave NULL.
    """

    add: Policy = "evolve"
    """A column comes new. A table of a contract leaves what its contract does not name, unless this says otherwise."""
    widen: Policy = "evolve"
    """A column has a wider type, which its type in the table holds."""
    narrow: Policy = "suspend"
    """A column has a narrower type of the same kind."""
    drop: Policy = "suspend"
    """A column is gone, and none comes new."""
    rename: Policy = "suspend"
    """A column is gone, and another one comes new: only an operator can say whether it is the same. evolve: it is taken
    for another column."""
    retype: Policy = "suspend"
    """A column has another type, or a wider one than its type in the table holds."""
    key: Policy = "suspend"
    """The key of the records has other columns than that of the table: rows that differ would be one. evolve: of a
    contract alone, whose key then counts."""

    def of(self, kind: Kind) -> Policy:
        """What becomes of a change of this kind."""
        found: Policy = getattr(self, kind)
        return found
