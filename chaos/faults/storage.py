"""Faults of the disk that the tables are on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.faults.fault import fault
from chaos.pipeline import Ended
from chaos.world import ChaosError, World, last_words

AREA = "storage"
TABLE_ERROR = 5
JOBS = ("bronze", "silver", "gold", "publish")
# What is left of a full disk: a commit may still fit, the next file does not.
LEFT_BYTES = (0, 4_096, 65_536)


@fault(AREA, "the disk is full while a layer is written", single_only=True)
def disk_full(world: World) -> None:
    """The run fails with a sentence; with room again the next one goes on."""
    with world.writing():
        pass
    world.drain()
    layer = world.random.choice(JOBS[:3])
    for job in JOBS[: JOBS.index(layer)]:
        _must_pass(world, job)
    with _full(world, world.random.choice(LEFT_BYTES)):
        done = world.pipeline.command(layer)
    world.say(f"disk full in {layer}: {last_words(done)}")
    if done.code is None:
        raise ChaosError(f"the process of {layer} died of a full disk")


@fault(AREA, "a data file of a table is gone", single_only=True)
def file_missing(world: World) -> None:
    """Whoever reads it stops with the table and the file; the table is made again from what is before it."""
    _damage(world, lambda file: file.unlink(), "gone")


@fault(AREA, "a data file of a table is cut in half", single_only=True)
def file_truncated(world: World) -> None:
    """As above."""

    def cut(file: Path) -> None:
        os.truncate(file, file.stat().st_size // 2)

    _damage(world, cut, "cut in half")


@fault(AREA, "a byte of a data file is another", single_only=True)
def file_flipped(world: World) -> None:
    """As above: nothing wrong is read from it."""

    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[world.random.randrange(4, max(5, len(data) - 8))] ^= 0xFF
        file.write_bytes(data)

    _damage(world, flip, "changed in a byte")


@fault(AREA, "an entry of a table's log is gone", single_only=True)
def log_entry_missing(world: World) -> None:
    """As above."""
    table = _table(world)
    entries = sorted((world.warehouse / table.replace(".", "/") / "_delta_log").glob("*.json"))
    last_checkpoint = (entries[0].parent / "_last_checkpoint").exists()
    # Entries before a checkpoint are needed by nobody.
    entry = world.random.choice(entries[-8:] if last_checkpoint else entries)
    entry.unlink()
    (entry.parent / f".{entry.name}.crc").unlink(missing_ok=True)
    world.say(f"entry {int(entry.stem)} of {len(entries)} of the log of {table} is gone")
    _notice_and_mend(world, table)


@fault(AREA, "VACUUM without retention, before gold has read silver's changes", single_only=True)
def vacuumed(world: World) -> None:
    """Gold computes whole what it cannot follow any more, and says so."""
    from deltalake import DeltaTable

    with world.writing():
        pass
    world.drain()
    _must_pass(world, "bronze")
    _must_pass(world, "silver")
    for folder in sorted((world.warehouse / "silver").iterdir()):
        if (folder / "_delta_log").exists():
            DeltaTable(str(folder)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    world.say("VACUUM of silver without retention")


@fault(AREA, "the checkpoint of a stream of bronze is gone", single_only=True)
def checkpoint_lost(world: World) -> None:
    """The table itself knows how far it has read: nothing is lost, nothing is stored twice."""
    with world.writing():
        pass
    world.drain()
    for folder in _checkpoints(world, world.random.choice(("postgres", "mysql"))):
        world.say(f"checkpoint {folder.name} deleted")
        shutil.rmtree(folder)


@fault(AREA, "the checkpoint of a stream is that of another one", single_only=True)
def checkpoint_of_another(world: World) -> None:
    """As above, or the run stops and says so."""
    with world.writing():
        pass
    world.drain()
    mine, other = _checkpoints(world, "postgres"), _checkpoints(world, "mysql")
    shutil.rmtree(mine[0])
    shutil.copytree(other[0], mine[0])
    done = world.pipeline.command("run")
    world.say(f"checkpoint of mysql in the place of that of postgres: {last_words(done)}")
    if done.code:
        for folder in _checkpoints(world, "postgres"):
            shutil.rmtree(folder)


def _checkpoints(world: World, source: str) -> list[Path]:
    return sorted((world.warehouse / "_checkpoints" / "bronze").glob(f"{source}*"))


def _must_pass(world: World, job: str) -> None:
    done = world.pipeline.command(job)
    if done.code:
        raise ChaosError(f"lakehouse {job} ended with {last_words(done)}")


@contextmanager
def _full(world: World, left: int) -> Iterator[None]:
    """The file system of the warehouse has so many bytes left."""
    ballast = world.warehouse / "_ballast"
    room = os.statvfs(world.warehouse)
    size = max(0, room.f_bavail * room.f_frsize - left)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size - size % room.f_frsize)
    try:
        yield
    finally:
        ballast.unlink()


def _table(world: World) -> str:
    """A table that a rebuild can make again: of any layer."""
    names = [f"silver.{source}_orders" for source in ("postgres", "mysql")]
    names += [f"silver.{source}_outbox_orders" for source in ("postgres", "mysql")]
    names += ["gold.unified_orders", "gold.orders_daily", "bronze.postgres_events", "bronze.mysql_events"]
    return world.random.choice(names)


def _damage(world: World, how: Callable[[Path], None], what: str) -> None:
    """Damage one of the files that the table's last version has."""
    from deltalake import DeltaTable

    table = _table(world)
    folder = world.warehouse / table.replace(".", "/")
    uris = sorted(DeltaTable(str(folder)).file_uris())
    if not uris:
        world.say(f"{table} has no file")
        return
    file = Path(world.random.choice(uris).removeprefix("file://"))
    how(file)
    world.say(f"a data file of {table} is {what}")
    _notice_and_mend(world, table)


def _notice_and_mend(world: World, table: str) -> None:
    """Writes go on; a run or `verify` names the table. Then what docs/verify.md says of it."""
    with world.writing():
        pass
    world.drain()
    run = world.pipeline.command("run")
    verified = world.pipeline.command("verify")
    world.say(f"run: {last_words(run)} verify: {last_words(verified)}")
    if not run.code and not verified.code:
        world.say("nobody needed it")
        return
    if not _names(run, table) and not _names(verified, table):
        raise ChaosError(f"{table} is damaged, and neither run nor verify names it: {last_words(run)}")
    _mend(world, table)


def _names(ended: Ended, table: str) -> bool:
    """Whether the command has failed with the name of the table."""
    return bool(ended.code) and (table in " ".join((ended.err + ended.out).split()))


def _mend(world: World, table: str) -> None:
    layer, name = table.split(".")
    source = "postgres" if name.startswith("postgres") else "mysql"
    if layer == "bronze":
        world.read_bronze_again(source)
    elif layer == "silver":
        world.rebuild_silver(source)
    else:
        done = world.pipeline.command("gold", "--full-refresh")
        if done.code:
            world.say(f"gold --full-refresh: {last_words(done)}; its folder is moved away")
            shutil.rmtree(world.warehouse / layer / name)
            world.pipeline.commits.forget()
