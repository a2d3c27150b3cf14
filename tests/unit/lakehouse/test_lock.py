"""One run at a time on a warehouse that is a folder of this machine: every other run is a process of its own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse.errors import TableError, WarehouseBusyError
from lakehouse.process import lock as locks
from lakehouse.process.lock import (
    LOCK_FILE,
    FolderLock,
    Holder,
    Lock,
    current_folder_lock,
    hold,
    local_folder,
    this_process,
)

FIRST = "3f2a0000aaaa"
SECOND = "77770000bbbb"
SECONDS = 30

HOLDS = """
import sys, time
from pathlib import Path
from lakehouse.process.lock import FolderLock, hold, this_process

with hold(FolderLock(Path(sys.argv[1]), this_process(run_id="abc", command="lakehouse silver")), say=print):
    print("held", flush=True)
    time.sleep(600)
"""

STOPS = """
import sys, time
from pathlib import Path
from lakehouse.process.lock import FolderLock, current_folder_lock, hold, this_process

folder = Path(sys.argv[1])

def stop():
    time.sleep(0.2)
    print("stopped", current_folder_lock(folder).is_held, flush=True)

with hold(FolderLock(folder, this_process(run_id="abc", command="lakehouse silver")), say=print, stop=stop):
    print("held", flush=True)
    time.sleep(600)
"""


def fail(line: str) -> None:
    pytest.fail(f"nothing was to be said, but: {line}")


def holder(run_id: str = FIRST) -> Holder:
    return this_process(run_id=run_id, command="lakehouse run")


def lock_of(folder: Path, run_id: str = FIRST) -> FolderLock:
    return FolderLock(folder, holder(run_id))


def is_held(folder: Path) -> bool:
    found = current_folder_lock(folder)
    assert found is not None
    return found.is_held


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds the lock of the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_run_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    first = holder()
    with hold(FolderLock(tmp_path, first), say=fail) as held:
        with pytest.raises(WarehouseBusyError) as refused, hold(lock_of(tmp_path, SECOND), say=fail):
            pytest.fail("two runs at once")
        held.check()
    assert refused.value.exit_code == 7
    assert refused.value.what == (
        f"`lakehouse run` (run 3f2a0000, user {first.user} on host {first.host}, process {os.getpid()})"
        f" has been working on this warehouse since {first.started_at:%Y-%m-%d %H:%M:%S} UTC."
    )
    assert refused.value.hint == (
        "Wait until it ends (--wait MINUTES), or end that process: the warehouse is free at once."
    )
    with hold(lock_of(tmp_path, SECOND), say=fail):
        assert is_held(tmp_path)


def test_who_held_it_last_stays_known(tmp_path: Path) -> None:
    assert current_folder_lock(tmp_path) is None
    assert current_folder_lock(tmp_path / "absent") is None
    odd = replace(holder(), command="lakehouse 'run' \\n `x` {y} é🚀", user="o'neil\\")
    with hold(FolderLock(tmp_path, odd), say=fail):
        assert current_folder_lock(tmp_path) == locks.LockState(is_held=True, holder=odd)
    assert current_folder_lock(tmp_path) == locks.LockState(is_held=False, holder=odd)
    # A shorter text leaves nothing of a longer one.
    short = replace(odd, command="x")
    with hold(FolderLock(tmp_path, short), say=fail):
        pass
    assert current_folder_lock(tmp_path) == locks.LockState(is_held=False, holder=short)


def test_a_folder_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    with hold(lock_of(tmp_path / "new" / "w"), say=fail):
        assert [file.name for file in (tmp_path / "new" / "w").iterdir()] == [LOCK_FILE]


def test_it_is_free_after_an_error_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold(lock_of(tmp_path), say=fail):
        raise ZeroDivisionError
    assert not is_held(tmp_path)


def test_of_many_that_begin_at_once_one_has_it(tmp_path: Path) -> None:
    start, done = threading.Barrier(8), threading.Barrier(8)
    outcomes: list[str] = []

    def work(number: int) -> None:
        start.wait()
        try:
            with hold(lock_of(tmp_path, f"{number:08}"), say=fail):
                outcomes.append("held")
                done.wait()
        except WarehouseBusyError as error:
            outcomes.append(str(error))
            done.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[-1] == "held"
    assert all("has been working on this warehouse since" in refused for refused in sorted(outcomes)[:-1])
    assert not is_held(tmp_path)


def test_a_killed_process_frees_it_at_once(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    with pytest.raises(WarehouseBusyError, match=rf"`lakehouse silver` \(run abc, .*process {other_process.pid}\)"):
        lock_of(tmp_path).take()
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    with hold(lock_of(tmp_path), say=fail) as held:
        held.check()


def test_a_stopped_process_keeps_it(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    other_process.send_signal(signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(WarehouseBusyError, match=f"process {other_process.pid}"):
            lock_of(tmp_path).take()
    other_process.send_signal(signal.SIGCONT)
    assert is_held(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_work_before_it_frees_the_warehouse(tmp_path: Path, number: signal.Signals) -> None:
    # As from a shell: Python would raise KeyboardInterrupt.
    script = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n{STOPS}"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=SECONDS)
    assert (said, process.returncode) == ("stopped True\n", -number)
    assert not is_held(tmp_path)


def test_it_is_released_by_another_thread_than_took_it(tmp_path: Path) -> None:
    """That which acts before a signal ends the process is one of its own."""
    lock = lock_of(tmp_path)
    lock.take()
    releasing = threading.Thread(target=lock.release)
    releasing.start()
    releasing.join()
    assert not is_held(tmp_path)


def test_a_busy_warehouse_is_waited_for_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_process: subprocess.Popen[str]
) -> None:
    monkeypatch.setattr(locks, "LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(locks, "_TAKE_SECONDS", 0.05)
    said: list[str] = []
    with pytest.raises(WarehouseBusyError), hold(lock_of(tmp_path), say=said.append, wait=timedelta(seconds=0.5)):
        pytest.fail("two runs at once")
    assert len(said) == 1
    assert said[0].startswith("waiting for up to 0 minutes: `lakehouse silver` (run abc")

    def end_it(text: str) -> None:
        said.append(text)
        threading.Timer(0.3, other_process.kill).start()

    with hold(lock_of(tmp_path), say=end_it, wait=timedelta(minutes=2)) as held:
        held.check()
    assert [text[:27] for text in said[1:]] == ["waiting for up to 2 minutes"]


def test_the_same_lock_can_be_taken_turn_after_turn(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    for _ in range(2):
        with hold(lock, say=fail) as held:
            assert is_held(tmp_path)
            held.check()
        assert not is_held(tmp_path)


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_a_lock_whose_file_is_gone_is_lost(tmp_path: Path, is_replaced: bool) -> None:
    other = lock_of(tmp_path, SECOND)
    with (
        pytest.raises(WarehouseBusyError, match=f"the file {tmp_path / LOCK_FILE} was removed or replaced") as lost,
        hold(lock_of(tmp_path), say=fail) as held,
    ):
        held.check()
        (tmp_path / LOCK_FILE).unlink()
        if is_replaced:
            other.take()
        with pytest.raises(WarehouseBusyError):
            held.check()
    now = "(run 77770000, " if is_replaced else "now nobody holds it"
    assert now in lost.value.what
    assert not is_replaced or is_held(tmp_path), "what is another's is not released"
    other.release()


def test_looking_at_it_takes_it_from_nobody(tmp_path: Path) -> None:
    with hold(lock_of(tmp_path), say=fail):
        pass
    looking = threading.Event()

    def look() -> None:
        while not looking.is_set():
            current_folder_lock(tmp_path)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with hold(lock_of(tmp_path), say=fail) as held:
                held.check()
    finally:
        looking.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("text", [b"", b"{", b'{"run_id": 1}'])
def test_a_run_that_has_not_said_who_it_is_is_another_run(tmp_path: Path, text: bytes) -> None:
    with hold(lock_of(tmp_path), say=fail):
        (tmp_path / LOCK_FILE).write_bytes(text)
        assert current_folder_lock(tmp_path) == locks.LockState(is_held=True, holder=None)
        with pytest.raises(WarehouseBusyError, match="Another run has just begun on this warehouse"):
            lock_of(tmp_path, SECOND).take()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr("fcntl.flock", refuses)
    with pytest.raises(TableError, match=f"The file system of {tmp_path} locks no files"):
        lock_of(tmp_path).take()


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(TableError, match=r"cannot be read \(IsADirectoryError\)"):
        current_folder_lock(tmp_path)


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/data/w", "/data/w"),
        ("file:/data/w", "/data/w"),
        ("./w", "w"),
        ("../w/x", "../w/x"),
        ("main", None),
        ("s3a://bucket/w", None),
        ("hdfs:/w", None),
        ("dbfs:/w", None),
    ],
)
def test_which_warehouse_is_a_folder(location: str, folder: str | None) -> None:
    assert local_folder(location) == (None if folder is None else Path(folder).absolute())


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt/lake rw shared:1 master:2 - nfs4 server:/lake rw
31 30 0:41 / /mnt/lake/own rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/two\\040words rw - fuse.s3fs s3fs rw
35 22 0:44 / /mnt/store rw - fuse mountpoint-s3 rw
36 22 8:1 / /mnt/ntfs rw - fuseblk /dev/sda1 rw
33 22 254:1 / /mnt/twice rw - ext4 /dev/vdc rw
34 22 0:43 / /mnt/twice rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("location", "is_own"),
    [
        ("/data/w", True),
        ("/mnt/lake", False),
        ("file:/mnt/lake/w", False),
        ("/mnt/lakes/w", True),
        ("/mnt/lake/own/w", True),
        ("/mnt/two words/w", False),
        ("/mnt/store/w", False),
        ("/mnt/ntfs/w", True),
        ("/mnt/twice/w", False),
    ],
)
def test_a_disk_that_machines_share_is_none_of_this_machine(
    location: str, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(locks, "_MOUNTS", mounts)
    assert local_folder(location) is not None, "a system that does not list its mounts"
    mounts.write_text(MOUNTS, encoding="utf-8")
    assert (local_folder(location) is not None) == is_own


def test_a_failed_release_is_no_error_of_the_run(tmp_path: Path) -> None:
    class Failing(FolderLock):
        def release(self) -> None:
            super().release()
            raise OSError("gone")

    said: list[str] = []
    lock: Lock = Failing(tmp_path, holder())
    with hold(lock, say=said.append):
        pass
    assert said == ["the lock of the warehouse was not released (OSError)"]
