"""Connectors on a cluster: what a deployment would change, what the connector says of its options, and what runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import quote

from connectors.checking.findings import Part
from connectors.connectors import Connector, is_secret, secrets_of
from connectors.rest import PAUSE_SECONDS, Worker, exception_lines
from lakehouse.errors import ConnectorMissingError
from lakehouse.secrets import masked

Deployed = Literal["created", "changed", "unchanged"]
SETTLE_SECONDS = 60.0
# After a change the workers report the old tasks for a moment: a state counts once it was seen so often.
SEEN_TIMES = 3


class Change(Part):
    """What a deployment does to one connector. Keys only: a value may be a secret."""

    connector: str
    outcome: Deployed
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return "; ".join(f"{word}: {', '.join(keys)}" for word, keys in parts.items() if keys)


class FieldError(Part):
    """What a connector says against one of its options."""

    connector: str
    key: str
    what: str


class Task(Part):
    """A task of a connector."""

    number: int
    state: str
    worker: str
    trace: str = ""
    """The exceptions of a failed task, one a line, secrets hidden."""


class State(Part):
    """A connector as the cluster runs it."""

    connector: str
    state: str
    worker: str
    trace: str = ""
    tasks: tuple[Task, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether it, or one of its tasks, has failed."""
        return "FAILED" in {self.state, *(task.state for task in self.tasks)}

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing is still starting: it is paused, stopped or failed, or every task runs or has failed."""
        if self.state in {"PAUSED", "STOPPED", "FAILED"}:
            return True
        over = {task.state for task in self.tasks} <= {"RUNNING", "FAILED"}
        return self.state == "RUNNING" and bool(self.tasks) and over

    @property
    def first_line(self) -> str:
        """The first line of what went wrong; empty when nothing has."""
        traces = [self.trace, *(task.trace for task in self.tasks)]
        return next((trace.splitlines()[0] for trace in traces if trace), "")


def change_of(connector: Connector, running: Mapping[str, str] | None) -> Change:
    """What changes when the connector's options replace the running ones. `name` is no option of its own."""
    if running is None:
        return Change(connector=connector.name, outcome="created")
    old = {key: value for key, value in running.items() if key != "name"}
    new = {key: value for key, value in connector.config.items() if key != "name"}
    differs = tuple(sorted(key for key in old.keys() & new.keys() if old[key] != new[key]))
    return Change(
        connector=connector.name,
        outcome="unchanged" if old == new else "changed",
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=differs,
    )


def field_errors(connector: Connector, response: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """The errors in what Kafka Connect answers to a validation, without the values of options that may be secrets."""
    secrets = secrets_of(connector.config)
    found = []
    for one in response.get("configs") or ():
        value = one.get("value") or {}
        key = str(value.get("name") or (one.get("definition") or {}).get("name") or "")
        for error in value.get("errors") or ():
            what = "the value is refused" if is_secret(key) else masked(str(error), secrets)
            found.append(FieldError(connector=connector.name, key=key, what=what))
    return tuple(found)


def state_of(response: Mapping[str, Any], *, config: Mapping[str, str] | None = None) -> State:
    """A connector's state out of what Kafka Connect answers. `config` are its options, for the secrets in them."""
    secrets = secrets_of(config or {})

    def trace(part: Mapping[str, Any]) -> str:
        return "\n".join(exception_lines(masked(str(part.get("trace") or ""), secrets)))

    whole = response.get("connector") or {}
    return State(
        connector=str(response.get("name", "")),
        state=str(whole.get("state", "")),
        worker=str(whole.get("worker_id", "")),
        trace=trace(whole),
        tasks=tuple(
            Task(
                number=int(task.get("id", 0)),
                state=str(task.get("state", "")),
                worker=str(task.get("worker_id", "")),
                trace=trace(task),
            )
            for task in response.get("tasks") or ()
        ),
    )


def running_connectors(worker: Worker) -> tuple[Connector, ...]:
    """The connectors that the cluster has, as configurations."""
    return tuple(
        Connector(
            name=name,
            config={key: str(value) for key, value in ((response.get("info") or {}).get("config") or {}).items()},
            file=worker.url,
        )
        for name, response in sorted(worker.running().items())
    )


def states(worker: Worker) -> tuple[State, ...]:
    """The states of all connectors of the cluster, by name."""
    return tuple(
        state_of(response.get("status") or {"name": name}, config=(response.get("info") or {}).get("config"))
        for name, response in sorted(worker.running().items())
    )


def settled(
    worker: Worker,
    name: str,
    *,
    seconds: float = SETTLE_SECONDS,
    config: Mapping[str, str] | None = None,
    is_there: Callable[[State], bool] = lambda state: state.is_unchanged,
) -> State:
    """The connector's state once it has settled: seen SEEN_TIMES, one after the other. The last one when time is up.

    Bounded by the number of looks, a second apart, not by a clock. A connector that was just created may be unknown for
    a moment: then its state is empty.
    """
    seen = 0
    state = State(connector=name, state="", worker="")
    for _look in range(max(int(seconds / PAUSE_SECONDS), SEEN_TIMES)):
        try:
            state = state_of(worker.status(name), config=config)
        except ConnectorMissingError:
            state = State(connector=name, state="", worker="")
        seen = seen + 1 if is_there(state) else 0
        if seen >= SEEN_TIMES:
            break
        time.sleep(worker.pause_seconds)
    return state


def orphaned_resources(connector: Connector) -> tuple[str, ...]:
    """What stays when a connector is deleted, and what each costs, as sentences."""
    name = quote(connector.name, safe="")
    lines = [
        "Its topics and their records stay.",
        "Its offsets stay: a connector of the same name and prefix goes on from there. To delete them too, do it "
        f"first, by Kafka Connect's REST API: PUT /connectors/{name}/stop, then DELETE /connectors/{name}/offsets "
        "(docs/connect.md, Moving a connector).",
    ]
    if connector.database == "postgresql":
        publication = connector.get("publication.name", "dbz_publication")
        lines.append(
            f"The replication slot {connector.slot} on {connector.server} stays, and PostgreSQL keeps all WAL from "
            "here on until it is dropped. When no connector will go on from it, in the database "
            f"{connector.get('database.dbname')}: SELECT pg_drop_replication_slot({_literal(connector.slot)}); "
            "PostgreSQL refuses that while the slot is active, which it is for a moment after the delete."
        )
        lines.append(f"The publication {publication} stays; it costs nothing. DROP PUBLICATION {publication};")
    if connector.reads_binlog:
        lines.append(
            f"The schema history stays in {connector.get('schema.history.internal.kafka.topic')}: a connector that "
            "goes on from the offsets needs it."
        )
    return tuple(lines)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
