"""What silver's own work costs: a pass of a few changes of each source, beside the MERGEs that it cannot do without.

python -m benchmarks.silver_pass [--changes 1000] [--keys 20000] [--passes 10]

One warm process. Both sources' tables are filled to a size from change events, through silver; then come passes of
updates of both sources. After each pass as many rows are merged into two plain tables of the same size. Prints
a line of JSON for every pass, and a table at the end: the medians, and how many times the MERGEs' seconds silver took.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from statistics import median
from tempfile import TemporaryDirectory

from rich.table import Table as Shown

from benchmarks import report
from benchmarks.chained_commits import COLUMNS, merge, orders
from benchmarks.load import TOPICS, Table, contracts_of_load
from benchmarks.records import bronze_rows
from bronze.events import events_table
from lakehouse.config import settings
from lakehouse.held import held
from lakehouse.session import spark_session
from lakehouse.steps import wide_console
from lakehouse.tables import UPSERTED, TableSpec, Warehouse
from silver import apply
from silver.batches import Memory

PLAIN = tuple(TableSpec(f"silver.plain_{kind}", COLUMNS, properties=UPSERTED) for kind in TOPICS)
SOURCES = {"postgresql": "postgres", "mysql": "mysql"}
WARM_UP = 4


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silver_pass", description=__doc__)
    for name, default in (("changes", 1000), ("keys", 20_000), ("passes", 10), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    spark, contracts = spark_session(is_lasting=True), contracts_of_load()
    with TemporaryDirectory(prefix="silver-pass-") as folder:
        own = settings(warehouse=folder, bootstrap_servers="")
        warehouse = own.address.opened(spark)
        for table in PLAIN:
            warehouse.ensure(table)
            warehouse.append(table.name, orders(warehouse, chosen.keys, chosen.keys, seed=0))
        for source in contracts.topics.sources:
            warehouse.ensure(events_table(source))
        changes = {kind: Table(kind, chosen.seed, chosen.keys, insert_in_100=0).events() for kind in TOPICS}
        offsets = dict.fromkeys(TOPICS, 0)
        memories: dict[str, Memory] = {}

        def arrive(number: int) -> None:
            for kind, events in changes.items():
                of_source = list(islice(events, number))
                rows = bronze_rows(spark, of_source, topic=TOPICS[kind], first_offset=offsets[kind])
                offsets[kind] += number
                warehouse.append(events_table(SOURCES[kind]).name, rows)

        def run() -> float:
            begun = time.monotonic()
            apply.run(spark, own, contracts, run_id="pass", memories=memories)
            return time.monotonic() - begun

        arrive(chosen.keys)
        run()
        found = []
        for number in range(WARM_UP + chosen.passes):
            arrive(chosen.changes)
            seconds = {"silver": run(), "merges": _merges(warehouse, chosen.changes, chosen.keys, number)}
            print(json.dumps({"pass": number - WARM_UP, **{k: round(v, 2) for k, v in seconds.items()}}), flush=True)
            if number >= WARM_UP:
                found.append(seconds)
    shown = Shown("silver", "the two MERGEs alone", "ratio")
    silver, merges = (median(one[name] for one in found) for name in ("silver", "merges"))
    shown.add_row(f"{silver:.2f}", f"{merges:.2f}", f"{silver / merges:.1f}")
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"{chosen.changes:,} changes of each source into tables of {chosen.keys:,}, seconds, medians"
        report.write("silver pass", shown, [], asked=f"{asked} of {chosen.passes} passes")


def _merges(warehouse: Warehouse, rows: int, keys: int, number: int) -> float:
    seconds = 0.0
    for table in PLAIN:
        with held(orders(warehouse, rows, keys, seed=number)) as new:
            begun = time.monotonic()
            merge(warehouse, table.name, new, rows)
            seconds += time.monotonic() - begun
    return seconds


if __name__ == "__main__":
    main()
