"""Many small sources in one process, with the default heap: seconds of silver's passes, and memory.

python -m benchmarks.many_sources [--sources 17] [--tables 3] [--records 3000] [--passes 3]

In each pass every table of every source gets its share of the records. The first pass is cold, and makes the tables.
Prints a line of JSON for every pass, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import islice
from tempfile import TemporaryDirectory

from rich.table import Table as Shown

from benchmarks import report
from benchmarks.load import Table, contracts_of_load
from benchmarks.memory import resident_mb
from benchmarks.records import bronze_rows, store
from bronze.events import events_table
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.process.steps import wide_console
from lakehouse.spark.session import spark_session
from silver import apply
from silver.accounts.audit import StateCache


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_sources", description=__doc__)
    for name, default in (("sources", 17), ("tables", 3), ("records", 3000), ("passes", 3), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    contracts = contracts_of(contracts_of_load(), sources=chosen.sources, tables=chosen.tables)
    each = -(-chosen.records // (chosen.sources * chosen.tables))
    events = {
        (source, table): Table("postgresql", chosen.seed + 100 * source + table, 100 * each).events()
        for source in range(chosen.sources)
        for table in range(chosen.tables)
    }
    shown = Shown("pass", "records", "seconds", "Java, MB", "all else, MB")
    spark, state_caches = spark_session(is_lasting=True), dict[str, StateCache]()
    with TemporaryDirectory(prefix="many-sources-") as folder:
        own = settings(warehouse=folder, bootstrap_servers="")
        warehouse = own.address.open(spark)
        for number in range(chosen.passes):
            for (source, table), told in events.items():
                rows = bronze_rows(
                    spark, list(islice(told, each)), topic=topic_of(source, table), first_offset=number * each
                )
                warehouse.ensure(events_table(f"shop_{source}"))
                store(warehouse, f"shop_{source}", rows)
            begun = time.monotonic()
            apply.run(spark, own, contracts, run_id=f"pass {number}", state_caches=state_caches)
            seconds = time.monotonic() - begun
            java, rest = resident_mb(os.getpid())
            found = {"pass": number, "records": each * len(events), "seconds": round(seconds, 1)}
            print(json.dumps({**found, "java_mb": java, "rest_mb": rest}), flush=True)
            shown.add_row(str(number), f"{each * len(events):,}", f"{seconds:.1f}", f"{java:,.0f}", f"{rest:,.0f}")
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"{chosen.sources} sources with {chosen.sources * chosen.tables} tables; the first pass makes them"
        report.write("many sources", shown, [], asked=asked)


def topic_of(source: int, table: int) -> str:
    """The topic of a table."""
    return f"shop_{source}.public.orders_{table}"


def contracts_of(contracts: Contracts, *, sources: int, tables: int) -> Contracts:
    """Contracts of so many PostgreSQL databases alone, each with so many tables like the packaged orders."""
    packaged, orders = contracts.topics.sources["postgres"], contracts.silver.tables["postgres_orders"]
    topics = packaged.feeds["postgres_orders"]
    found = {
        f"shop_{source}": packaged.model_copy(
            update={
                "feeds": {
                    f"orders_{source}_{table}": topics.model_copy(update={"topics": (topic_of(source, table),)})
                    for table in range(tables)
                }
            }
        )
        for source in range(sources)
    }
    feeds = [name for source in found.values() for name in source.feeds]
    return contracts.model_copy(
        update={
            "topics": contracts.topics.model_copy(update={"sources": found}),
            "silver": contracts.silver.model_copy(update={"tables": dict.fromkeys(feeds, orders)}),
        }
    )


if __name__ == "__main__":
    main()
