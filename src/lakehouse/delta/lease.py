"""`ops.lease`: the Lock of a warehouse that several machines share: a catalog, a store, a disk that all have mounted.

It is a row of a Delta table in the warehouse itself, so it works wherever the tables are. Taking, renewing and freeing
it is one guarded UPDATE each; of two that come together, Delta lets one commit.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from time import sleep
from uuid import uuid4

from lakehouse.delta.tables import TableSpec, Warehouse
from lakehouse.errors import TableError, UnfinishedTableError, WarehouseBusyError
from lakehouse.process.lock import Holder, busy, clock
from lakehouse.process.steps import Note

RENEW_EVERY = timedelta(seconds=60)
EXPIRE_AFTER = timedelta(minutes=5)

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
# Earlier releases wrote these, and their tables stay as they are.
_UNUSED = {"machine": None, "process_started": None}
# Takers of a free lease that come together commit one after the other; this often each looks again.
_ATTEMPTS = 5
_WAITS_FOR_THE_TABLE_S = (0.0, 0.5, 1.0, 2.0, 4.0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LeaseRow:
    """The row of the table. `token` is new each time the lease is taken; None when it is free."""

    token: str | None
    holder: Holder
    expires_at: datetime


class Lease:
    """The Lock of a shared warehouse: the right to write to it, for as long as a thread renews it.

    Guaranteed: until the lease expires no other run gets it. The renewing thread learns of a loss at its next renewal,
    and `check` raises from then on: a run that calls it before each step begins none after it has lost the warehouse.

    Not guaranteed: that a step already begun stops. A process that hung longer than the lease lasts can wake in the
    middle of a commit and finish it while its successor works. What keeps the tables right then is what keeps them
    right when a batch is repeated: merges guarded by position, appends guarded by batch.

    Clocks of the machines must agree to within the expiry less a renewal (4 minutes by default). The store must make
    two commits of one version impossible; plain S3 without a commit coordinator does not (see Delta's documentation).
    """

    def __init__(self, warehouse: Warehouse, holder: Holder, *, say: Note) -> None:
        self._warehouse, self._holder, self._say = warehouse, holder, say
        self._own: LeaseRow | None = None
        self._lost: str | None = None
        self._writing, self._ended = threading.Lock(), threading.Event()
        self._renewing = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)

    def take(self) -> None:
        """Take it, and renew it from then on. Raises WarehouseBusyError when another run has it."""
        for _attempt in range(_ATTEMPTS):
            try:
                known = read_lease(self._warehouse)
            except TableError:
                _create(self._warehouse)
                known = None
            now = datetime.now(UTC)
            if known is not None and known.token is not None and known.expires_at > now:
                free_at = f"if it was killed or its machine is gone, the warehouse is free at {clock(known.expires_at)}"
                hint = f"Wait until it ends, or stop it; {free_at}, or at once after `lakehouse unlock`."
                raise busy(known.holder, hint=hint)
            own = LeaseRow(uuid4().hex, self._holder, now + EXPIRE_AFTER)
            # Not if it was renewed just now.
            is_known = f"{_is_of(known)} AND expires_at = {_literal(known.expires_at)}" if known else None
            if _write(self._warehouse, own, where=is_known):
                if known is not None and known.token is not None:
                    at = clock(known.expires_at)
                    self._say(f"took the warehouse over from {known.holder}: its lease expired at {at}")
                self._own = own
                self._renewing.start()
                return
        several = "Several runs are starting on this warehouse at once."
        raise WarehouseBusyError(several, hint="Wait for one of them to end, then run again.")

    def check(self) -> None:
        """Raise WarehouseBusyError when another run has taken the warehouse.

        Costs nothing while the lease is valid. One that has expired (this process hung, or renewals failed) is renewed
        here and now; raises what Spark raises when that fails.
        """
        if self._own and not self._lost and self._own.expires_at <= datetime.now(UTC):
            self.renew()
        if self._lost:
            raise WarehouseBusyError(
                f"This run has lost the warehouse: its lease was not renewed in time, and now {self._lost}.",
                hint="Run again when no other run works on it: what is missing is read again, nothing twice.",
            )

    def renew(self) -> None:
        """Extend the lease from now on, or find out that it is lost."""
        with self._writing:
            if self._own is None:
                return
            renewed = replace(self._own, expires_at=datetime.now(UTC) + EXPIRE_AFTER)
            if _write(self._warehouse, renewed, where=_is_of(self._own)):
                self._own = renewed
                return
            now = read_lease(self._warehouse)
            if now is None or now.token != self._own.token:
                self._lost = f"{now.holder} has taken it over" if now and now.token else "nobody holds it"

    def release(self) -> None:
        """Free the warehouse. One that another run has taken stays with that run."""
        self._ended.set()
        if self._renewing.is_alive():
            self._renewing.join()
        with self._writing:
            own, self._own = self._own, None
            if own is not None:
                free_lease(self._warehouse, own)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(RENEW_EVERY.total_seconds()):
            try:
                self.renew()
            except Exception as error:
                # A store that does not answer now may do so next time; `check` has the last word.
                self._say(f"the lease of the warehouse was not renewed ({type(error).__name__}); trying again")


def read_lease(warehouse: Warehouse) -> LeaseRow | None:
    """The row; None before the lease was first taken. Raises TableError where there is no table yet."""
    columns = ("token", "run_id", "command", "host", "user", "pid")
    times = ("unix_micros(started_at)", "unix_micros(expires_at)")
    for row in warehouse.read(LEASE.name).selectExpr(*columns, *times).collect():
        started_at, expires_at = (_EPOCH + timedelta(microseconds=micros) for micros in row[-2:])
        token, run_id, command, host, user, pid = row[:-2]
        return LeaseRow(token, Holder(run_id, command, host, user, pid, started_at), expires_at)
    return None


def free_lease(warehouse: Warehouse, row: LeaseRow) -> bool:
    """Free the warehouse of the run that has it; False when another one has it by now.

    A run that is still alive learns of it at its next renewal or step, and stops there (Lease).
    """
    return _write(warehouse, LeaseRow(None, row.holder, datetime.now(UTC)), where=_is_of(row))


def _create(warehouse: Warehouse) -> None:
    """Create the table. Of two that do so at once one conflicts, or finds it unfinished; a moment later it is there."""
    from delta.exceptions import MetadataChangedException, ProtocolChangedException

    for wait_s in _WAITS_FOR_THE_TABLE_S:
        with suppress(MetadataChangedException, ProtocolChangedException, UnfinishedTableError):
            return warehouse.ensure(LEASE, is_locked=False)
        sleep(wait_s)
    return warehouse.ensure(LEASE, is_locked=False)


def _write(warehouse: Warehouse, row: LeaseRow, *, where: str | None) -> bool:
    """Put the row where the condition holds for the known one, or (None) where there is no row yet.

    Whether that came about; False too when another writer came first.
    """
    from delta import exceptions as raised

    cells = {**asdict(row.holder), **_UNUSED, "token": row.token, "expires_at": row.expires_at}
    values = {column: _literal(cell) for column, cell in cells.items()}
    # In SQL, which counts the rows. An UPDATE takes half the time of a MERGE.
    write = f"UPDATE {warehouse.sql_name(LEASE.name)} SET {_listed('{} = {}', values)} WHERE {where}"
    if where is None:
        source = f"USING (SELECT {_listed('{1} AS {0}', values)}) AS own ON true"
        insert = f"INSERT ({_listed('{}', values)}) VALUES ({_listed('own.{}', values)})"
        write = f"MERGE INTO {warehouse.sql_name(LEASE.name)} {source} WHEN NOT MATCHED THEN {insert}"
    try:
        return int(warehouse.spark.sql(write).collect()[0]["num_affected_rows"]) == 1
    except (
        *(raised.ConcurrentAppendException, raised.ConcurrentDeleteDeleteException, raised.ConcurrentWriteException),
        *(raised.ConcurrentDeleteReadException, raised.MetadataChangedException, raised.ProtocolChangedException),
    ):
        return False


def _listed(template: str, values: dict[str, str]) -> str:
    return ", ".join(template.format(column, value) for column, value in values.items())


def _is_of(row: LeaseRow) -> str:
    return f"token <=> {_literal(row.token)}"


def _literal(value: object) -> str:
    """A value in Spark SQL; text as the hex of its bytes, which needs no quoting."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f"timestamp_micros({(value - _EPOCH) // timedelta(microseconds=1)})"
    return str(value) if isinstance(value, int) else f"CAST(X'{str(value).encode().hex()}' AS STRING)"
