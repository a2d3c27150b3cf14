"""Table rules judged by counting: one query for all tables of a gate.

Great Expectations asks table by table, by some queries each, and takes seconds to load. What it would say is counted
here by the columns that row rules compile to (lakehouse.quality.row_rules): of changed rows, of whole tables, or of
whole tables by what was counted of them before. Such counts are carried: a run subtracts those of the changed rows
before their changes, and adds those of the same rows after them. Great Expectations judges every rule that cannot be
counted, and all of them in an audit; tests/spark/test_gate.py compares the verdicts of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from lakehouse.contracts.models import Expectation
from lakehouse.quality.arguments import (
    OF_THE_BATCH,
    OF_THE_COLUMN,
    ROW_COUNT,
    ROW_RULES,
    SQL_RULE,
    columns_of,
    evaluate_bound,
    expressions,
    is_arithmetic,
    looks_at_the_time,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakehouse.quality.table_rules import TableCheck, Verdict

# In place of a rule: all rows.
_ALL = ""
# Which rows of a table are counted.
_CHANGED, _WHOLE, _REMOVED, _ADDED = "changed", "whole", "removed", "added"
_BOUNDS_OF_COUNT = ("min_value", "max_value", "strict_min", "strict_max")


@dataclass(frozen=True)
class Counts:
    """Of one rule and some rows: how many `rows` its condition chooses, how many have no value for it, and fail it."""

    rows: int
    without_value: int = 0
    failed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.rows + other.rows, self.without_value + other.without_value, self.failed + other.failed)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.rows - other.rows, self.without_value - other.without_value, self.failed - other.failed)


@dataclass(frozen=True)
class Carried:
    """A whole table whose rules are judged by what was counted `before`, and by the rows that changed.

    `removed`: these rows before their changes. `added`: the same after them.

    `check`: the table; its rows are looked at for a sample of the keys that fail, and for nothing else.
    """

    check: TableCheck
    before: Mapping[str, Counts]
    removed: DataFrame
    added: DataFrame


@dataclass(frozen=True)
class Judged:
    """By table the verdicts, and of rules about the whole table what was counted, by rule."""

    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    counts: dict[str, dict[str, Counts]] = field(default_factory=dict)


def is_counted(rule: Expectation) -> bool:
    """Whether the rule is about rows that can be counted: one by one, by equal values, or by a query."""
    if rule.type == ROW_COUNT:
        return set(rule.kwargs) <= set(_BOUNDS_OF_COUNT) and all(map(is_arithmetic, expressions(rule).values()))
    known = ROW_RULES.get(rule.type)
    if known is None or rule.type == OF_THE_COLUMN or expressions(rule):
        return False
    return set(rule.kwargs) <= {*known.required, *known.optional}


def is_carried(rule: Expectation) -> bool:
    """Whether the rule's counts follow from those before and from the rows that changed."""
    by_each_row = rule.type not in (SQL_RULE, *OF_THE_BATCH)
    return is_counted(rule) and by_each_row and not looks_at_the_time(rule)


def counted_before(rules: Sequence[Expectation], counts: Mapping[str, Counts], rows: int | None) -> dict[str, Counts]:
    """Of the rules that can be carried, those of which the `counts` are known; `rows` of the table."""
    found = dict(counts)
    if rows is not None:
        found |= {rule.name: Counts(rows) for rule in rules if rule.type == ROW_COUNT}
    return {rule.name: found[rule.name] for rule in rules if rule.name in found and is_carried(rule)}


def counts_of(verdicts: Sequence[Verdict]) -> dict[str, Counts]:
    """What Great Expectations has counted of a whole table, for rules that can be carried from there."""
    counts = {}
    for verdict in verdicts:
        rule = verdict.rule
        if verdict.message is None and is_carried(rule):
            is_row_count = rule.type == ROW_COUNT
            row_counts = Counts(verdict.evaluated, verdict.without_value, verdict.failed)
            counts[rule.name] = Counts(int(verdict.observed or 0)) if is_row_count else row_counts
    return counts


def rows_of_table(rules: Sequence[Expectation], counts: Mapping[str, Counts]) -> int | None:
    """How many rows the table has, where a rule was asked about all of them."""
    about_all = [counts[rule.name].rows for rule in rules if rule.name in counts and "row_condition" not in rule.kwargs]
    return about_all[0] if about_all else None


def judge_by_counting(
    changed: Mapping[str, TableCheck], whole: Mapping[str, TableCheck], carried: Mapping[str, Carried]
) -> Judged:
    """The verdicts on rows that have `changed`, on `whole` tables, and on those whose counts are `carried`.

    Raises what Spark raises where a rule cannot be evaluated.
    """
    asked = {
        **{(name, _CHANGED): (check.rows, check.rules) for name, check in changed.items()},
        **{(name, _WHOLE): (check.rows, check.rules) for name, check in whole.items()},
        **{(name, _REMOVED): (carrying.removed, carrying.check.rules) for name, carrying in carried.items()},
        **{(name, _ADDED): (carrying.added, carrying.check.rules) for name, carrying in carried.items()},
    }
    with_views = {
        (name, part): check for part, of in ((_CHANGED, changed), (_WHOLE, whole)) for name, check in of.items()
    }
    found = _count(asked, with_views)
    judged = Judged()
    for (name, part), check in with_views.items():
        counts = found[name, part]
        for rule in check.rules:
            if rule.type == SQL_RULE:  # a query may find rows that the table does not have
                failed = counts[rule.name].failed
                counts[rule.name] = Counts(max(counts[_ALL].rows, failed), failed=failed)
        judged.verdicts.setdefault(name, []).extend(_verdicts(check, counts))
        if part == _WHOLE:
            judged.counts[name] = {rule.name: counts[rule.name] for rule in check.rules if is_carried(rule)}
    for name, carrying in carried.items():
        removed, added = found[name, _REMOVED], found[name, _ADDED]
        counts = {
            rule.name: carrying.before[rule.name] - removed[rule.name] + added[rule.name]
            for rule in carrying.check.rules
        }
        judged.counts.setdefault(name, {}).update(counts)
        judged.verdicts.setdefault(name, []).extend(_verdicts(carrying.check, counts))
    return judged


def _count(
    asked: Mapping[tuple[str, str], tuple[DataFrame, Sequence[Expectation]]],
    with_views: Mapping[tuple[str, str], TableCheck],
) -> dict[tuple[str, str], dict[str, Counts]]:
    """Of each table and part what every rule counts, by one query; tables name views of their own in SQL.

    Over Spark Connect, which looks for a view only when it is asked, each table with rules in SQL is asked alone.
    """
    from lakehouse.quality.table_rules import views_of

    queries: list[DataFrame] = []
    found: dict[tuple[str, str], dict[str, Counts]] = {}
    for key, (rows, rules) in asked.items():
        if not any(rule.type == SQL_RULE for rule in rules):
            queries.append(_by_rows(rows, rules, *key))
            continue
        with views_of(with_views[key]):
            with_sql = [_by_rows(rows, rules, *key), *_by_queries(rows, rules, *key)]
            if hasattr(rows, "_jdf"):
                queries += with_sql
            else:
                found |= _collected(with_sql)
    return found | _collected(queries)


def _collected(queries: Sequence[DataFrame]) -> dict[tuple[str, str], dict[str, Counts]]:
    found: dict[tuple[str, str], dict[str, Counts]] = {}
    if queries:
        for row in reduce(lambda left, right: left.unionByName(right), queries).collect():
            counts = Counts(row["rows"], row["without_value"], row["failed"])
            found.setdefault((row["name"], row["part"]), {})[row["rule"]] = counts
    return found


def _by_queries(rows: DataFrame, rules: Sequence[Expectation], name: str, part: str) -> list[DataFrame]:
    """A row for each rule in SQL. The rows must be the view that its query names."""
    from pyspark.sql import functions as F

    from lakehouse.quality.table_rules import unexpected_rows

    counted = []
    for rule in rules:
        if rule.type == SQL_RULE:
            failed = _struct(rule.name, F.lit(0).cast("bigint"), failed=F.count(F.lit(1)))
            counted.append(_named(unexpected_rows(rows, rule).agg(F.array(failed).alias("counts")), name, part))
    return counted


def _named(counts: DataFrame, name: str, part: str) -> DataFrame:
    from pyspark.sql import functions as F

    return counts.select(F.lit(name).alias("name"), F.lit(part).alias("part"), F.inline("counts"))


def _by_rows(rows: DataFrame, rules: Sequence[Expectation], name: str, part: str) -> DataFrame:
    """A row for each rule but those in SQL, and one for all rows (_ALL)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from lakehouse.quality.row_rules import fails, is_asked, is_chosen, is_skipped

    marked, counts = rows, [_struct(_ALL, F.count(F.lit(1)))]
    for number, rule in enumerate(rule for rule in rules if rule.type != SQL_RULE):
        if rule.type == ROW_COUNT:
            counts.append(_struct(rule.name, F.count(F.lit(1))))
            continue
        if rule.type in OF_THE_BATCH:
            same_values = Window.partitionBy(is_asked(rule), *columns_of(rule))
            is_again = is_asked(rule) & (F.count(F.lit(1)).over(same_values) > 1)
            marked = marked.withColumn(f"_failed_{number}", is_again)
            failed = F.count_if(f"_failed_{number}")
        else:
            failed = F.count_if(fails(rule, keys=(), is_judged=F.lit(True)))
        chosen, without_value = F.count_if(is_chosen(rule)), F.count_if(is_chosen(rule) & is_skipped(rule))
        counts.append(_struct(rule.name, chosen, without_value, failed))
    return _named(marked.agg(F.array(*counts).alias("counts")), name, part)


def _struct(rule: str, rows: Column, without_value: Column | None = None, failed: Column | None = None) -> Column:
    from pyspark.sql import functions as F

    nothing = F.lit(0).cast("bigint")
    return F.struct(
        F.lit(rule).alias("rule"),
        rows.alias("rows"),
        (nothing if without_value is None else without_value).alias("without_value"),
        (nothing if failed is None else failed).alias("failed"),
    )


def _verdicts(check: TableCheck, counts: Mapping[str, Counts]) -> list[Verdict]:
    """One a rule, in their order; with a sample of the keys that fail."""
    from lakehouse.quality.table_rules import Verdict, not_asked, sampled

    found = []
    for rule in check.rules:
        if not check.is_asked(rule):
            found.append(not_asked(rule))
            continue
        of_rule = counts[rule.name]
        try:
            is_passed = _is_passed(rule, of_rule, check.parameters)
        except ZeroDivisionError:  # in a bound: `100 / rows_before`
            message = "It could not be evaluated: ZeroDivisionError."
            found.append(Verdict(rule, passed=False, evaluated=0, failed=0, message=message))
            continue
        if rule.type == ROW_COUNT:
            found.append(Verdict(rule, is_passed, 1, int(not is_passed), observed=str(of_rule.rows)))
        else:
            verdict = Verdict(rule, is_passed, of_rule.rows, of_rule.failed, without_value=of_rule.without_value)
            found.append(verdict if is_passed else replace(verdict, sample_keys=sampled(rule, check)))
    return found


def _is_passed(rule: Expectation, counts: Counts, parameters: Mapping[str, int]) -> bool:
    if rule.type == ROW_COUNT:
        return _is_between(rule, counts.rows, parameters)
    with_value = counts.rows - counts.without_value
    if rule.type == SQL_RULE or not with_value:
        return not counts.failed
    return (with_value - counts.failed) / with_value >= float(rule.kwargs.get("mostly", 1))


def _is_between(rule: Expectation, rows: int, parameters: Mapping[str, int]) -> bool:
    """Whether so many rows are within the bounds."""
    bounds = {name: rule.kwargs[name] for name in ("min_value", "max_value") if rule.kwargs.get(name) is not None}
    bounds |= {name: evaluate_bound(text, parameters) for name, text in expressions(rule).items()}
    low, high = bounds.get("min_value"), bounds.get("max_value")
    is_above = low is None or (rows > low if rule.kwargs.get("strict_min") else rows >= low)
    return is_above and (high is None or (rows < high if rule.kwargs.get("strict_max") else rows <= high))
