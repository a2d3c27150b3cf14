"""How many files tables have after a thousand batches of one process, and whether a batch gets slower.

python -m benchmarks.small_files [--batches 1000] [--rows 100] [--keys 20000]

Each batch is an append (as bronze's) and a MERGE of the same rows (as silver's), with the session and the tables'
properties that the jobs have; nothing is read from Kafka, or judged. Prints a line of JSON now and then, and a table at
the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from tempfile import TemporaryDirectory

from rich.table import Table as Shown

from benchmarks import report
from benchmarks.chained_commits import BRONZE, SILVER, merge, orders
from lakehouse.config import settings
from lakehouse.delta.tables import Warehouse
from lakehouse.process.steps import wide_console
from lakehouse.spark.materialized import materialized
from lakehouse.spark.session import spark_session

SAMPLE_EVERY = 10
POINTS = 20
TABLES = (BRONZE, SILVER)


@dataclass(frozen=True)
class Sample:
    """After so many batches: the files of each table's current version, and the median seconds of the last batches.

    Of the last ten: Delta writes a checkpoint of a table's log with every tenth commit.
    """

    batches: int
    files: dict[str, int]
    seconds: dict[str, float]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_files", description=__doc__)
    for name, default in (("batches", 1000), ("rows", 100), ("keys", 20_000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    spark = spark_session(is_lasting=True)
    samples = []
    with TemporaryDirectory(prefix="small-files-") as folder:
        warehouse = settings(warehouse=folder, bootstrap_servers="").address.open(spark)
        warehouse.ensure_all(TABLES)
        warehouse.append(SILVER.name, orders(warehouse, chosen.keys, chosen.keys, seed=0))
        taken: list[dict[str, float]] = []
        for number in range(1, chosen.batches + 1):
            taken.append(batch(warehouse, chosen.rows, chosen.keys, seed=chosen.seed + number))
            if number % SAMPLE_EVERY == 0:
                files = {table.name: number_of_files(warehouse, table.name) for table in TABLES}
                seconds = {name: median(one[name] for one in taken[-SAMPLE_EVERY:]) for name in files}
                samples.append(Sample(number, files, seconds))
                print(json.dumps(asdict(samples[-1])), flush=True)
    shown = summary(samples)
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"{chosen.batches:,} batches of {chosen.rows:,} rows, into {chosen.keys:,} orders"
        report.write("small files", shown, [plot(samples)], asked=asked)


def batch(warehouse: Warehouse, rows: int, keys: int, *, seed: int) -> dict[str, float]:
    """Append and merge; the seconds of each."""
    seconds = {}
    with materialized(orders(warehouse, rows, keys, seed=seed)) as new:
        begun = time.monotonic()
        warehouse.append(BRONZE.name, new)
        seconds[BRONZE.name] = time.monotonic() - begun
        begun = time.monotonic()
        merge(warehouse, SILVER.name, new, rows)
        seconds[SILVER.name] = time.monotonic() - begun
    return seconds


def number_of_files(warehouse: Warehouse, table: str) -> int:
    """The data files of the table's current version."""
    return int(warehouse.delta(table).detail().select("numFiles").collect()[0]["numFiles"])


def summary(samples: Sequence[Sample]) -> Shown:
    """Of each table the most files, those at the end, and the seconds of batches of the first and the last tenth."""
    shown = Shown("table", "most files", "files at the end", "seconds of a batch, first tenth", "last tenth")
    tenth = max(1, len(samples) // 10)
    for name in samples[0].files:
        first, last = ([one.seconds[name] for one in part] for part in (samples[:tenth], samples[-tenth:]))
        most = max(one.files[name] for one in samples)
        shown.add_row(name, str(most), str(samples[-1].files[name]), f"{median(first):.2f}", f"{median(last):.2f}")
    return shown


def plot(samples: Sequence[Sample]) -> str:
    """The files of both tables, twenty points: the most since the one before, for they rise and fall in between."""
    size = max(1, len(samples) // POINTS)
    parts = [samples[first : first + size] for first in range(0, len(samples), size)]
    names = [*samples[0].files]
    title = f"Most files up to so many batches: {' and '.join(names)}"
    at = [str(part[-1].batches) for part in parts]
    most = [[max(one.files[name] for one in part) for part in parts] for name in names]
    return report.lines(title, "files", at, most)


if __name__ == "__main__":
    main()
