"""A command's Spark session and its warehouse: any command reads it, one at a time writes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cli.options import CommandContext
from lakehouse.process.steps import Steps

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse
    from lakehouse.process.lock import Lock


def opened(chosen: CommandContext, steps: Steps, *, is_lasting: bool = False) -> Warehouse:
    """The warehouse, in a Spark session of its own; `is_lasting`: one that goes on for hours.

    Raises TableError when it was written by a newer release.
    """
    from lakehouse.batches import check_format
    from lakehouse.spark.materialized import materialize_in
    from lakehouse.spark.session import elsewhere, spark_session

    with steps.step("session", "starting Spark") as note:
        spark = spark_session(chosen.cluster, is_lasting=is_lasting)
        master = elsewhere(spark)
        note(f"Spark {spark.version}{f' at {master}' if master else ''}")
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler of Ctrl-C raises, and the exception is lost when Python runs a finalizer just then. The
        # system's way ends the process, and Spark's Java with it; the next run resumes.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    warehouse = chosen.settings.address.open(spark)
    materialize_in(warehouse.checkpoints, run_id=chosen.run_id)
    check_format(warehouse)
    return warehouse


def with_discovered_tables(chosen: CommandContext, warehouse: Warehouse) -> CommandContext:
    """What was chosen, with the tables that rules have made in the warehouse among its contracts."""
    from silver.by_rule.tables import with_discovered_tables as with_discovered

    return replace(chosen, contracts=with_discovered(warehouse, chosen.contracts))


@contextmanager
def acquire_lock(chosen: CommandContext, warehouse: Warehouse, steps: Steps) -> Iterator[Lock]:
    """Inside the block this command alone works on the warehouse.

    Raises WarehouseBusyError when another one does and has not ended after `--wait`.
    """
    from lakehouse.batches import mark_format
    from lakehouse.delta.locks import locked
    from lakehouse.failures import storage_errors
    from lakehouse.process.lock import this_process

    holder = this_process(run_id=chosen.run_id, command=f"lakehouse {chosen.command}")
    storage_paths = (warehouse.location, warehouse.checkpoints)
    with (
        storage_errors(job=chosen.command, storage_paths=storage_paths),
        locked(warehouse, holder=holder, say=steps.say, wait=chosen.wait) as lock,
    ):
        mark_format(warehouse)
        yield lock
