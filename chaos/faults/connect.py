"""Faults of Kafka Connect, its connectors and the schema registry."""

from __future__ import annotations

import json
import time

import requests

from chaos.faults.fault import fault
from chaos.world import SOURCES, World, drop_slot, hanging

AREA = "connect"


@fault(AREA, "kill -9 of Kafka Connect while it writes, before or after it has stored its offsets")
def connect_killed(world: World) -> None:
    """Records come again; silver knows them."""
    with world.writing():
        time.sleep(world.random.uniform(0, 1.5))
        world.stack.connect.kill()
        world.pipeline.begin_pass()
        world.stack.connect.start()
        world.stack.connect.wait()
    world.wait_for_connectors()


@fault(AREA, "Kafka Connect hangs (SIGSTOP) while it writes")
def connect_paused(world: World) -> None:
    """Its databases may close its connections."""
    with world.writing():
        time.sleep(world.random.uniform(0, 0.5))
        with hanging(world.stack.connect):
            world.pipeline.begin_pass()
            time.sleep(world.random.uniform(2, 8))
    world.wait_for_connectors()


@fault(AREA, "a connector's offsets are lost under load: a second full snapshot")
def offsets_lost(world: World) -> None:
    """Rows that were deleted meanwhile go, and nothing older replaces what is newer."""
    names = world.random.choice(SOURCES)
    with world.writing():
        world.pipeline.begin_pass()
        world.snapshot_again(names.tables_connector)


@fault(AREA, "an outbox connector's offsets are lost: it sends all events again")
def outbox_offsets_lost(world: World) -> None:
    """Silver knows events by their ids."""
    names = world.random.choice(SOURCES)
    with world.writing():
        pass
    world.drain()
    world.snapshot_again(names.outbox_connector)


@fault(AREA, "an incremental snapshot under load")
def incremental_snapshot(world: World) -> None:
    """Its rows are older than changes that came meanwhile."""
    names = world.random.choice(SOURCES)
    table = "public.orders" if names.name == "postgres" else "ecommerce.orders"
    data = f'{{"type": "incremental", "data-collections": ["{table}"]}}'
    values = f"('chaos-{time.time_ns()}', 'execute-snapshot', '{data}')"
    signal = f"INSERT INTO debezium_signal (id, type, data) VALUES {values}"
    with world.writing():
        world.databases[names.name].execute(signal)
        world.pipeline.begin_pass()
    world.say(f"incremental snapshot of {table}")


@fault(AREA, "a second connector with the topic prefix of the first writes everything once more")
def twin_connector(world: World) -> None:
    """Each change comes twice, in two orders, and with a snapshot in the middle."""
    names = world.random.choice(SOURCES)
    worker = world.stack.connect.worker
    config = {name: value for name, value in (worker.config(names.tables_connector) or {}).items() if name != "name"}
    twin = f"twin-{world.random.randrange(10**6)}"
    if names.name == "postgres":
        config["slot.name"] = twin.replace("-", "_")
    else:
        config["database.server.id"] = str(300_000 + world.random.randrange(10**5))
        config["schema.history.internal.kafka.topic"] = f"schema-changes.{twin}"
    with world.writing():
        worker.put_config(twin, config)
        world.wait_for_connectors(twin)
        world.pipeline.begin_pass()
    world.drain()
    worker.delete(twin)
    world.wait_until(lambda: twin not in worker.names(), "the twin is gone")
    if names.name == "postgres":
        slot = config["slot.name"]
        world.wait_until(lambda: drop_slot(world.databases["postgres"], slot), "the twin's slot is dropped")
    world.say(f"a twin of {names.tables_connector} came and went")


@fault(AREA, "the schema registry hangs (SIGSTOP)")
def registry_paused(world: World) -> None:
    """Silver knows the schemas that it has seen, and asks for others later."""
    with world.writing(), hanging(world.stack.registry):
        world.pipeline.begin_pass()
        time.sleep(world.random.uniform(2, 6))
    world.wait_for_connectors()


@fault(AREA, "the schema registry has lost its schemas, and would give their ids to others", single_only=True)
def registry_lost(world: World) -> None:
    """A person has it go on above the ids that were used. Silver keeps the schemas that it has seen."""
    connector = SOURCES[1].tables_connector
    with world.writing():
        pass
    world.drain()
    done = world.pipeline.command("run")
    world.stop_connector(connector)
    registry = world.stack.registry
    registry.kill()
    registry.start()
    registry.wait()
    (used,) = world.tables.rows("SELECT max(id) AS id FROM {ops.schemas}")
    taken = 0
    while taken < used["id"]:
        taken = _register(registry.confluent_url, f"placeholder{taken}")
    world.say(f"the run ended with {done.code}; ids up to {taken} are given to placeholders")
    world.stack.connect.worker.resume(connector)
    world.wait_for_connectors(connector)


def _register(url: str, name: str) -> int:
    """Register a schema of this name; its id."""
    schema = json.dumps({"type": "record", "name": name, "fields": []})
    answer = requests.post(f"{url}/subjects/{name}/versions", json={"schema": schema}, timeout=30)
    answer.raise_for_status()
    return int(answer.json()["id"])
