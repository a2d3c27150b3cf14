"""One run at a time on a warehouse that machines share: refusal, takeover, renewal, loss."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.main import main
from lakehouse.delta import lease as leases
from lakehouse.delta.lease import LEASE, Lease, LeaseRow
from lakehouse.errors import UnfinishedTableError, WarehouseBusyError
from lakehouse.process import lock as locks
from lakehouse.process.lock import Holder, Lock, hold, this_process
from lakehouse.process.steps import Note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark

SOON = timedelta(seconds=1)
FIRST = "3f2a0000aaaa"
SECOND = "77770000bbbb"


@pytest.fixture(scope="module")
def empty_lease(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Warehouse]:
    """Makes a warehouse whose lease was held once: a copy, since creating a table takes seconds."""
    from lakehouse.delta.tables import Warehouse

    original = Warehouse(spark, str(tmp_path_factory.mktemp("lease") / "w"), "unused")
    with locked(original, holder=this_process(run_id="0", command="lakehouse run"), say=fail):
        pass

    def copy() -> Warehouse:
        location = tmp_path_factory.mktemp("lease") / "w"
        shutil.copytree(original.location, location)
        return Warehouse(spark, str(location), "unused")

    return copy


@pytest.fixture
def warehouse(empty_lease: Callable[[], Warehouse]) -> Warehouse:
    return empty_lease()


def locked(
    warehouse: Warehouse, *, holder: Holder, say: Note, wait: timedelta = timedelta()
) -> AbstractContextManager[Lock]:
    return hold(Lease(warehouse, holder, say=say), say=say, wait=wait)


@pytest.fixture
def renewed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed four times a second."""
    monkeypatch.setattr(leases, "RENEW_EVERY", SOON / 4)


def lease_of(warehouse: Warehouse) -> LeaseRow:
    row = leases.read_lease(warehouse)
    assert row is not None
    return row


def put(warehouse: Warehouse, token: str, row_of: Holder, expires_at: datetime) -> None:
    """The row as another run writes it."""
    while not leases._write(warehouse, LeaseRow(token, row_of, expires_at), where="true"):
        pass


def fail(line: str) -> None:
    pytest.fail(f"nothing was to be said, but: {line}")


def holder(run_id: str = FIRST) -> Holder:
    return this_process(run_id=run_id, command="lakehouse run")


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited a minute"
        time.sleep(0.05)


def token(warehouse: Warehouse) -> str | None:
    (row,) = warehouse.read(LEASE.name).select("token").collect()
    value: str | None = row["token"]
    return value


def abandoned(warehouse: Warehouse, left_by: Holder, *, expires_in: timedelta) -> Lease:
    """The lease as a process leaves it that dies: taken, never renewed, never released."""
    lease = Lease(warehouse, left_by, say=fail)
    lease.take()
    lease._ended.set()
    lease._own = replace(lease_of(warehouse), expires_at=datetime.now(UTC) + expires_in)
    assert leases._write(warehouse, lease._own, where="true")
    return lease


@pytest.fixture
def elsewhere() -> Holder:
    """A process of another machine."""
    return replace(holder(), host="elsewhere")


def test_a_second_run_is_refused_and_told_who_the_first_is(warehouse: Warehouse) -> None:
    first, before = holder(), warehouse.version(LEASE.name)
    with locked(warehouse, holder=first, say=fail) as held:
        with pytest.raises(WarehouseBusyError) as refused, locked(warehouse, holder=holder(SECOND), say=fail):
            pytest.fail("two runs at once")
        held.check()
        assert warehouse.version(LEASE.name) == before + 1, "who is refused writes nothing"
    assert refused.value.exit_code == 7
    assert refused.value.what == (
        f"`lakehouse run` (run 3f2a0000, user {first.user} on host {first.host}, process {os.getpid()})"
        f" has been working on this warehouse since {first.started_at:%Y-%m-%d %H:%M:%S} UTC."
    )
    assert refused.value.hint.startswith("Wait until it ends, or stop it; if it was killed or its machine")
    with locked(warehouse, holder=holder(SECOND), say=fail):
        assert token(warehouse) is not None


def test_names_are_kept_as_they_are(warehouse: Warehouse) -> None:
    odd = replace(holder(), command="lakehouse 'run' \\n `x` {y} :z é🚀", user="o'neil\\")
    with (
        locked(warehouse, holder=odd, say=fail),
        pytest.raises(WarehouseBusyError) as refused,
        locked(warehouse, holder=holder(SECOND), say=fail),
    ):
        pytest.fail("two runs at once")
    assert str(odd) in refused.value.what


def test_it_is_free_after_an_error_in_the_block(warehouse: Warehouse) -> None:
    with pytest.raises(ZeroDivisionError), locked(warehouse, holder=holder(), say=fail):
        raise ZeroDivisionError
    assert token(warehouse) is None


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False], ids=["new warehouse", "used warehouse"])
def test_of_two_that_begin_at_once_one_is_refused(
    is_new: bool, spark: SparkSession, tmp_path: Path, empty_lease: Callable[[], Warehouse]
) -> None:
    from lakehouse.delta.tables import Warehouse

    warehouse = Warehouse(spark, str(tmp_path / "w"), "unused") if is_new else empty_lease()
    start, done = threading.Barrier(2), threading.Barrier(2)
    outcomes: list[str] = []

    def work(run_id: str) -> None:
        start.wait()
        try:
            with locked(warehouse, holder=holder(run_id), say=fail):
                outcomes.append("held")
                done.wait()
        except WarehouseBusyError as error:
            outcomes.append(str(error))
            done.wait()

    threads = [threading.Thread(target=work, args=(run_id,)) for run_id in (FIRST, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    refused, held = sorted(outcomes)
    assert held == "held"
    assert "has been working on this warehouse since" in refused
    assert token(warehouse) is None


@pytest.mark.slow
def test_a_table_that_another_run_is_creating_is_waited_for(warehouse: Warehouse) -> None:
    log = Path(warehouse.path(LEASE.name)) / "_delta_log"
    aside = log.rename(log.with_name("aside"))
    log.mkdir()
    creating = threading.Timer(1, lambda: [(log / file.name).write_bytes(file.read_bytes()) for file in commits(aside)])
    creating.start()
    with locked(warehouse, holder=holder(), say=fail) as held:
        held.check()
    creating.join()


def test_a_table_whose_creation_was_cut_off_is_named(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_WAITS_FOR_THE_TABLE_S", (0.0,))
    log = Path(warehouse.path(LEASE.name)) / "_delta_log"
    shutil.rmtree(log)
    log.mkdir()
    with (
        pytest.raises(UnfinishedTableError, match=f"ops.lease has a folder {log.parent}, and no commit") as cut_off,
        locked(warehouse, holder=holder(), say=fail),
    ):
        pytest.fail("there is no table")
    assert "delete the folder" in cut_off.value.hint


def commits(log: Path) -> list[Path]:
    return sorted(log.glob("*.json"), reverse=True)


@pytest.mark.slow
def test_two_first_rows_and_two_takeovers_conflict(warehouse: Warehouse, spark: SparkSession, tmp_path: Path) -> None:
    """What a race comes down to, in its narrowest form: both decided on the same row before either wrote."""
    from lakehouse.delta.tables import Warehouse

    fresh = Warehouse(spark, str(tmp_path / "w"), "unused")
    leases._create(fresh)
    for table, condition in ((fresh, None), (warehouse, "token IS NULL")):
        start = threading.Barrier(3)
        written: list[bool] = []

        def write(
            name: str,
            table: Warehouse = table,
            condition: str | None = condition,
            start: threading.Barrier = start,
            written: list[bool] = written,
        ) -> None:
            start.wait()
            row = LeaseRow(name, holder(), datetime.now(UTC) + SOON)
            written.append(leases._write(table, row, where=condition))

        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(written) == [False, False, True]
        assert table.read(LEASE.name).count() == 1


def test_a_lease_is_free_when_it_has_expired(warehouse: Warehouse, elsewhere: Holder) -> None:
    abandoned(warehouse, elsewhere, expires_in=timedelta(hours=1))
    before = warehouse.version(LEASE.name)
    with pytest.raises(WarehouseBusyError, match="on host elsewhere"):
        Lease(warehouse, holder(SECOND), say=fail).take()
    assert warehouse.version(LEASE.name) == before, "who is refused writes nothing"
    put(warehouse, "gone", elsewhere, datetime.now(UTC) - SOON)
    said: list[str] = []
    with locked(warehouse, holder=holder(SECOND), say=said.append):
        pass
    (line,) = said
    assert line.startswith(f"took the warehouse over from {elsewhere}: its lease expired at ")


def test_a_lease_that_is_renewed_while_it_is_taken_over_stays(
    warehouse: Warehouse, elsewhere: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(warehouse, elsewhere, expires_in=-SOON)
    write = leases._write

    def write_after_a_renewal(warehouse: Warehouse, row: LeaseRow, *, where: str | None) -> bool:
        monkeypatch.setattr(leases, "_write", write)
        known = lease_of(warehouse)
        put(warehouse, str(known.token), elsewhere, datetime.now(UTC) + timedelta(hours=1))
        return write(warehouse, row, where=where)

    monkeypatch.setattr(leases, "_write", write_after_a_renewal)
    with pytest.raises(WarehouseBusyError, match="on host elsewhere"):
        Lease(warehouse, holder(SECOND), say=fail).take()


def test_the_table_of_an_earlier_release_stays_as_it_is(warehouse: Warehouse) -> None:
    """It wrote of which machine and of which process the holder is."""
    name = warehouse.sql_name(LEASE.name)
    warehouse.spark.sql(f"UPDATE {name} SET machine = 'm', process_started = '17', token = 'old'")
    warehouse.spark.sql(f"UPDATE {name} SET expires_at = current_timestamp()")
    with locked(warehouse, holder=holder(), say=lambda _said: None) as held:
        held.check()
    (row,) = warehouse.read(LEASE.name).collect()
    assert row["machine"] is None, "an earlier release would take this process for that one"


def test_a_person_frees_the_warehouse_of_a_machine_that_is_gone(
    warehouse: Warehouse, elsewhere: Holder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.unlock.local_folder", lambda _location: None)
    held = abandoned(warehouse, elsewhere, expires_in=timedelta(hours=1))
    command = ["unlock", "--warehouse", warehouse.location]
    main([*command, "--dry-run"])
    assert f"Locked by {elsewhere} until " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(command)
    assert token(warehouse) is not None, "nobody could be asked"
    main([*command, "--yes"])
    assert "Unlocked. Next: lakehouse run" in capsys.readouterr().out
    assert token(warehouse) is None
    with pytest.raises(WarehouseBusyError, match="now nobody holds it"):
        held.renew()
        held.check()
    main([*command, "--yes"])
    assert "The warehouse is not locked. Nothing was changed." in capsys.readouterr().out


def test_a_lease_that_another_run_has_taken_meanwhile_is_not_freed(warehouse: Warehouse) -> None:
    abandoned(warehouse, holder(), expires_in=timedelta(hours=1))
    before = lease_of(warehouse)
    put(warehouse, "other", holder(SECOND), datetime.now(UTC) + timedelta(hours=1))
    assert not leases.free_lease(warehouse, before)
    assert token(warehouse) == "other"


@pytest.mark.usefixtures("renewed_soon")
def test_renewals_keep_it(warehouse: Warehouse) -> None:
    lease = Lease(warehouse, holder(), say=fail)
    with hold(lease, say=fail):
        first = lease_of(warehouse)
        wait_until(lambda: lease._own and lease._own.expires_at > first.expires_at)
        second = lease_of(warehouse)
        wait_until(lambda: lease._own and lease._own.expires_at > second.expires_at)
        lease.check()
    assert second.token == first.token
    assert second.expires_at > first.expires_at
    assert "lease" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.usefixtures("renewed_soon")
def test_a_lost_lease_is_noticed_by_the_renewing_thread(warehouse: Warehouse) -> None:
    with (
        pytest.raises(WarehouseBusyError, match="This run has lost the warehouse") as lost,
        locked(warehouse, holder=holder(), say=fail) as held,
    ):
        held.check()
        put(warehouse, "other", holder(SECOND), datetime.now(UTC) + timedelta(hours=1))
        wait_until(held.check)
    assert f"{holder(SECOND)} has taken it over" in str(lost.value)
    assert token(warehouse) == "other", "what is another's is not released"


def test_a_lease_that_expired_is_renewed_or_lost_at_the_next_check(warehouse: Warehouse) -> None:
    """A process that hung longer than its lease lasts: nobody came, or somebody did."""
    held = abandoned(warehouse, holder(), expires_in=-SOON)
    held.check()
    assert lease_of(warehouse).expires_at > datetime.now(UTC)
    assert held._own is not None
    held._own = replace(held._own, expires_at=datetime.now(UTC) - SOON)
    put(warehouse, "other", holder(SECOND), datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(WarehouseBusyError, match="This run has lost the warehouse"):
        held.check()


@pytest.mark.usefixtures("renewed_soon")
def test_a_lease_lost_at_the_end_is_an_error(warehouse: Warehouse) -> None:
    lease = Lease(warehouse, holder(), say=fail)
    with pytest.raises(WarehouseBusyError, match="now nobody holds it"), hold(lease, say=fail):
        warehouse.delta(LEASE.name).delete()
        wait_until(lambda: lease._lost)


@pytest.mark.usefixtures("renewed_soon")
def test_a_store_that_fails_for_a_while_does_not_end_the_run(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    renew, calls = Lease.renew, 0

    def failing_once(self: Lease) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("gone for a while")
        renew(self)

    monkeypatch.setattr(Lease, "renew", failing_once)
    lease = Lease(warehouse, holder(), say=said.append)
    with hold(lease, say=said.append):
        before = lease_of(warehouse).expires_at
        wait_until(lambda: lease._own and lease._own.expires_at > before)
        lease.check()
    assert said == ["the lease of the warehouse was not renewed (OSError); trying again"]


HOLDS_AND_SLEEPS = """
import sys, time
from pyspark.sql import functions as F
from lakehouse.process.lock import this_process
from lakehouse.delta import locks
from lakehouse.spark.session import spark_session
from lakehouse.delta.tables import Warehouse

locks.own_folder = lambda _warehouse: None
warehouse = Warehouse(spark_session(), sys.argv[1], "unused")
with locks.locked(warehouse, holder=this_process(run_id="abc", command="lakehouse silver"), say=print):
    print("held", flush=True)
    slow = F.udf(lambda number: time.sleep(600))
    warehouse.spark.range(0, 64, 1, 64).select(slow("id")).collect()  # no core is left for anything else
"""


@pytest.fixture
def other_process(warehouse: Warehouse) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds the lease of the warehouse."""
    command = [sys.executable, "-c", HOLDS_AND_SLEEPS, warehouse.location]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_run_that_is_ended_from_outside_frees_the_warehouse(
    warehouse: Warehouse, other_process: subprocess.Popen[str]
) -> None:
    """Nobody would see that its process has ended."""
    with pytest.raises(WarehouseBusyError, match=rf"`lakehouse silver` \(run abc, .*process {other_process.pid}\)"):
        Lease(warehouse, holder(), say=fail).take()
    time.sleep(5)  # its job has taken every core
    other_process.send_signal(signal.SIGTERM)
    assert other_process.wait(60) == -signal.SIGTERM
    assert token(warehouse) is None


@pytest.mark.slow
def test_a_busy_warehouse_is_waited_for(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOOK_EVERY_SECONDS", 0.1)
    said: list[str] = []
    is_held, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with locked(warehouse, holder=holder(), say=fail):
            is_held.set()
            may_end.wait(60)

    first = threading.Thread(target=work)
    first.start()
    assert is_held.wait(60)
    with (
        pytest.raises(WarehouseBusyError),
        locked(warehouse, holder=holder(SECOND), say=said.append, wait=timedelta(seconds=0.5)),
    ):
        pytest.fail("two runs at once")
    assert len(said) == 1
    assert said[0].startswith("waiting for up to 0 minutes: `lakehouse run` (run 3f2a0000")

    def end_it(text: str) -> None:
        said.append(text)
        may_end.set()

    with locked(warehouse, holder=holder(SECOND), say=end_it, wait=timedelta(minutes=2)) as held:
        held.check()
    first.join()
    assert [text[:27] for text in said[1:]] == ["waiting for up to 2 minutes"]
