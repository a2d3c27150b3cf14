"""The Python of a Spark Connect server's workers: says at once that it is there, and imports afterwards.

Spark waits ten seconds for the worker of a `foreachBatch`, whatever the settings say, and on a busy machine its imports
take longer than that.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

OF_BATCHES = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"


def executable(folder: Path) -> Path:
    """This module as what Spark can start: a file in the folder."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__)}" "$@"\n', encoding="utf-8")
    file.chmod(0o755)
    return file


def main(module: str) -> None:
    """Be Spark's worker of this module."""
    if module == OF_BATCHES:
        connected = _connected()
        import pyspark.util

        def local_connect_and_auth(conn_info: str | int | None, auth_secret: str | None) -> tuple[Any, ...]:
            return connected

        pyspark.util.local_connect_and_auth = local_connect_and_auth
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _connected() -> tuple[Any, socket.socket]:
    """The connection to Spark that its worker would make: it begins with the secret, which Spark finds right."""
    opened = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
    stream = opened.makefile("rwb", 65536)
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    stream.write(len(secret).to_bytes(4, "big") + secret)
    stream.flush()
    if stream.read(int.from_bytes(stream.read(4), "big")) != b"ok":
        raise ConnectionRefusedError("Spark does not know this worker.")
    return stream, opened


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    main(sys.argv[2])
