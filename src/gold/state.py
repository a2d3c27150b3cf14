"""How far gold has come: all that a run of gold or of publish knows of earlier runs.

One row of `ops.batches` has all of it, as JSON; the one that was written last holds (gold.state_store).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field, ValidationError

from lakehouse.contracts.parts.base import Model
from lakehouse.errors import TableError
from lakehouse.versions import Version


class ConsumedVersions(Model):
    """The commits of tables from which something was computed, and its `definition` then.

    They count under that definition alone: another one makes other rows of the same commits.
    """

    definition: str = ""
    versions: dict[str, Version] = Field(default_factory=dict)
    """By table."""

    def under(self, definition: str) -> Mapping[str, Version]:
        """By table the commits that were consumed under this definition."""
        return self.versions if definition == self.definition else {}

    def with_later(self, definition: str, later: Iterable[Version]) -> ConsumedVersions:
        """These commits, and those of other tables that were consumed under the same definition."""
        versions = {**self.under(definition), **{one.table: one for one in later}}
        return ConsumedVersions(definition=definition, versions=versions)


NOTHING_CONSUMED = ConsumedVersions()


class GoldState(Model):
    """What gold, its gates, marts and joins have consumed, and which sources its gates block."""

    orders: ConsumedVersions = NOTHING_CONSUMED
    """Silver's tables, in `gold.unified_orders`."""
    passed: ConsumedVersions = NOTHING_CONSUMED
    """Silver's tables as they last passed gate 2, by its rules."""
    publishable: dict[str, Version] = Field(default_factory=dict)
    """By source the commit of gold up to which it may be published."""
    proven: dict[str, ConsumedVersions] = Field(default_factory=dict)
    """By source the commits of gold and of silver's tables with which it last passed, by the rules of publication."""
    blocked: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By gate the sources that it blocks: TABLES from gold, PUBLICATION from the topic."""
    marts: dict[str, ConsumedVersions] = Field(default_factory=dict)
    """By mart gold, and the mart's own commit that holds it."""
    joins: dict[str, ConsumedVersions] = Field(default_factory=dict)
    """By join silver's tables."""

    def blocked_of(self, sources: Iterable[str]) -> dict[str, list[str]]:
        """Of these sources those that a gate blocks, by the gate."""
        found = {gate: [name for name in sources if name in blocked] for gate, blocked in self.blocked.items()}
        return {gate: names for gate, names in found.items() if names}


def read_state(stored: str) -> GoldState:
    """A state as it is stored. Raises TableError when another release has written it in a way that this one has not."""
    try:
        return GoldState.model_validate_json(stored)
    except ValidationError:
        raise TableError(
            "The last state of gold in ops.batches is not one that this release can read.",
            hint="Run the release that wrote it. Or delete the rows of layer gold: the next run computes gold whole.",
        ) from None
