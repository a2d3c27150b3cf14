"""One run at a time on a warehouse; and the lock of a warehouse that is a folder on a disk of this machine.

That is the operating system's own: it is taken in a millisecond, has nothing to renew, and is free as soon as the
process that holds it has ended, however it did. Warehouses elsewhere have a lease (`lakehouse.delta.lease`).
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from lakehouse.errors import TableError, WarehouseBusyError
from lakehouse.process.ending import Ending, ending
from lakehouse.process.steps import Note

# Less than a continuous run leaves the warehouse free between two turns.
LOOK_EVERY_SECONDS = 4.0
# In the folder of the warehouse. Spark and Delta take no name that begins so for a table or for its data.
LOCK_FILE = "_lock"
ENDS_WITH_ITS_PROCESS = "Wait until it ends (--wait MINUTES), or end that process: the warehouse is free at once."
# A look at the lock (`current_folder_lock`) holds it for a moment; and who has just taken it writes down who that is.
_TAKE_SECONDS = 0.5
_MOUNTS = Path("/proc/self/mountinfo")
# File systems that other machines can have mounted too. What is mounted through FUSE may be a store elsewhere.
_SHARED = re.compile(r"nfs4?|cifs|smb\w+|ceph|lustre|beegfs\w*|gpfs|gfs2|ocfs2|afs|9p|virtiofs|glusterfs|fuse(\..+)?")
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Holder:
    """A run, and the process it runs in."""

    run_id: str
    command: str
    host: str
    user: str
    pid: int
    started_at: datetime

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
    )


class Lock(Protocol):
    """The right to write to a warehouse: of one run at a time."""

    def take(self) -> None:
        """Take it. Raises WarehouseBusyError when another run has it."""

    def check(self) -> None:
        """Raise WarehouseBusyError when it was taken and is lost. Call it before each step."""

    def release(self) -> None:
        """Free the warehouse. Does nothing where the lock was not taken, or is lost."""


@contextmanager
def hold(
    lock: Lock, *, say: Note, wait: timedelta = timedelta(), stop: Callable[[], None] = lambda: None
) -> Iterator[Lock]:
    """Inside the block no other run works on the warehouse; how far that goes, each Lock says.

    The lock is released however the block ends, also when a signal ends the process (lakehouse.process.ending): `stop`
    first ends what the process is at work on elsewhere.

    Raises WarehouseBusyError when another run still has it after `wait`, which `say` announces once, and at the end of
    the block when it was lost meanwhile.
    """

    def give_up() -> None:
        # Whatever fails, the process ends; who comes next is told who had the warehouse.
        with suppress(Exception):
            stop()
        with suppress(Exception):
            lock.release()

    with ending(give_up) as ends:
        _take(lock, ends, say=say, wait=wait)
        try:
            yield lock
            lock.check()
        finally:
            with ends.deferred():
                try:
                    lock.release()
                except Exception as error:
                    # The work is done, or has an error of its own: that the next run may have to wait is none.
                    say(f"the lock of the warehouse was not released ({type(error).__name__})")


def _take(lock: Lock, ends: Ending, *, say: Note, wait: timedelta) -> None:
    """Take the lock as soon as it is free. Raises WarehouseBusyError when it is not within `wait`."""
    begun = monotonic()
    has_said = False
    while True:
        try:
            with ends.deferred():  # else one that was just taken would be nobody's
                lock.take()
            return
        except WarehouseBusyError as refused:
            is_over = monotonic() - begun >= wait.total_seconds()
            # Whoever waits at all looks twice, however long a look takes.
            if not wait or (has_said and is_over):
                raise
            if not has_said:
                say(f"waiting for up to {wait.total_seconds() / 60:.0f} minutes: {refused.what}")
                has_said = True
        sleep(LOOK_EVERY_SECONDS)


def local_folder(location: str) -> Path | None:
    """The folder of a warehouse on a disk of this machine; None for a catalog, a store, and a disk that machines share.

    `location` is as in Address. It depends on nothing but where the folder is, so all who work there agree on the lock.
    """
    path = re.sub(r"^file:/+", "/", location)
    if "/" not in path or re.match(r"[\w+.-]+:", path):
        return None
    folder = Path(path).absolute()
    return None if _SHARED.fullmatch(_file_system(folder)) else folder


def _file_system(folder: Path) -> str:
    """The kind of file system that the folder is on, or will be; empty where the system does not list its mounts."""
    resolved = folder.resolve()
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found, depth = "", -1
    for mount in mounts:
        # ID parent major:minor root mount-point options … - kind source options
        fields, _, kind = mount.partition(" - ")
        mount_point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields.split(" ")[4]))
        # Of two at one place the later one hides the earlier.
        if resolved.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
            found, depth = kind.split(" ")[0], len(mount_point.parts)
    return found


class FolderLock:
    """The Lock of a warehouse that is a folder on a disk of this machine.

    Guaranteed: no other process gets it until this one releases it, or ends. A process that is stopped (SIGSTOP, a
    debugger) keeps it for as long. `check` finds out that somebody has removed or replaced the file.

    Not guaranteed: that Spark's Java, which the process has started, ends in the moment in which the process is killed.
    What keeps the tables right then is what keeps them right when a batch is repeated: merges guarded by position,
    appends guarded by batch.
    """

    def __init__(self, folder: Path, holder: Holder) -> None:
        from filelock import FileLock

        self._folder = folder
        self._path = folder / LOCK_FILE
        self._holder = holder
        self._file: tuple[int, int] | None = None
        # For all threads of the process: that which acts before a signal ends it is another one
        # (lakehouse.process.ending).
        self._lock = FileLock(self._path, thread_local=False, fallback_to_soft=False, on_acquired=self._write)

    def take(self) -> None:
        """Take it. Raises WarehouseBusyError when another run has it, and TableError where files cannot be locked."""
        try:
            # Where nobody holds it, a look was in the way each time: looks are short, and shared.
            while not self._is_taken():
                now = current_folder_lock(self._folder)
                if now is None or now.is_held:
                    raise busy(now.holder if now else None)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise TableError(
                f"The file system of {self._folder} locks no files, so two runs could work there at once.",
                hint="Keep the warehouse on a disk of this machine, or in a store.",
            ) from None

    def _is_taken(self) -> bool:
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=_TAKE_SECONDS)
        except Timeout:
            return False
        return True

    def check(self) -> None:
        """Raise WarehouseBusyError when the file of the lock is not there any more, or is another one."""
        if self._file is None or self._file == _identity(self._path):
            return
        now = current_folder_lock(self._folder)
        raise WarehouseBusyError(
            f"This run has lost the warehouse: the file {self._path} was removed or replaced, and now "
            f"{f'{now.holder} holds it' if now and now.holder else 'nobody holds it'}.",
            hint="Leave that file alone. Run again when no other run works on the warehouse: what is missing is read "
            "again, nothing twice.",
        )

    def release(self) -> None:
        """Free the warehouse. Who had it stays written in the file."""
        self._lock.release()

    def _write(self, descriptor: int) -> None:
        """Write down who holds the lock: the file is empty, and nobody else writes it now."""
        import msgspec

        status = os.fstat(descriptor)
        os.write(descriptor, msgspec.json.encode(self._holder))
        self._file = (status.st_dev, status.st_ino)


@dataclass(frozen=True)
class LockState:
    """Of the lock of a folder: whether it is held, and by whom; or who held it last. None: a run that just begins."""

    is_held: bool
    holder: Holder | None


def current_folder_lock(folder: Path) -> LockState | None:
    """The lock as it is now; None where no run has ever taken it. Raises TableError where it may not be read."""
    import msgspec

    try:
        with (folder / LOCK_FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_UN)
                is_held = False
            except BlockingIOError:
                is_held = True
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TableError(
            f"The lock of the warehouse, {folder / LOCK_FILE}, cannot be read ({type(error).__name__}).",
            hint="Give this user the right to read it.",
        ) from None
    try:
        return LockState(is_held, msgspec.json.decode(text, type=Holder))
    except msgspec.DecodeError:
        return LockState(is_held, None)


def busy(holder: Holder | None, *, hint: str = ENDS_WITH_ITS_PROCESS) -> WarehouseBusyError:
    """That another run has the lock. `holder` None: one that has just begun, and has not yet said who it is."""
    if holder is None:
        return WarehouseBusyError("Another run has just begun on this warehouse.", hint=hint)
    since = clock(holder.started_at)
    return WarehouseBusyError(f"{holder} has been working on this warehouse since {since}.", hint=hint)


def clock(moment: datetime) -> str:
    """A moment as messages have it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
