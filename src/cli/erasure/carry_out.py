"""The steps of an erasure, layer by layer. Each may be repeated: a command that was killed is run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cli.erasure.request import ErasureRequest
from cli.options import CommandContext
from lakehouse.errors import TableError
from lakehouse.process.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.process.lock import Lock


def carry_out(
    chosen: CommandContext,
    request: ErasureRequest,
    records: Mapping[str, DataFrame],
    steps: Steps,
    lock: Lock,
    *,
    vacuum: bool,
) -> None:
    """Erase the rows from every layer. `records`: by feed those of bronze. `vacuum`: and the files of before.

    Gold takes what has changed in silver, and, where a broker is given, publish what has changed in gold: so nothing
    reads the versions of before any more when their files go. Raises TableError when gate 2 blocks the source: gold
    then still reads them.
    """
    from bronze.erase import erase as erase_records
    from lakehouse.erasure.files import rewrite_marked
    from silver.erasure.erase import erase as erase_rows
    from silver.erasure.erase import erase_samples, sample_texts, write_down

    warehouse = request.warehouse
    with steps.step("forget", "writing down what is erased"):
        for feed in request.feeds:
            write_down(warehouse, feed, request.keys, records[feed.name], request=chosen.run_id)
    lock.check()
    with steps.step("forget", f"rewriting files of bronze.{request.source}_events") as note:
        note(f"{erase_records(warehouse, request.source):,} records without key and value")
    lock.check()
    with steps.step("forget", "removing the rows of silver, quarantine entries, samples of keys"):
        for feed in reversed(request.feeds):  # last the one that decides whether a row is deleted
            erase_rows(warehouse, feed, request.keys)
        erase_samples(warehouse, sample_texts(request.feeds, request.keys, request.contracts))
    if vacuum:
        with steps.step("forget", "rewriting files with rows that are marked as deleted") as note:
            for name in request.tables():
                lock.check()
                note.now(name)
                rewrite_marked(warehouse, name)
    lock.check()
    _bring_up_gold(chosen, request, steps)
    if vacuum:
        _remove_old_files(chosen, request, steps, lock)


def _bring_up_gold(chosen: CommandContext, request: ErasureRequest, steps: Steps) -> None:
    """Let gold and the topics have the versions of silver and gold without the rows."""
    from gold import build
    from gold.topics import publish

    gold, spark = request.contracts.gold, request.warehouse.spark
    if not (gold.has_unified or gold.joins or gold.upsert_topics):
        return
    with steps.step("forget", "bringing gold up to silver"):
        outcome = build.run(spark, chosen.settings, request.contracts, run_id=chosen.run_id)
    if request.is_of_unified and request.source in outcome.blocked_sources:
        raise TableError(
            f"Gate 2 blocks {request.source} from gold, which still reads earlier versions of its tables. What was"
            " erased so far stays erased.",
            hint="See `lakehouse quality`, and run this again when the gate lets it pass.",
        )
    if has_broker(chosen):
        with steps.step("forget", "bringing the topics up to gold"):
            publish.run(spark, chosen.settings, request.contracts)


def has_broker(chosen: CommandContext) -> bool:
    """Whether the command was given a broker."""
    return bool(chosen.settings.bootstrap_servers or chosen.settings.kafka_config)


def _remove_old_files(chosen: CommandContext, request: ErasureRequest, steps: Steps, lock: Lock) -> None:
    from lakehouse.erasure.files import remove_old_files
    from lakehouse.erasure.table import write_rows
    from lakehouse.spark.materialized import forget_materialized

    warehouse, tables = request.warehouse, request.tables()
    with steps.step("forget", f"removing old files of {len(tables)} tables") as note:
        for name in tables:
            lock.check()
            note.now(name)
            version = remove_old_files(warehouse, name)
            row = {"kind": "table", "source": request.source, "request": chosen.run_id}
            write_rows(warehouse, [{**row, "table": name, "version": version}])
        forget_materialized(warehouse.spark, warehouse.checkpoints)
