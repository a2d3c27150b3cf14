"""`ops.lease`: who works on the warehouse. One run at a time; a second one is refused, with the name of the first.

The lease is a row of a Delta table in the warehouse itself, so it works wherever the tables are and whoever runs the
jobs. Taking, renewing and releasing it is one guarded UPDATE each; of two that come together, Delta lets one commit.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING
from uuid import uuid4

from lakehouse.ending import Ending, ending
from lakehouse.errors import UnfinishedTableError, WarehouseBusyError
from lakehouse.spark.tables import TableSpec, Warehouse, small_table
from lakehouse.steps import Note

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RENEW_EVERY = timedelta(seconds=60)
EXPIRE_AFTER = timedelta(minutes=5)
LOOK_EVERY_SECONDS = 5.0

# The one row: who has locked the warehouse, or (token NULL) who had locked it last.
LEASE = TableSpec(
    name="ops.lease",
    columns="""
        token STRING, run_id STRING, command STRING, host STRING, user STRING, pid BIGINT, machine STRING,
        process_started STRING, started_at TIMESTAMP, expires_at TIMESTAMP
    """,
    properties={
        # Two first rows must conflict too: on Databricks the default lets some inserts pass side by side.
        "delta.isolationLevel": "Serializable",
        # A commit a minute: nobody travels back in this table.
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": "interval 1 days",
        "delta.deletedFileRetentionDuration": "interval 1 hours",
    },
)
# Takers of a free lease that come together commit one after the other; this often each looks again.
_ATTEMPTS = 5
_WAITS_FOR_THE_TABLE_S = (0.0, 0.5, 1.0, 2.0, 4.0)
# An hour of renewals, which leave a file each: then the files that are an hour old go.
_RENEWALS_TO_A_VACUUM = 60


@dataclass(frozen=True)
class Holder:
    """A run and the process it runs in.

    `machine` distinguishes machines with equal host names (the boot and the pid namespace, where /proc says them);
    `process_started` distinguishes a process from a later one with the same id: clock ticks since the boot, None where
    there is no /proc.
    """

    run_id: str
    command: str
    host: str
    user: str
    pid: int
    started_at: datetime
    machine: str
    process_started: str | None

    def __str__(self) -> str:
        return f"`{self.command}` (run {self.run_id[:8]}, user {self.user} on host {self.host}, process {self.pid})"


def this_process(*, run_id: str, command: str) -> Holder:
    """The holder that this process is, beginning now. `command`: as a person would type it, without options."""
    return Holder(
        run_id=run_id,
        command=command,
        host=socket.gethostname(),
        user=_user(),
        pid=os.getpid(),
        started_at=datetime.now(UTC),
        machine=_machine(),
        process_started=_process_started(os.getpid()),
    )


@dataclass(frozen=True)
class _LeaseRow:
    """The row of the table. `token` is new each time the lease is taken; None when it is free."""

    token: str | None
    holder: Holder
    expires_at: datetime


class Lease:
    """The right to write to a warehouse, for as long as it is renewed.

    Guaranteed: until the lease expires no other run gets it, except one on the same machine that finds this process
    ended. The renewing thread learns of a loss at its next renewal, and `check` raises from then on. So a run that
    calls `check` before each step does not begin a step after it has lost the warehouse.

    Not guaranteed: that a step already begun stops. A process that hung longer than the lease lasts can wake in the
    middle of a commit and finish it while its successor works. What keeps the tables right then is what keeps them
    right when a batch is repeated: merges guarded by position, appends guarded by batch.

    Clocks of the machines must agree to within the expiry less a renewal (4 minutes by default). The store must make
    two commits of one version impossible; plain S3 without a commit coordinator does not (see Delta's documentation).
    """

    def __init__(self, warehouse: Warehouse, held: _LeaseRow, *, expire_after: timedelta) -> None:
        self._warehouse = warehouse
        self._held = held
        self._expire_after = expire_after
        self._successor: _LeaseRow | None = None
        self._is_lost = False
        self._renewing = threading.Lock()

    def check(self) -> None:
        """Raise WarehouseBusyError when another run has taken the warehouse. Call it before each step.

        Costs nothing while the lease is valid. One that has expired (this process hung, or renewals failed) is renewed
        here and now; raises what Spark raises when that fails.
        """
        if not self._is_lost and self._has_expired:
            self.renew()
        if self._is_lost or self._has_expired:
            now = f"{self._successor.holder} has taken it over" if self._successor else "nobody holds it"
            raise WarehouseBusyError(
                f"This run has lost the warehouse: its lease was not renewed in time, and now {now}.",
                remedy="Run again when no other run works on it: what is missing is read again, nothing twice.",
            )

    def renew(self) -> None:
        """Extend the lease from now on, or find out that it is lost."""
        with self._renewing:
            renewed = _LeaseRow(self._held.token, self._held.holder, datetime.now(UTC) + self._expire_after)
            if _write(self._warehouse, renewed, instead_of=self._is_own):
                self._held = renewed
                return
            now = _read(self._warehouse)
            if now is None or now.token != self._held.token:
                self._successor, self._is_lost = now if now and now.token else None, True

    def release(self) -> None:
        """Free the warehouse. One that another run has taken stays with that run."""
        with self._renewing:
            _write(self._warehouse, _LeaseRow(None, self._held.holder, datetime.now(UTC)), instead_of=self._is_own)

    @property
    def _has_expired(self) -> bool:
        return datetime.now(UTC) >= self._held.expires_at

    @property
    def _is_own(self) -> str:
        return f"token = '{self._held.token}'"


@contextmanager
def locked(
    warehouse: Warehouse,
    *,
    holder: Holder,
    say: Note,
    wait: timedelta = timedelta(),
    renew_every: timedelta = RENEW_EVERY,
    expire_after: timedelta = EXPIRE_AFTER,
) -> Iterator[Lease]:
    """Inside the block no other run works on the warehouse; how far that goes, see Lease.

    A thread renews the lease; it is released however the block ends, also when a signal ends the process
    (lakehouse.ending). When it is killed, the next run on the same machine takes the lease over at once, and one
    elsewhere when it has expired; `say` gets a line about that.

    Raises WarehouseBusyError when another run still has it after `wait`, and at the end of the block when it was lost
    meanwhile.
    """
    held: list[Lease] = []

    def give_up() -> None:
        for lease in held:
            # Whatever fails, the process ends; who comes next is told who had the warehouse, and until when.
            with suppress(Exception):
                _cancel_jobs(warehouse.spark)
            with suppress(Exception):
                lease.release()

    with ending(give_up) as ends:
        _wait_for(held, warehouse, holder, ends, say=say, wait=wait, expire_after=expire_after)
        (lease,) = held
        ended = threading.Event()
        renewing = threading.Thread(
            target=_keep_renewing, args=(warehouse, lease, ended, renew_every, say), name="lease", daemon=True
        )
        renewing.start()
        try:
            yield lease
            lease.check()
        finally:
            with ends.deferred():
                ended.set()
                renewing.join()
                try:
                    lease.release()
                except Exception as error:
                    # The work is done, or has an error of its own: that the next run must take the lease over is none.
                    name = type(error).__name__
                    say(f"the lease of the warehouse was not released ({name}); the next run takes it over")
                held.clear()


def _cancel_jobs(spark: SparkSession) -> None:
    """End what Spark is at work on: the release of the lease would wait for a free core."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):  # it has no context
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


@dataclass(frozen=True)
class Lock:
    """Who has locked the warehouse, until when unless renewed, and (`why_free`) why nobody has to wait for it."""

    token: str
    holder: Holder
    expires_at: datetime
    why_free: str | None


def current_lock(warehouse: Warehouse) -> Lock | None:
    """The lease as it is now; None when it is free. Reads only."""
    held = _read(warehouse) if warehouse.exists(LEASE.name) else None
    if held is None or held.token is None:
        return None
    return Lock(held.token, held.holder, held.expires_at, _why_free(held, now=datetime.now(UTC)))


def unlock(warehouse: Warehouse, lock: Lock) -> bool:
    """Free the warehouse of a run that cannot do so itself; False when another run has it by now.

    A run that is still alive learns of it at its next renewal or step, and stops there (Lease).
    """
    free = _LeaseRow(None, lock.holder, datetime.now(UTC))
    return _write(warehouse, free, instead_of=f"token = '{lock.token}'")


def forget_old_rows(warehouse: Warehouse) -> None:
    """Remove the files of the lease's former rows, those of the last hour excepted."""
    warehouse.delta(LEASE.name).vacuum()


def _keep_renewing(warehouse: Warehouse, lease: Lease, ended: threading.Event, every: timedelta, say: Note) -> None:
    renewals = 0
    while not ended.wait(every.total_seconds()):
        try:
            lease.renew()
            renewals += 1
            if renewals % _RENEWALS_TO_A_VACUUM == 0:
                forget_old_rows(warehouse)
        except Exception as error:
            # A store that does not answer now may do so next time; `check` has the last word.
            say(f"the lease of the warehouse was not renewed ({type(error).__name__}); trying again")


def _wait_for(
    held: list[Lease],
    warehouse: Warehouse,
    holder: Holder,
    ends: Ending,
    *,
    say: Note,
    wait: timedelta,
    expire_after: timedelta,
) -> None:
    """Put the lease into `held`, as soon as it is free. Raises WarehouseBusyError when it is not within `wait`."""
    begun = monotonic()
    has_said = False
    while True:
        try:
            with ends.deferred():  # else one that was just taken would be nobody's
                held.append(_taken(warehouse, holder, say=say, expire_after=expire_after))
            return
        except WarehouseBusyError as busy:
            is_over = monotonic() - begun >= wait.total_seconds()
            # Whoever waits at all looks twice, however long a look takes.
            if not wait or (has_said and is_over):
                raise
            if not has_said:
                say(f"waiting for up to {wait.total_seconds() / 60:.0f} minutes: {busy.what}")
                has_said = True
        sleep(LOOK_EVERY_SECONDS)


def _taken(warehouse: Warehouse, holder: Holder, *, say: Note, expire_after: timedelta) -> Lease:
    """The lease, taken for `holder`. Raises WarehouseBusyError when another run has it."""
    _ensure(warehouse)
    for _attempt in range(_ATTEMPTS):
        now = datetime.now(UTC)
        own = _LeaseRow(uuid4().hex, holder, now + expire_after)
        if _write(warehouse, own, instead_of="token IS NULL"):
            return Lease(warehouse, own, expire_after=expire_after)
        held = _read(warehouse)
        if held is None:
            if _write(warehouse, own, instead_of=None):
                return Lease(warehouse, own, expire_after=expire_after)
        elif held.token is not None:
            why = _why_free(held, now=now)
            if why is None:
                raise _busy(held)
            # Not if it was renewed just now.
            is_unchanged = f"token = '{held.token}' AND unix_micros(expires_at) = {_micros(held.expires_at)}"
            if _write(warehouse, own, instead_of=is_unchanged):
                say(f"took the warehouse over from {held.holder}: {why}")
                return Lease(warehouse, own, expire_after=expire_after)
    raise WarehouseBusyError(
        "Several runs are starting on this warehouse at once.", remedy="Wait for one of them to end, then run again."
    )


def _why_free(held: _LeaseRow, *, now: datetime) -> str | None:
    """Why a lease that was not released is no longer valid; None when it is."""
    if has_ended(held.holder):
        return "that process has ended"
    if held.expires_at <= now:
        return f"its lease expired at {_clock(held.expires_at)}"
    return None


def _busy(held: _LeaseRow) -> WarehouseBusyError:
    return WarehouseBusyError(
        f"{held.holder} has been working on this warehouse since {_clock(held.holder.started_at)}.",
        remedy="Wait until it ends, or stop it; if that machine is gone, the warehouse is free at "
        f"{_clock(held.expires_at)}, or at once after `lakehouse unlock`.",
    )


def _ensure(warehouse: Warehouse) -> None:
    """Create the table. Of two that do so at once one conflicts, or finds it unfinished; a moment later it is there."""
    from delta.exceptions import MetadataChangedException, ProtocolChangedException

    for wait_s in _WAITS_FOR_THE_TABLE_S:
        try:
            warehouse.ensure(LEASE)
            return
        except (MetadataChangedException, ProtocolChangedException, UnfinishedTableError):
            sleep(wait_s)
    warehouse.ensure(LEASE)


def _write(warehouse: Warehouse, held: _LeaseRow, *, instead_of: str | None) -> bool:
    """Put the row where the condition `instead_of` holds for the known one, or (None) where there is no row yet.

    Whether that came about; False too when another writer came first.
    """
    from delta import exceptions

    conflicts = (
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )
    row = {**asdict(held.holder), "token": held.token, "expires_at": held.expires_at}
    try:
        result = _insert(warehouse, row) if instead_of is None else _update(warehouse, row, instead_of)
    except conflicts:
        return False
    return int(result.collect()[0]["num_affected_rows"]) == 1


def _insert(warehouse: Warehouse, row: Mapping[str, object]) -> DataFrame:
    text = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}
    rows = small_table(warehouse.spark, [text], LEASE.columns)
    return warehouse.delta(LEASE.name).merge(rows, "true").whenNotMatchedInsertAll().execute()


def _update(warehouse: Warehouse, row: Mapping[str, object], condition: str) -> DataFrame:
    """In SQL, which counts the rows (`DeltaTable.update` does not), and in half the time of a MERGE."""
    values = ", ".join(f"{column} = {_literal(value)}" for column, value in row.items())
    return warehouse.spark.sql(f"UPDATE {warehouse.sql_name(LEASE.name)} SET {values} WHERE {condition}")


def _literal(value: object) -> str:
    """A value in Spark SQL; text as the hex of its bytes, which needs no quoting."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f"timestamp_micros({_micros(value)})"
    return str(value) if isinstance(value, int) else f"CAST(X'{str(value).encode().hex()}' AS STRING)"


def _read(warehouse: Warehouse) -> _LeaseRow | None:
    """The row; None before the lease was first taken."""
    columns = (
        *("token", "run_id", "command", "host", "user", "pid", "machine", "process_started"),
        "unix_micros(started_at) AS started_at",
        "unix_micros(expires_at) AS expires_at",
    )
    rows = [row.asDict() for row in warehouse.read(LEASE.name).selectExpr(*columns).collect()]
    if not rows:
        return None
    (row,) = rows
    token, expires_at = row.pop("token"), _moment(row.pop("expires_at"))
    return _LeaseRow(token, Holder(**{**row, "started_at": _moment(row["started_at"])}), expires_at)


def has_ended(holder: Holder) -> bool:
    """Whether the process is known to have ended: only processes of this machine are checked, others are False."""
    if holder.machine != _machine():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it lives and is another user's, or its id went to another user's process
        pass
    started = _process_started(holder.pid)
    return started is not None and started != holder.process_started


def _machine() -> str:
    """This machine since its last boot, and which process ids it sees; the host name where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _process_started(pid: int) -> str | None:
    """When the process began, in clock ticks since the boot; None where /proc does not say it.

    `ended` for one that has ended and that its parent has not yet waited for.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # pid (command) state ppid …; the command may hold spaces and brackets. The start is the 22nd field.
    state, *fields = stat.rsplit(")", 1)[1].split()
    return "ended" if state in "ZX" else fields[18]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
