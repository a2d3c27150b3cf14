"""`quality.results`: how every rule of every gate came out, run by run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.errors import TableError
from lakehouse.quality.arguments import columns_of
from lakehouse.retention import last_results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The gates: rows on their way into silver; silver tables before gold takes them; gold before it is published.
ROWS, TABLES, PUBLICATION = "silver", "gold", "publication"
# What people call them, in the order of the flow.
GATES = {ROWS: "gate 1", TABLES: "gate 2", PUBLICATION: "gate 2 before publication"}

_VALUES = """
    run STRING, gate STRING, source STRING, feed STRING, table STRING, rule STRING, description STRING,
    on_failure STRING, evaluated BIGINT, failed BIGINT, share DOUBLE, passed BOOLEAN, observed STRING, message STRING,
    sample_keys ARRAY<STRING>
"""

RESULTS = TableSpec(name="quality.results", columns=f"{_VALUES}, evaluated_at TIMESTAMP")


@dataclass(frozen=True)
class Result:
    """One rule, judged on what one run brought: at the gate `silver` (rows), `gold` (tables) or `publication`.

    `feed`: the silver table; None at the gate `publication`, which is about gold. `observed`: what a rule on a whole
    column or table found. `message`: why it could not be judged.
    """

    run: str
    gate: str
    source: str
    feed: str | None
    rule: str
    on_failure: str
    evaluated: int
    failed: int
    passed: bool
    sample_keys: tuple[str, ...] = ()
    description: str = ""
    observed: str | None = None
    message: str | None = None

    @property
    def table(self) -> str:
        """The table that was judged."""
        return "gold.unified_orders" if self.feed is None else f"silver.{self.feed}"

    @property
    def share(self) -> float | None:
        """How much of what was evaluated failed; None when nothing was evaluated."""
        return self.failed / self.evaluated if self.evaluated else None


def result_rows(spark: SparkSession, results: Iterable[Result]) -> DataFrame:
    """Rows of `quality.results`, evaluated now."""
    rows = [{**asdict(result), "table": result.table, "share": result.share} for result in results]
    return inline_rows(spark, rows, _VALUES).withColumn("evaluated_at", F.current_timestamp())


@dataclass(frozen=True)
class RuleOutcome:
    """A stored result, and when it came out (UTC)."""

    result: Result
    evaluated_at: datetime


def outcomes_of(
    warehouse: Warehouse, contracts: Contracts, *, run: str | None, feed: str | None = None
) -> list[RuleOutcome]:
    """The results of a run, in the order of the flow; without `run` those of the last run that has any.

    Without values of columns that are sensitive by now. Raises TableError when there are none.
    """
    rows = warehouse.read(RESULTS.name)
    of_feed = rows if feed is None else rows.where(F.col("feed") == feed)
    if run is None:
        (last,) = of_feed.agg(F.max_by("run", "evaluated_at").alias("run")).collect()
        run = last["run"]
    outcomes = _outcomes(of_feed.where(F.col("run") == F.lit(run)), contracts)
    if not outcomes:
        of = f" of run {run}" if run else ""
        raise TableError(
            f"There are no results{of}{f' about {feed}' if feed else ''} in quality.results.",
            hint="Run `lakehouse run`, or name another run: `lakehouse quality report --run ID`.",
        )
    return outcomes


def outcomes_of_last_runs(warehouse: Warehouse, contracts: Contracts, *, runs: int) -> list[RuleOutcome]:
    """The results of the last runs that judged anything, the last run first; without values of sensitive columns."""
    rows = warehouse.read(RESULTS.name)
    last = (
        rows.groupBy("run").agg(F.max("evaluated_at").alias("ended_at")).orderBy(F.col("ended_at").desc()).limit(runs)
    )
    numbers = {row["run"]: number for number, row in enumerate(last.collect())}
    found = _outcomes(rows.where(F.col("run").isin(*numbers)), contracts)
    return sorted(found, key=lambda outcome: numbers[outcome.result.run])


def forget_old_results(warehouse: Warehouse, *, before: datetime) -> tuple[int, int]:
    """Keep of results from `before` then the last of each gate and table; how many they were, and are."""
    condition = f"evaluated_at < timestamp_micros({int(before.timestamp() * 1_000_000)})"
    return warehouse.replace_where(RESULTS.name, condition, _last_of_each)


def _last_of_each(rows: pa.Table) -> pa.Table:
    return type(rows).from_pylist(last_results(rows.to_pylist()), schema=rows.schema)


def shown(result: Result, contracts: Contracts) -> Result:
    """The result without values of columns that the contract calls sensitive, whenever it was stored."""
    table = contracts.silver.tables.get(result.feed or "")
    keys = ("composite_key",) if table is None else table.keys
    sensitive = contracts.sensitive_in_gold if table is None else table.sensitive_columns
    gate = contracts.gold_gate
    rules = {TABLES: gate.expectations, PUBLICATION: gate.publication}.get(result.gate, ())
    columns = [columns_of(rule) for rule in rules if rule.name == result.rule]
    hides_keys = not sensitive.isdisjoint(keys)
    # Of a rule that is gone it is not known what it was about.
    hides_observed = not sensitive.isdisjoint(columns[0]) if columns else bool(sensitive)
    return replace(
        result,
        sample_keys=() if hides_keys else result.sample_keys,
        observed=None if hides_observed else result.observed,
    )


def _outcomes(rows: DataFrame, contracts: Contracts) -> list[RuleOutcome]:
    stored = [field.name for field in fields(Result)]
    # As epoch numbers: as times they would come in this machine's zone.
    found = rows.select(*stored, F.unix_micros("evaluated_at").alias("micros")).collect()
    outcomes = []
    for row in found:
        values = {name: row[name] for name in stored}
        result = Result(**{**values, "sample_keys": tuple(values["sample_keys"] or ())})
        outcomes.append(RuleOutcome(shown(result, contracts), datetime.fromtimestamp(row["micros"] / 1e6, tz=UTC)))
    order = list(GATES)
    return sorted(
        outcomes, key=lambda one: (order.index(one.result.gate), one.result.table, one.result.source, one.result.rule)
    )
