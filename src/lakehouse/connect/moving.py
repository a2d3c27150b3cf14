"""Changing a connector's offsets: Kafka Connect allows it only while the connector is stopped."""

from __future__ import annotations

from collections.abc import Callable

from lakehouse.connect.cluster import SETTLE_SECONDS, State, settled
from lakehouse.connect.rest import Worker
from lakehouse.errors import ConnectError, LakehouseError

Say = Callable[[str], None]


def while_stopped(
    worker: Worker, name: str, change: Callable[[], None], *, say: Say, seconds: float = SETTLE_SECONDS
) -> State:
    """Stop the connector, change it, let it go on; its state then. One that was stopped before stays so.

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
