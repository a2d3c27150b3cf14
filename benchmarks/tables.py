"""What a batch costs in a job of many tables of which few have changed: seconds and Spark's jobs, of silver.

python -m benchmarks.tables [--tables 20] [--changed 2] [--changes 1000] [--keys 5000] [--batches 3] [--seed 1]

One warm process, tables of PostgreSQL like its orders, each with a topic of its own. The same changes of the same few
tables come to a job that has these alone, and to one that has all of them; then all tables change. The first batch of
each is for warming up. Prints a line of JSON for every batch, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.table import Table as Shown

from benchmarks import report
from benchmarks.load import TOPICS, Event, Table, contracts_of_load
from benchmarks.records import bronze_rows, store
from bronze.events import events_table
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.process.steps import wide_console
from lakehouse.spark.session import spark_session
from silver import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, FEED = "postgres", "postgres_orders"


@dataclass(frozen=True)
class Batch:
    """One batch: how many tables the job has, and how many of them changed; seconds, and how many jobs Spark ran."""

    tables: int
    changed: int
    number: int
    seconds: float
    jobs: int


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    for name, default in (
        ("tables", 20),
        ("changed", 2),
        ("changes", 1000),
        ("keys", 5000),
        ("batches", 3),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    contracts = contracts_of_load()
    spark = spark_session(is_lasting=True)
    found = []
    for tables, changed in ((chosen.changed, chosen.changed), (chosen.tables, chosen.changed)):
        for batch in batches(spark, contracts, tables=tables, changed=changed, chosen=chosen):
            print(json.dumps(asdict(batch)), flush=True)
            if batch.number:
                found.append(batch)
    shown = summary(found)
    wide_console().print(shown)
    if chosen.write_docs:
        report.write("tables", shown, [], asked=f"{chosen.changes:,} changes in each table that changes")


def batches(
    spark: SparkSession, contracts: Contracts, *, tables: int, changed: int, chosen: argparse.Namespace
) -> Iterator[Batch]:
    """The batches of a job of so many tables, each of which has `keys` rows before them."""
    own = with_more_tables(contracts, tables - 1)
    topics = [TOPICS["postgresql"], *[topic_of(number) for number in range(tables - 1)]]
    told = [Table("postgresql", chosen.seed + number, chosen.keys) for number in range(tables)]
    read = [0] * tables
    with TemporaryDirectory(prefix=f"tables-{tables}-") as folder:
        place = settings(warehouse=folder, bootstrap_servers="")
        warehouse = place.address.open(spark)
        for source in own.topics.sources:
            warehouse.ensure(events_table(source))

        def arrive(number: int, events: int) -> None:
            some: list[Event] = list(islice(told[number].events(), events))
            rows = bronze_rows(spark, some, topic=topics[number], first_offset=read[number])
            read[number] += len(some)
            store(warehouse, SOURCE, rows)

        def applied(run: str) -> tuple[float, int]:
            before, begun = jobs(spark), time.monotonic()
            apply.run(spark, place, own, run_id=run)
            return round(time.monotonic() - begun, 2), jobs(spark) - before

        for number in range(tables):
            arrive(number, chosen.keys)
        applied("fill")
        for batch in range(chosen.batches + 1):
            for number in range(changed):
                arrive(number, chosen.changes)
            yield Batch(tables, changed, batch, *applied(f"batch {batch}"))


def topic_of(number: int) -> str:
    """The topic of the table of this number beside the orders."""
    return f"postgres_prod_tables.public.orders_of_shop_{number}"


def with_more_tables(contracts: Contracts, number: int) -> Contracts:
    """The contracts, with so many more tables of PostgreSQL like its orders, each with a topic of its own."""
    source, table = contracts.topics.sources[SOURCE], contracts.silver.tables[FEED]
    orders = source.feeds[FEED]
    more = {f"orders_of_shop_{n}": orders.model_copy(update={"topics": (topic_of(n),)}) for n in range(number)}
    feeds = source.model_copy(update={"feeds": {**source.feeds, **more}})
    sources = {**contracts.topics.sources, SOURCE: feeds}
    tables = {**contracts.silver.tables, **dict.fromkeys(more, table)}
    return contracts.model_copy(
        update={
            "topics": contracts.topics.model_copy(update={"sources": sources}),
            "silver": contracts.silver.model_copy(update={"tables": tables}),
        }
    )


def jobs(spark: SparkSession) -> int:
    """How many jobs Spark has run so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def summary(found: Sequence[Batch]) -> Shown:
    """The median of each case, and how many times that of the job without the other tables it is."""
    shown = Shown("tables", "changed", "seconds", "all batches", "ratio", "Spark's jobs")
    base = 0.0
    for tables, changed in dict.fromkeys((batch.tables, batch.changed) for batch in found):
        of = [batch for batch in found if (batch.tables, batch.changed) == (tables, changed)]
        seconds = median(batch.seconds for batch in of)
        base = base or seconds
        every = ", ".join(f"{batch.seconds:.1f}" for batch in of)
        counted = f"{median(batch.jobs for batch in of):.0f}"
        shown.add_row(str(tables), str(changed), f"{seconds:.1f}", every, f"{seconds / base:.2f}", counted)
    return shown


if __name__ == "__main__":
    main()
