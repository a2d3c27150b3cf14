"""Failures of the store, as Spark, Java and Python say them, in one sentence."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

import pytest

from lakehouse import failures
from lakehouse.errors import (
    TableError,
)
from lakehouse.failures import (
    java_gone,
    package_missing,
    place_in_code,
    storage_error,
    unreadable_file,
)

FULL = [
    "An error occurred while calling o79.execute.\n"
    ": org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n\tat org.apache.hadoop.fs.Raw\n",
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: No space left on device SQLSTATE: XXKST",
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised.\n"
    ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/w/x.\n"
    "Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource\n"
    "\tSuppressed: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n",
    "Caused by: java.io.FileNotFoundException: /w/a b/x.parquet (No space left on device)",
    "Caused by: java.nio.file.FileSystemException: /w/x.parquet: Disk quota exceeded",
]
DENIED = {
    ": java.io.IOException: mkdir of file:/w/_checkpoints/silver/postgres failed": "/w/_checkpoints/silver/postgres",
    "Caused by: java.io.IOException: Mkdirs failed to create file:/w/ops/t/source=a (exists=false, cwd=file:/h)": (
        "/w/ops/t/source=a"
    ),
    ": delta.DeltaIOException: [DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/w/x/_delta_log": ("/w/x/_delta_log"),
    "Caused by: java.io.FileNotFoundException: /w/a b/x.parquet (Permission denied)": "/w/a b/x.parquet",
    "Caused by: java.nio.file.AccessDeniedException: /w/x.parquet": "/w/x.parquet",
    "Caused by: java.nio.file.AccessDeniedException: s3a://bucket/w: getFileStatus on s3a://bucket/w: com.amazonaws": (
        "s3a://bucket/w"
    ),
    'java.nio.file.AccessDeniedException: Operation failed: "This request is not authorized", 403, HEAD': "/w",
    "org.apache.hadoop.security.AccessControlException: Permission denied: user=x, access=WRITE": "/w",
    "Caused by: java.nio.file.FileSystemException: /w/x.parquet: Operation not permitted": "/w/x.parquet",
    "[INSUFFICIENT_PERMISSIONS] Insufficient privileges: User does not have MODIFY on Table 'x'.": "/w",
}
NEITHER = [
    "[CAST_INVALID_INPUT] The value 'No space left on device' of the type \"STRING\" cannot be cast",
    "Caused by: org.apache.spark.SparkRuntimeException: the value 'Permission denied' is not a number",
    "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [x]",
    "Caused by: java.io.IOException: Connection reset by peer",
    "java.io.FileNotFoundException: File file:/w/x.parquet does not exist",
]


@pytest.mark.parametrize("text", FULL)
def test_a_full_disk(text: str, tmp_path: Path) -> None:
    error = storage_error(
        RuntimeError(text), job="silver: postgres", storage_paths=(str(tmp_path / "not" / "yet"), "main")
    )
    assert error is not None
    assert error.exit_code == 5
    assert error.what.startswith("silver: postgres: a disk that this job writes to is full (free now: ")
    assert f" MB at {tmp_path}, " in error.what
    assert "device" not in str(error)


@pytest.mark.parametrize(("text", "path"), DENIED.items())
def test_a_missing_right(text: str, path: str) -> None:
    error = storage_error(RuntimeError(text), job="gold", storage_paths=("/w",))
    assert error is not None
    assert error.exit_code == 5
    assert error.what.startswith("gold: the store refuses user ")
    assert error.what.endswith(f" at {path}.")


def test_a_folder_that_a_full_disk_has_no_room_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java does not say why it could not create one."""
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    error = RuntimeError(f": java.io.IOException: mkdir of file:{tmp_path}/x failed")
    explained = storage_error(error, job="gold", storage_paths=(str(tmp_path),))
    assert explained is not None
    assert f"is full (free now: 0 MB at {tmp_path}" in explained.what


@pytest.mark.parametrize("text", NEITHER)
def test_something_else(text: str) -> None:
    assert storage_error(RuntimeError(text), job="gold", storage_paths=("/w",)) is None


CHECKSUM = "org.apache.hadoop.fs.ChecksumException: Checksum error: file:{} at 512 exp: -123 got: 456"
UNREADABLE = "[FAILED_READ_FILE.{}] Encountered error while reading file file://{}. {}SQLSTATE: KD001"
DATA_FILE = "/w/bronze/postgres_events/part-0 a.c000.zstd.parquet"
DAMAGED = [
    (UNREADABLE.format("NO_HINT", DATA_FILE.replace(" ", "%20"), ""), False),
    (UNREADABLE.format("CANNOT_READ_FILE_FOOTER", DATA_FILE, "Could not read footer. "), False),
    (UNREADABLE.format("FILE_NOT_EXIST", DATA_FILE, "File does not exist. It is possible "), True),
    (f"[STREAM_FAILED] Query [id = 1] terminated with exception: x\nCaused by: {CHECKSUM.format(DATA_FILE)}\n", False),
    (
        "Job aborted due to stage failure: Task 0 in stage 8.0 failed 1 times, most recent failure: Lost task 0.0 in "
        f"stage 8.0 (TID 7) (h executor driver): {'org.apache.spark.SparkException: '}"
        + UNREADABLE.format("NO_HINT", DATA_FILE, ""),
        False,
    ),
]


@pytest.mark.parametrize(("text", "is_absent"), DAMAGED)
def test_a_file_that_cannot_be_read_is_named_with_its_table(text: str, is_absent: bool) -> None:
    error = storage_error(RuntimeError(text), job="silver: postgres", storage_paths=("/w", "/w/_checkpoints"))
    assert error is not None
    assert error.exit_code == 5
    what = "is not there any more" if is_absent else "cannot be read: its content is damaged"
    assert error.what == f"silver: postgres: a file of bronze.postgres_events {what}: {DATA_FILE}."
    assert error.hint.startswith("Restore the file from a backup")


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("/w/silver/orders/x.parquet", r"Restore .*; or rebuild silver from bronze"),
        ("/w/gold/unified_orders/x.parquet", r"Run `lakehouse gold --full-refresh`"),
        (
            "/w/gold/orders_daily/_delta_log/00000000000000000003.json",
            r"Move the folder /w/gold/orders_daily away, then",
        ),
        ("/w/ops/batches/x.parquet", r"Restore the file from a backup"),
    ],
)
def test_each_layer_has_its_own_way_on(file: str, hint: str) -> None:
    error = storage_error(RuntimeError(CHECKSUM.format(file)), job="gold", storage_paths=("/x/../w/",))
    assert error is not None
    assert re.match(hint, error.hint)
    assert ".".join(file.split("/")[2:4]) in error.what


def test_a_file_elsewhere_is_named_without_a_table(tmp_path: Path) -> None:
    error = storage_error(
        RuntimeError(CHECKSUM.format("/elsewhere/a/b/c.parquet")), job="gold", storage_paths=("main",)
    )
    assert error is not None
    assert error.what == "gold: a file of a table cannot be read: its content is damaged: /elsewhere/a/b/c.parquet."
    store = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/w/silver/a/x.parquet. SQLSTATE: K"
    of_store = storage_error(RuntimeError(store), job="gold", storage_paths=("s3a://b/w", str(tmp_path)))
    assert of_store is not None
    assert "a file of silver.a cannot be read" in of_store.what


def test_a_log_that_is_not_whole_is_said() -> None:
    text = "[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 2) are not contiguous. \nA gap in the delta log"
    error = storage_error(RuntimeError(text), job="gold", storage_paths=("/w",))
    assert error is not None
    assert error.what == "gold: files of the log of a table (_delta_log) are not there any more."


def test_a_deletion_vector_that_is_absent_is_named_and_not_its_data_file() -> None:
    text = UNREADABLE.format("FILE_NOT_EXIST", DATA_FILE, "File does not exist. ")
    cause = "Caused by: java.io.FileNotFoundException: File file:/w/silver/a/deletion_vector_1.bin does not exist"
    error = storage_error(RuntimeError(f"{text}\n{cause}"), job="gold", storage_paths=("/w",))
    assert error is not None
    assert error.what == "gold: a file of silver.a is not there any more: /w/silver/a/deletion_vector_1.bin."


def test_a_right_that_is_missing_is_no_damage() -> None:
    text = f"{UNREADABLE.format('NO_HINT', DATA_FILE, '')}\nCaused by: java.nio.file.AccessDeniedException: {DATA_FILE}"
    error = storage_error(RuntimeError(text), job="gold", storage_paths=("/w",))
    assert error is not None
    assert "the store refuses user" in error.what
    assert unreadable_file(RuntimeError(text)) is None
    assert unreadable_file(RuntimeError(f"the value '{CHECKSUM.format(DATA_FILE)}' is not a number")) is None


def test_a_package_that_executors_lack_is_named_with_the_way_on() -> None:
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Lost task 0.3\n"
        "pyspark.errors.exceptions.base.PySparkRuntimeError: Traceback (most recent call last):\n"
        '  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1\n'
        "ModuleNotFoundError: No module named 'msgspec'\n"
    )
    found = package_missing(RuntimeError(said), job="silver: postgres")
    assert found is not None
    assert found.what == "silver: postgres: Spark's executors have no Python package msgspec."
    assert "docs/clusters.md" in found.hint
    assert package_missing(RuntimeError("a row has ModuleNotFoundError: No module named 'x'"), job="silver") is None


def test_only_a_lost_connection_of_py4j_means_that_java_is_gone() -> None:
    class Py4JError(Exception):
        """As py4j has it."""

    said_by_java = Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: no such method")
    for error in (ConnectionRefusedError(errno.ECONNREFUSED, "to a store"), said_by_java, ValueError("x")):
        assert java_gone(error, job="gold") is None
    lost = Py4JError("An error occurred while calling o1.x")
    try:
        raise TableError("A stop that failed.", hint="Wait.") from lost
    except TableError as error:
        assert java_gone(error, job="gold") is not None


def test_it_is_found_behind_other_exceptions() -> None:
    try:
        try:
            raise PermissionError(errno.EACCES, "Permission denied", "/w/_checkpoints")
        except OSError as cause:
            raise RuntimeError("the job failed") from cause
    except RuntimeError as error:
        explained = storage_error(error, job="bronze", storage_paths=("/w",))
    assert explained is not None
    assert explained.what.endswith(" at /w/_checkpoints.")
    full = OSError(errno.ENOSPC, "No space left on device")
    assert storage_error(full, job="bronze", storage_paths=("s3://bucket/w",)) is not None


def test_the_trace_that_spark_does_not_show_is_read() -> None:
    error = RuntimeError("[STREAM_FAILED] Query terminated")
    error._stackTrace = "Caused by: java.io.IOException: No space left on device"  # type: ignore[attr-defined]
    assert storage_error(error, job="silver", storage_paths=("/w",)) is not None


def test_the_place_in_this_code_is_named_and_nothing_else_of_the_text() -> None:
    code = Path(failures.__file__).parent.parent
    text = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        f'  File "{code}/silver/apply.py", line 60, in apply\n    apply_batch(batch)\n'
        f'  File "{code}/silver/batch/merge.py", line 88, in merge\n    table.execute()\n'
        '  File "/usr/lib/python3/site-packages/pyspark/sql/frame.py", line 5, in collect\n'
        f'ValueError: a row\n  File "{code}/silver/a secret.py", line 7, in a secret\n'
    )
    assert place_in_code(RuntimeError(text)) == "silver/batch/merge.py, line 88"
    assert place_in_code(RuntimeError("[STREAM_FAILED] Query terminated")) is None
