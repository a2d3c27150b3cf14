"""Moving a connector's offsets: only while it is stopped (Kafka Connect), and what it means for the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from connectors.cluster import SETTLE_SECONDS, State, settled
from connectors.connectors import Connector
from connectors.offsets import Direction
from connectors.rest import Worker
from lakehouse.errors import ConnectError, LakehouseError

Say = Callable[[str], None]


def while_stopped(
    worker: Worker, name: str, change: Callable[[], None], *, say: Say, seconds: float = SETTLE_SECONDS
) -> State:
    """Stop the connector, change it, let it go on; its state then. One that was stopped before stays stopped.

    Each step is said before it is taken. Raises ConnectError, which says in what state the connector is left and how it
    goes on, when a step fails.
    """
    was_stopped = worker.status(name).get("connector", {}).get("state") == "STOPPED"
    left = "as it was"
    try:
        if not was_stopped:
            say(f"stopping {name}")
            left = "stopped, or about to be, with its offsets as they were"
            worker.stop(name)
            state = settled(worker, name, seconds=seconds, is_there=is_stopped, pause=worker.pause)
            if not is_stopped(state):
                raise ConnectError(
                    f"{name} has not stopped within {seconds:.0f} s: it is {state.state}.", remedy="Look at its worker."
                )
        say("changing its offsets")
        left = "stopped, with its offsets as they were, or changed already"
        change()
        if was_stopped:
            say("it was stopped before, and stays so")
            return settled(worker, name, seconds=seconds, pause=worker.pause)
        say("letting it go on")
        left = "stopped, with its offsets changed"
        worker.resume(name)
        left = "about to go on, with its offsets changed"
        return settled(
            worker, name, seconds=seconds, is_there=lambda state: state.is_settled and not is_stopped(state),
            pause=worker.pause,
        )  # fmt: skip
    except LakehouseError as error:
        raise ConnectError(
            f"{error.what} The connector {name} is left {left}.",
            remedy=f"{error.remedy} Look: lakehouse connect offsets show {name}; let it go on: "
            f"lakehouse connect resume {name}",
        ) from None


def is_stopped(state: State) -> bool:
    """Whether the connector is stopped and no task of it is left."""
    return state.state == "STOPPED" and not state.tasks


def of_moves(connector: Connector, directions: Iterable[Direction]) -> tuple[str, ...]:
    """What follows from setting offsets, the gravest direction first."""
    found = set(directions)
    said: list[str] = []
    if "unknown" in found:
        said.append(
            "The two positions cannot be compared. Read on for both directions, and prepare for the graver: forward."
        )
    if found & {"forward", "unknown"}:
        said += forward(connector)
    if found & {"back", "unknown"}:
        said += back(connector)
    return tuple(said) or ("Nothing moves: the connector goes on where it stands.",)


def forward(connector: Connector) -> tuple[str, ...]:
    """What follows from a move forward: changes in between are lost."""
    said = ["Forward: the changes in between are never sent, and silver differs from the source without a sign of it."]
    if connector.routes_outbox:
        said.append(
            "The outbox's events in between are lost to silver. Rows that are still in the outbox table come again by "
            f"a new snapshot: lakehouse connect offsets reset {connector.name}"
        )
    else:
        said.append(_repaired_by_a_snapshot(connector))
    return tuple(said)


def _repaired_by_a_snapshot(connector: Connector) -> str:
    tables = ", ".join(connector.listed("table.include.list")) or "its tables"
    whole = f"A new full snapshot repairs it, deleted rows too: lakehouse connect offsets reset {connector.name}."
    signals = connector.get("signal.data.collection")
    if not signals:
        return whole
    part = f"An incremental snapshot of {tables} by a row in {signals} (docs/connect.md) brings back what was "
    return f"{whole} {part}inserted and updated meanwhile, and does not state what was deleted."


def back(connector: Connector) -> tuple[str, ...]:
    """What follows from a move back: records come again, where the server still has them."""
    how = "by their id" if connector.routes_outbox else "by their position in the source's log"
    said = [f"Back: records come again. Silver knows them {how} and drops them; nothing has to be done after it."]
    if connector.database == "postgresql":
        said.append(
            "PostgreSQL sends again only what is after confirmed_flush_lsn of the slot: SELECT confirmed_flush_lsn "
            f"FROM pg_replication_slots WHERE slot_name = '{connector.slot}'; A position before it cannot be had: with "
            "snapshot.mode=when_needed the connector makes a new full snapshot instead, with others it fails."
        )
    else:
        said.append(
            "The server must still have that binlog: SHOW BINARY LOGS; With snapshot.mode=when_needed the "
            "connector makes a new full snapshot when it has not, with others it fails. The schema history must reach "
            "back as far."
        )
    return tuple(said)


def of_reset(connector: Connector) -> tuple[str, ...]:
    """What follows from forgetting all offsets."""
    mode = connector.get("snapshot.mode", "initial")
    said: list[str] = []
    if mode in {"when_needed", "initial", "always"}:
        said.append(f"Reset: with snapshot.mode={mode} the connector makes a new full snapshot when it goes on.")
    else:
        said.append(
            f"Reset: with snapshot.mode={mode} the connector makes no new snapshot of the rows: what changed since it "
            "was stopped may never be sent. Deploy it with when_needed first."
        )
    if connector.routes_outbox:
        said.append(
            "Every row that is still in the outbox table is sent again: silver knows the events by their id and drops "
            "them. Events whose rows were removed before they were sent are lost."
        )
    else:
        said.append(
            "Rows come again. Silver drops what it knows, and once the snapshot is complete it removes the rows that "
            "were deleted in the source meanwhile; until then they stand."
        )
    if connector.database == "postgresql":
        said.append(
            f"The slot {connector.slot} stays, and is gone on from. Was it lost (SELECT wal_status FROM "
            f"pg_replication_slots WHERE slot_name = '{connector.slot}')? Drop it while the connector is suspended: "
            f"SELECT pg_drop_replication_slot('{connector.slot}'); The connector makes a new one."
        )
    if connector.reads_binlog:
        said.append("The schema history is written again by the snapshot, into the same topic.")
    return tuple(said)
