"""Faults of the source databases and of their logs."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from secrets import token_hex

from chaos.faults.fault import fault
from chaos.world import SOURCES, ChaosError, World, drop_slot

AREA = "databases"
POSTGRES, MYSQL = SOURCES


@fault(AREA, "kill -9 of a database while it is written to")
def database_killed(world: World) -> None:
    """It recovers by its own log; connectors are restarted where they do not go on by themselves."""
    names = world.random.choice(SOURCES)
    database = world.databases[names.name]
    with world.writing():
        time.sleep(world.random.uniform(0.1, 1))
        database.kill()
        world.pipeline.begin_pass()
        time.sleep(1)
        database.start()
        database.wait()
    world.say(f"the {names.name} database was killed and started")
    world.wait_for_connectors()


@fault(AREA, "the replication slot is dropped, and changes are lost with it")
def slot_dropped(world: World) -> None:
    """The connector fails; a full snapshot brings changes, and takes away what was deleted."""
    world.stop_connector(POSTGRES.tables_connector)
    world.wait_until(lambda: drop_slot(world.databases["postgres"], "debezium_tables_slot_pg"), "the slot is dropped")
    with world.writing():
        world.pipeline.begin_pass()
    world.stack.connect.worker.resume(POSTGRES.tables_connector)
    world.say("the slot of the PostgreSQL tables was dropped, with changes that nobody has read")
    world.snapshot_again(POSTGRES.tables_connector)


@fault(AREA, "a failover to an older copy of PostgreSQL: changes that were sent never happened")
def older_copy(world: World) -> None:
    """Positions go back. Connectors take snapshots, which are the truth from then on."""
    database = world.databases["postgres"]
    data = world.stack.postgresql.home / "data"
    copy = Path(f"{data}-copy")
    world.drain()
    _cold_copy(world, data, copy)
    with world.writing():
        world.pipeline.begin_pass()
    world.drain()
    world.take_events()  # they were sent
    database.stop()
    shutil.rmtree(data)
    copy.rename(data)
    database.start()
    database.wait()
    world.say("PostgreSQL went back to a copy; what it had sent since is gone")
    for name in (POSTGRES.tables_connector, POSTGRES.outbox_connector):
        world.snapshot_again(name)


@fault(AREA, "files of MySQL's binary log are purged that the connector has not read")
def binlog_purged(world: World) -> None:
    """The connector fails; a full snapshot brings changes, and takes away what was deleted."""
    database = world.databases["mysql"]
    world.drain()
    world.stop_connector(MYSQL.tables_connector)
    with world.writing():
        world.pipeline.begin_pass()
    database.execute("FLUSH BINARY LOGS")
    last = database.rows("SHOW BINARY LOGS")[-1]["Log_name"]
    world.drain([MYSQL.outbox_topic])  # nothing else has these events
    database.execute(f"PURGE BINARY LOGS TO '{last}'")
    world.say("the binary log that the connector had yet to read was purged")
    world.stack.connect.worker.resume(MYSQL.tables_connector)
    world.snapshot_again(MYSQL.tables_connector)


@fault(AREA, "RESET MASTER: MySQL begins its binary log again at the first file")
def reset_master(world: World) -> None:
    """Positions go back. Connectors take snapshots, which are the truth from then on."""
    with world.writing():
        world.pipeline.begin_pass()
    world.drain()
    for name in (MYSQL.tables_connector, MYSQL.outbox_connector):
        world.stop_connector(name)
    world.databases["mysql"].execute("RESET MASTER")
    world.say("RESET MASTER")
    with world.writing():  # while no transaction has a GTID, the connector fails
        pass
    for name in (MYSQL.tables_connector, MYSQL.outbox_connector):
        world.snapshot_again(name)


@fault(AREA, "the password of the user that replicates is changed, and put back later")
def credentials_changed(world: World) -> None:
    """Connectors fail at their next connection; with the right password they go on where they were."""
    names = world.random.choice(SOURCES)
    database = world.databases[names.name]
    with world.writing():
        _set_password(world, names.name, token_hex(8))
        world.stack.connect.worker.restart(names.tables_connector, only_failed=False)
        world.pipeline.begin_pass()
        time.sleep(3)
        _set_password(world, names.name, database.replication_password)
    world.say(f"the password of {names.name} was another for some seconds")
    world.wait_for_connectors()


def _set_password(world: World, source: str, password: str) -> None:
    if source == "postgres":
        world.databases[source].execute(f"ALTER USER debezium_user PASSWORD '{password}'")
    else:
        world.databases[source].execute(f"ALTER USER 'debezium_user'@'%' IDENTIFIED BY '{password}'")


def _cold_copy(world: World, data: Path, copy: Path) -> None:
    database = world.databases["postgres"]
    database.stop()
    done = subprocess.run(["/bin/cp", "-a", str(data), str(copy)], check=False)
    database.start()
    database.wait()
    if done.returncode:
        raise ChaosError("PostgreSQL's data could not be copied")
    world.wait_for_connectors(POSTGRES.tables_connector, POSTGRES.outbox_connector)
