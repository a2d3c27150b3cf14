"""Gold's state in `ops.batches`: read once a process, written in one commit a run."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import functions as F

from gold.state import GoldState, read_state
from lakehouse.batches import append, batches
from lakehouse.delta.tables import Warehouse


class StateStore:
    """Gold's state: read when it is first asked for, then remembered.

    For a process while it has the lock, and nobody else writes.
    """

    def __init__(self) -> None:
        self._state: GoldState | None = None
        self._sequence = 0

    def read(self, warehouse: Warehouse) -> GoldState:
        """The state that was written last; that of a gold without a past where there is none.

        Raises TableError when there is no table of states, or when the state is not one that this release can read.
        """
        if self._state is None:
            self._state, self._sequence = _read(warehouse)
        return self._state

    def write(self, warehouse: Warehouse, state: GoldState, *, started_at: datetime | None = None) -> None:
        """Write the state down, in one commit; one that was written down already is none."""
        if state.model_dump_json() == self.read(warehouse).model_dump_json():
            return
        sequence = self._sequence + 1
        row = {"sequence": sequence, "state": state.model_dump_json()}
        append(warehouse, "gold", [row], started_at=started_at)
        self._state, self._sequence = state, sequence


def _read(warehouse: Warehouse) -> tuple[GoldState, int]:
    """The last state and its number."""
    states = batches(warehouse, "gold").where("state IS NOT NULL")
    row = states.agg(F.max_by("state", "sequence").alias("state"), F.max("sequence").alias("sequence")).first()
    if row is None or row["state"] is None:
        return GoldState(), 0
    return read_state(row["state"]), int(row["sequence"])
