"""What twenty row rules cost: the same bronze rows through silver's pass, without rules and with them, in turns.

python -m benchmarks.row_rules [--changes 300000] [--turns 3]

Prints the seconds of every pass and the share by which the rules make the fastest one longer.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.delta.tables import Warehouse
from lakehouse.process.steps import wide_console
from lakehouse.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEED, TOPIC = "postgres_orders", "postgres_prod_tables.public.orders"
STATUSES = ("pending", "paid", "shipped", "completed", "cancelled")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.row_rules", description=__doc__)
    parser.add_argument("--changes", type=int, default=300_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    console = wide_console()
    spark = spark_session(is_lasting=True)
    contracts = load_contracts()
    kinds = {"without rules": with_rules(contracts, ()), f"with {len(RULES)} rules": with_rules(contracts, RULES)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with TemporaryDirectory(prefix="row-rules-") as folder:
        bronze = Path(folder) / "bronze"
        changes(spark, options.changes).write.format("delta").save(str(bronze))
        for turn in range(options.turns + 1):
            for kind, told in kinds.items():
                passed = one_pass(spark, told, bronze, Path(folder) / f"{turn} {kind}")
                if turn:  # the first turn warms up
                    seconds[kind].append(passed)
                    console.print(f"{kind:<16} {passed:6.1f} s", highlight=False)
    without, with_them = (min(times) for times in seconds.values())
    said = f"{options.changes:,} changes: {without:.1f} s without rules, {with_them:.1f} s with {len(RULES)}"
    console.print(f"{said}: {with_them / without - 1:+.1%}", highlight=False)


def with_rules(contracts: Contracts, rules: Sequence[Expectation]) -> Contracts:
    """The packaged contracts with these rules and no others."""
    gate = contracts.silver_gate.model_copy(update={"expectations": tuple(rules)})
    return contracts.model_copy(update={"silver_gate": gate})


def one_pass(spark: SparkSession, contracts: Contracts, bronze: Path, folder: Path) -> float:
    """The seconds of one batch of all bronze rows into empty silver tables."""
    from silver.accounts.completeness import record_ranges_in
    from silver.apply import ensure_tables
    from silver.job import SilverJob
    from silver.source_batch import apply_batch

    warehouse = Warehouse(spark, str(folder), str(folder / "_checkpoints"))
    ensure_tables(warehouse, contracts)
    rows = spark.read.format("delta").load(str(bronze))
    started = time.monotonic()
    job = SilverJob("postgres", contracts, warehouse.address, "benchmark")
    apply_batch(warehouse, rows, record_ranges_in(rows, job), job=job)
    passed = time.monotonic() - started
    applied = warehouse.read("ops.batches").selectExpr("sum(applied) AS applied").collect()[0]["applied"]
    if not applied:
        raise SystemExit("Nothing was applied: the benchmark measures nothing.")
    shutil.rmtree(folder)
    return passed


def changes(spark: SparkSession, number: int) -> DataFrame:
    """Changes of orders as the PostgreSQL connector tells them, as bronze rows: three of each order."""
    from pyspark.sql import functions as F

    n = F.col("id")
    key = F.pmod(n, F.lit(number // 3)).alias("order_id")
    status = F.element_at(F.array(*[F.lit(name) for name in STATUSES]), (F.pmod(n, F.lit(5)) + 1).cast("int"))
    row = F.struct(
        key,
        F.pmod(n, F.lit(5000)).alias("customer_id"),
        F.pmod(n, F.lit(900)).alias("product_id"),
        status.alias("status"),
        F.lit("BNI=").alias("total_amount"),
        (F.lit(1_767_225_600_000_000) + n).alias("created_at"),
        (F.lit(1_767_225_600_000_000) + n).alias("updated_at"),
        F.concat(F.lit("note of change "), n.cast("string"), F.lit(", as long as notes are")).alias("note"),
    )
    lsn = (n + 1) * 8
    source = F.struct(
        F.lit("3.6.1.Final").alias("version"),
        F.lit("postgres_prod_tables").alias("name"),
        F.lit(1_767_225_600_000).alias("ts_ms"),
        F.lit("false").alias("snapshot"),
        F.to_json(F.array(lsn.cast("string"), lsn.cast("string"))).alias("sequence"),
        lsn.alias("lsn"),
    )
    value = F.struct(row.alias("after"), source.alias("source"), F.lit("u").alias("op"), F.lit(1).alias("ts_ms"))
    header = F.struct(F.lit("__debezium.context.runId").alias("key"), F.lit("run").cast("binary").alias("value"))
    return spark.range(number).select(
        F.lit(TOPIC).alias("topic"),
        F.lit(0).alias("partition"),
        n.alias("offset"),
        F.timestamp_millis(F.lit(1_767_225_600_000) + n).alias("timestamp"),
        F.lit(0).alias("timestamp_type"),
        F.to_json(F.struct(key)).cast("binary").alias("key"),
        F.to_json(value).cast("binary").alias("value"),
        F.array(header).alias("headers"),
        F.lit("id").alias("_topic_id"),
        F.current_timestamp().alias("_ingested_at"),
        F.lit(0).cast("bigint").alias("_batch_id"),
    )


def _rule(number: int, kind: str, **kwargs: Any) -> Expectation:
    name = kind if kind == "unexpected_rows_expectation" else f"expect_{kind}"
    told = {"name": f"rule_{number}", "type": name, "kwargs": kwargs, "on_failure": "quarantine", "description": "…"}
    return Expectation.model_validate(told)


_KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("column_values_to_not_be_null", {"column": "customer_id"}),
    ("column_values_to_not_be_null", {"column": "product_id"}),
    ("column_values_to_not_be_null", {"column": "status"}),
    ("column_values_to_not_be_null", {"column": "total_amount"}),
    ("column_values_to_not_be_null", {"column": "created_at"}),
    ("column_values_to_be_between", {"column": "total_amount", "min_value": 0, "max_value": 99999999}),
    ("column_values_to_be_between", {"column": "customer_id", "min_value": 0}),
    ("column_values_to_be_between", {"column": "product_id", "min_value": 0, "max_value": 1000}),
    ("column_values_to_be_between", {"column": "created_at", "min_value": "2020-01-01", "max_value": "2030-01-01"}),
    ("column_values_to_be_in_set", {"column": "status", "value_set": [*STATUSES]}),
    ("column_values_to_not_be_in_set", {"column": "status", "value_set": ["lost", "stolen"]}),
    ("column_values_to_match_regex", {"column": "status", "regex": "^[a-z]+$"}),
    ("column_values_to_not_match_regex", {"column": "note", "regex": "[0-9]{16}"}),
    ("column_values_to_match_like_pattern", {"column": "note", "like_pattern": "note%"}),
    ("column_value_lengths_to_be_between", {"column": "note", "max_value": 10000}),
    ("column_value_lengths_to_be_between", {"column": "status", "min_value": 1, "max_value": 20}),
    (
        "column_pair_values_a_to_be_greater_than_b",
        {"column_A": "updated_at", "column_B": "created_at", "or_equal": True},
    ),
    ("column_values_to_be_of_type", {"column": "total_amount", "type_": "DecimalType"}),
    ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT * FROM {batch} WHERE total_amount < 0"}),
    (
        "unexpected_rows_expectation",
        {"unexpected_rows_query": "SELECT * FROM {batch} WHERE status = 'paid' AND total_amount IS NULL"},
    ),
)
RULES = tuple(_rule(number, kind, **kwargs) for number, (kind, kwargs) in enumerate(_KINDS))

if __name__ == "__main__":
    main()
