"""What a failure of the store means: one sentence for a full disk, a missing right and a damaged file, whoever raised
what.

Spark reports both as errors of many kinds (a stream that stopped, a task that failed, a commit that could not be
written), with the reason somewhere in a Java trace.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakehouse.errors import (
    InstallationError,
    JavaGoneError,
    LakehouseError,
    TableError,
)

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

# An exception at the start of a line, as Java's traces and Spark's sentences have it. Nothing else of a text is looked
# at: further inside it can quote rows.
_RAISED = r"^(?:.* terminated with exception: |[\s:]*)(?:(?:Caused by|Suppressed): )?(?:[\w$]+\.)*"
_REASON = "(?:Permission denied|Operation not permitted|Read-only file system)"
_IS_FULL = re.compile(
    rf"{_RAISED}(?:(?:IOException|FSError|FileSystemException|FileNotFoundException): (?:java\.\S+ )?(?:/.*)?)?"
    r"\(?(?:No space left on device|Disk quota exceeded)\b",
    re.MULTILINE,
)
_IS_DENIED = tuple(
    re.compile(_RAISED + pattern, re.MULTILINE)
    for pattern in (
        rf"FileNotFoundException: (?P<path>/.+) \({_REASON}\)",
        rf"FileSystemException: (?P<path>/.+): {_REASON}",
        r"AccessDeniedException: (?P<path>\w*:?/[^\s:]*)",
        r"AccessDeniedException: ",
        r"AccessControlException: ",
        rf"(?:IOException: |FSError: java\.io\.IOException: )?{_REASON}\b",
        r"(?:\w+: )?\[INSUFFICIENT_PERMISSIONS\]",
    )
)
# What Hadoop and Delta say of a folder that they could not create: they do not ask the system why.
_IS_NOT_CREATED = tuple(
    re.compile(_RAISED + pattern, re.MULTILINE)
    for pattern in (
        r"IOException: Mkdirs failed to create (?P<path>\S+) \(exists=false",
        r"IOException: mkdir of (?P<path>\S+) failed",
        r"(?:\w+: )?\[DELTA_CANNOT_CREATE_LOG_PATH\] Cannot create (?P<path>\S+)",
    )
)
# What Spark and Delta say of a file that is not there, or whose bytes are not what was written.
_TASK = r"(?:^.*most recent failure: Lost task .*?\): (?:[\w$]+\.)*)"
_IS_UNREADABLE = tuple(
    re.compile(rf"(?:{_RAISED}|{_TASK}){pattern}", re.MULTILINE)
    for pattern in (
        r"ChecksumException: Checksum error: (?P<path>\S.*?) at \d+ exp",
        r"(?:\w+: )?\[FAILED_READ_FILE\.(?P<kind>\w+)\] Encountered error while reading file (?P<path>\S.*?)\.(?: |$)",
        r"(?:\w+: )?\[DELTA_FILE_NOT_FOUND(?P<kind>\w*)\] File path (?P<path>\S+)",
        r"(?:\w+: )?\[CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED\] .*? File: (?P<path>\S+)",
        r"(?:\w+: )?\[DELTA_TRUNCATED_TRANSACTION_LOG\] (?P<path>\S.*?): Unable to reconstruct",
        r"(?:\w+: )?\[DELTA_LOG_FILE_NOT_FOUND\] .*? at (?P<path>\S+?)\.?(?: |$)",
        r"(?:\w+: )?\[DELTA_(?:VERSIONS_NOT_CONTIGUOUS|MISSING_PART_FILES|STATE_RECOVER_ERROR)\](?P<path>)",
    )
)
_IS_ABSENT = ("FILE_NOT_EXIST",)
# Of an absent deletion vector Spark names the data file that it is for.
_ABSENT_VECTOR = re.compile(rf"{_RAISED}FileNotFoundException: (?:File )?(?P<path>\S.*?\.bin)\b", re.MULTILINE)
# A line of Python's trace, as Spark quotes it when the body of a stream's batch fails.
_IN_PYTHON = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in ', re.MULTILINE)
# What a worker raises that has not what it needs; a name of a package quotes no row.
_NO_PACKAGE = re.compile(r"^(?:[\w.]+: )?ModuleNotFoundError: No module named '(?P<package>\w+)", re.MULTILINE)
# What py4j says of a call whose connection was lost: of an error of Java's there would be more.
_UNANSWERED = re.compile(r"An error occurred while calling \S+")
_CODE = Path(__file__).parent.parent
_PACKAGES = ("bronze", "silver", "gold", "connectors", "lakehouse")
# A disk with less is full: a folder cannot be created there.
_LEAST_ROOM = 100_000


def storage_error(error: BaseException, *, job: str, storage_paths: Sequence[str]) -> TableError | None:
    """The failure in our words when the store has no room, refuses this user, or has a file that cannot be read.

    None when it has another reason.

    `job` begins the sentence (`silver: postgres`), `storage_paths` are where it writes: the warehouse, the checkpoints.
    For any exception of a job: StreamingQueryException, Py4JJavaError, what Spark Connect raises, OSError; each with
    its causes. Nothing of the exception's text passes but the path.
    """
    for number, filename, text in _said(error):
        denied = (
            (filename or storage_paths[0]) if number in _DENIED else _path(_IS_DENIED, text, otherwise=storage_paths[0])
        )
        not_created = _path(_IS_NOT_CREATED, text, otherwise=storage_paths[0])
        has_no_room = any(free < _LEAST_ROOM for free in _free(storage_paths).values())
        if number in _FULL or _IS_FULL.search(text) or (not_created and has_no_room):
            room = ", ".join(f"{free // 1_000_000:,} MB at {path}" for path, free in _free(storage_paths).items())
            return TableError(
                f"{job}: a disk that this job writes to is full (free now: {room}).",
                hint="Make room there, then run the job again: it resumes where it stopped.",
            )
        path = denied or not_created
        if path:
            return TableError(
                f"{job}: the store refuses user {_user()} at {path.removeprefix('file:')}.",
                hint="Give this user the right to read and write there (is it mounted read-only?), then run the job "
                "again: it resumes where it stopped.",
            )
    file = unreadable_file(error)
    return None if file is None else _damaged(file, job=job, warehouse=storage_paths[0])


@dataclass(frozen=True)
class UnreadableFile:
    """A file of a table, or of a stream's checkpoint, that cannot be read: it is damaged, or `is_absent`.

    `path` is empty where Delta says only that a table's log is not whole.
    """

    path: str
    is_absent: bool


def unreadable_file(error: BaseException) -> UnreadableFile | None:
    """The file that cannot be read, when that is what the exception, or one that led to it, comes from.

    None where the store refuses this user: the file may be as it should be.
    """
    texts = [text for _number, _filename, text in _said(error)]
    if any(pattern.search(text) for pattern in _IS_DENIED for text in texts):
        return None
    for pattern in _IS_UNREADABLE:
        for text in texts:
            if found := pattern.search(text):
                is_absent = found.groupdict().get("kind") in _IS_ABSENT
                vectors = [vector for trace in texts if is_absent and (vector := _ABSENT_VECTOR.search(trace))]
                (found, *_) = (*vectors, found)
                return UnreadableFile(unquote(re.sub(r"^file:(?://)?(?=/)", "", found["path"])), is_absent=is_absent)
    return None


def _damaged(file: UnreadableFile, *, job: str, warehouse: str) -> TableError:
    """The error of a file that cannot be read: of which table it is, and the way on."""
    if not file.path:
        return TableError(
            f"{job}: files of the log of a table (_delta_log) are not there any more.",
            hint=f"LAKEHOUSE_TRACE=1 shows which table that is. {_RESTORE}",
        )
    table = _table_of(file.path, warehouse)
    layer = "" if table is None else table.partition(".")[0]
    what = "is not there any more" if file.is_absent else "cannot be read: its content is damaged"
    hint = _WAYS_ON.get(layer, _RESTORE)
    if layer == "gold" and "/_delta_log" in file.path:
        folder = file.path.partition("/_delta_log")[0]
        hint = f"Move the folder {folder} away, then run `lakehouse gold`: it computes the table from silver again."
    return TableError(f"{job}: a file of {table or 'a table'} {what}: {file.path}.", hint=hint)


def _table_of(path: str, warehouse: str) -> str | None:
    """The table that a file below the warehouse belongs to; None where it is elsewhere."""
    root = re.sub(r"^file:(?://)?(?=/)", "", warehouse).rstrip("/")
    root = root if ":" in root else os.path.normpath(Path(root).absolute())
    schema, _, rest = path.removeprefix(f"{root}/").partition("/")
    table, _, file = rest.partition("/")
    return f"{schema}.{table}" if path.startswith(f"{root}/") and file else None


_RESTORE = "Restore the file from a backup; docs/verify.md says what is possible without one."
_WAYS_ON = {
    "silver": "Restore the file from a backup; or rebuild silver from bronze: docs/verify.md says how.",
    "gold": "Run `lakehouse gold --full-refresh`: it writes gold from silver, and reads nothing of what is damaged.",
}


@contextmanager
def storage_errors(*, job: str, storage_paths: Sequence[str]) -> Iterator[None]:
    """Inside, a failure of the store is the TableError of `storage_error`; every other exception is itself."""
    try:
        yield
    except LakehouseError:
        raise
    except Exception as error:
        found = storage_error(error, job=job, storage_paths=storage_paths)
        if found is None:
            raise
        raise found from None


def place_in_code(error: BaseException) -> str | None:
    """The last line of this code in the trace that the exception quotes (`silver/batch/merge.py, line 88`), or None.

    It names files that are there, and nothing else of the text, which can quote rows.
    """
    found = None
    for _number, _filename, text in _said(error):
        for match in _IN_PYTHON.finditer(text):
            path = Path(match["file"])
            if path.is_relative_to(_CODE) and path.relative_to(_CODE).parts[0] in _PACKAGES and path.is_file():
                found = f"{path.relative_to(_CODE)}, line {match['line']}"
    return found


def unexpected(error: Exception, *, job: str) -> LakehouseError:
    """That an exception that nobody has thought of ended a job: its kind, Spark's name for it, and our last line.

    Nothing of its text, which can quote rows. `LAKEHOUSE_TRACE=1` shows it all. A Python package that is not there is
    an InstallationError: the wheel leaves Spark and Delta to Databricks, and to its extra `local`.
    """
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package and not (_CODE / package).exists():
        return InstallationError(
            f"{job}: the Python package {package} is not installed.",
            hint="Off Databricks, install the wheel with its extra: orders-lakehouse[local] brings Spark and Delta.",
        )
    gone = java_gone(error, job=job)
    if gone is not None:
        return gone
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(_CODE)
    ]
    kind, condition = type(error).__name__, getattr(error, "getCondition", lambda: None)()
    named = f"{kind} ({condition})" if condition else kind
    at = f" at {Path(frames[-1].filename).relative_to(_CODE)}, line {frames[-1].lineno}" if frames else ""
    return LakehouseError(
        f"{job}: stopped by an unexpected {named}{at}.",
        hint="Run it again: it goes on. If it comes back, LAKEHOUSE_TRACE=1 shows the trace, which can quote rows.",
    )


def package_missing(error: BaseException, *, job: str) -> InstallationError | None:
    """That Spark's executors lack a Python package, when that is what ended the job."""
    for _number, _filename, text in _said(error):
        if found := _NO_PACKAGE.search(text):
            return InstallationError(
                f"{job}: Spark's executors have no Python package {found['package']}.",
                hint="They decode the records: they need the wheel, pyarrow, msgspec and pydantic. docs/clusters.md "
                "says how to send an environment along. Then run the job again: it resumes with the same batch.",
            )
    return None


def java_gone(error: BaseException, *, job: str) -> JavaGoneError | None:
    """That Spark's Java has ended under the job, when that is what the exception, or one that led to it, comes from."""
    for led in _chain(error):
        # By name: without Spark, and over Spark Connect, py4j need not be installed. What Python raises of a connection
        # counts when it was py4j's: others are to Kafka or to a store.
        frames = traceback.extract_tb(led.__traceback__)
        is_py4j = any("py4j" in Path(frame.filename).parts for frame in frames)
        is_network = type(led).__name__ == "Py4JNetworkError" or (isinstance(led, ConnectionError) and is_py4j)
        is_unanswered = type(led).__name__ == "Py4JError" and _UNANSWERED.fullmatch(str(led))
        if is_network or is_unanswered:
            return JavaGoneError(
                f"{job}: Spark's Java has ended in the middle of it.",
                hint="Run it again: it goes on where it stopped. If it comes back, the heap is too small: pass "
                "--spark-conf spark.driver.memory=4g (2g is the default here; spark-submit: --driver-memory).",
            )
    return None


def stream_stopped(error: StreamingQueryException, *, job: str, hint: str) -> LakehouseError:
    """That a stream stopped for a reason that has no words of its own here: Spark's name for it, and where it began."""
    path = place_in_code(error)
    at = f" at {path}" if path else ""
    return LakehouseError(f"{job}: the stream stopped ({error.getCondition()}{at}).", hint=hint)


def _path(patterns: Sequence[re.Pattern[str]], text: str, *, otherwise: str) -> str | None:
    """The path that the first pattern found in the text names; None when none is found."""
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return match.groupdict().get("path") or otherwise
    return None


def _said(error: BaseException) -> Iterator[tuple[int | None, str, str]]:
    """Of the exception and all that led to it: the number and path of an OSError, and the text with Java's trace."""
    for led in _chain(error):
        number, filename = (led.errno, str(led.filename or "")) if isinstance(led, OSError) else (None, "")
        # Spark shows the trace only where a setting says so; it is there in any case.
        trace = getattr(led, "_stackTrace", None) or getattr(led, "_stacktrace", None) or ""
        yield number, filename, f"{led}\n{trace}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and all that led to it."""
    led: BaseException | None = error
    seen = set()
    while led is not None and id(led) not in seen:
        seen.add(id(led))
        yield led
        led = led.__cause__ or led.__context__


def _free(storage_paths: Sequence[str]) -> dict[str, int]:
    """The free bytes in those places that are on this machine's disks, and where Spark keeps its temporary files."""
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")[0]  # noqa: S108 - Spark's own default
    free = {}
    for storage_path in (*storage_paths, scratch):
        name = storage_path.removeprefix("file:")
        if ":" in name or "/" not in name:  # a store elsewhere, or a catalog
            continue
        path = Path(name).absolute()
        for existing in (path, *path.parents):
            try:
                free[str(existing)] = shutil.disk_usage(existing).free
                break
            except OSError:  # not created yet, or not to be seen by this user
                continue
    return free


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
