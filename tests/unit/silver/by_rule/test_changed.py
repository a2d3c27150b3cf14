"""What becomes of a made table whose events have other columns: added by itself, or refused until a person accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lakehouse.contracts.by_rule import DiscoveredTable
from silver.by_rule.changed import Change, by_definition, changed
from silver.by_rule.definitions import definitions
from silver.decode.drift import NEW, RETYPED
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record
from tests.support.by_rule import changing, connect, defined, event, feed_of, made, rule, sample, types
from tests.unit.silver.by_rule.test_discovered import OF_DATABASE, decimal

KEY = {"id": 1}
USER = {"id": "int64", "name": "string"}


def of_schemas(values: Mapping[str, Any], **schema: Any) -> Record:
    return event({**KEY, **values}, key=KEY, schema=connect(id="int64", **schema))


def change_by(table: DiscoveredTable, *records: Record) -> Change:
    """The change that these events lead to, by the marks that the decoder gives them."""
    explaining = ReferenceDecoder(feed_of(table))
    events = [explaining.event(record) for record in records]
    marks = {mark for one in events for mark in one.drift}
    gone = {name for one in events for name in one.absent if not table.columns[name].declared.optional}
    return changed(table, sample(table, *records), marks=marks, gone=gone)


TABLE = made(of_schemas({"name": "Tom"}, name="string"))


def test_a_column_that_comes_new_is_added() -> None:
    change = change_by(TABLE, of_schemas({"name": "Tom", "Age": 7}, name="string", Age="int32"))
    assert change.refused == ()
    assert types(change.table) == {"id": "BIGINT", "name": "STRING", "age": "BIGINT"}
    age = change.table.columns["age"]
    assert (age.declared.fields, age.declared.optional, age.came_as) == (("Age",), False, ("int32",))
    assert change.table.version == 2
    assert change.accepted == change.table


def test_a_new_column_whose_name_is_taken_gets_a_number() -> None:
    change = change_by(
        TABLE, of_schemas({"name": "Tom", "NAME": "x", "注": 1}, name="string", NAME="string", 注="int32")
    )
    assert {name: one.declared.fields for name, one in change.table.columns.items()} == {
        "id": (),
        "name": (),
        "name_2": ("NAME",),
        "column_4": ("注",),
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int8", "int16"),
        ("int16", "int32"),
        ("int32", "int64"),
        ("float", "double"),
    ],
)
def test_a_type_that_grows_within_that_of_the_table_goes_on(before: str, after: str) -> None:
    table = made(of_schemas({"cell": 1}, cell=before))
    change = change_by(table, of_schemas({"cell": 1}, cell=after))
    assert change.refused == ()
    assert types(change.table) == types(table)
    assert change.table.columns["cell"].came_as == (before, after)
    # Now both are known, and nothing is marked.
    of_both = change_by(change.table, *(of_schemas({"cell": 1}, cell=kind) for kind in (before, after)))
    assert of_both.table.columns == change.table.columns


DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("int64", "int32", "was int64, and is narrower now: int32"),
        ("double", "float", "was double, and is narrower now: float"),
        ("string", "int32", "was string, and is int32"),
        ("int32", "string", "was int32, and is string"),
        ("int32", "double", "was int32, and is double"),
        (decimal(2, 10), decimal(2, 8), f"was {DECIMAL}(10,2), and is narrower now: {DECIMAL}(8,2)"),
        (decimal(2, 10), decimal(4, 10), f"was {DECIMAL}(10,2), and is narrower now: {DECIMAL}(10,4)"),
        (
            decimal(2, 10),
            decimal(2, 12),
            f"was {DECIMAL}(10,2), and is {DECIMAL}(12,2), which DECIMAL(10,2) of its table does not hold",
        ),
        (
            {"type": "array", "items": {"type": "int32"}},
            {"type": "array", "items": {"type": "string"}},
            "was array<int32>, and is array<string>",
        ),
    ],
)
def test_another_type_is_refused(before: Any, after: Any, why: str) -> None:
    table = made(of_schemas({"cell": None}, cell=before))
    record = of_schemas({"cell": None}, cell=after)
    change = change_by(table, record)
    assert change.refused == (f"the column cell {why}",)
    assert change.table.columns == table.columns
    # Accepted, it comes as both, into the type that the table has.
    assert types(change.accepted) == types(table)
    assert len(change.accepted.columns["cell"].came_as) == 2
    assert change_by(change.accepted, record).table.columns == change.accepted.columns


def test_a_column_that_is_gone_is_refused() -> None:
    record = of_schemas({})
    change = change_by(TABLE, record)
    assert change.refused == ("the column name is gone from its events",)
    assert change.table.columns == TABLE.columns
    assert change.accepted.columns["name"].declared.optional
    assert change_by(change.accepted, record).refused == ()


def test_a_column_that_is_renamed_is_gone_and_new() -> None:
    change = change_by(TABLE, of_schemas({"called": "Tom"}, called="string"))
    assert change.refused == ("the column name is gone from its events (called is new: renamed?)",)
    # What is added by itself is added.
    assert list(change.table.columns) == ["id", "name", "called"]
    assert not change.table.columns["name"].declared.optional
    assert change.accepted.columns["name"].declared.optional


def test_a_column_is_named_as_its_events_name_it() -> None:
    table = made(of_schemas({"Full Name": "Tom"}, **{"Full Name": "string"}))
    assert change_by(table, of_schemas({})).refused == ("the column Full Name is gone from its events",)
    assert change_by(table, of_schemas({"Full Name": 1}, **{"Full Name": "int32"})).refused == (
        "the column Full Name was string, and is int32",
    )


def test_a_column_that_is_gone_from_some_events_is_refused_though_the_last_has_it() -> None:
    change = change_by(TABLE, of_schemas({}), of_schemas({"name": "Tom"}, name="string"))
    assert change.refused == ("the column name is gone from its events",)
    assert not change.table.columns["name"].declared.optional
    assert change.accepted.columns["name"].declared.optional


def test_a_column_that_is_renamed_in_case_only_is_gone_and_new() -> None:
    change = change_by(TABLE, of_schemas({"Name": "Tom"}, Name="string"))
    assert change.refused == ("the column name is gone from its events (Name is new: renamed?)",)


def test_all_reasons_are_said_and_all_is_accepted_at_once() -> None:
    table = made(of_schemas({"name": "Tom", "age": 1}, name="string", age="int64"))
    change = change_by(table, of_schemas({"age": "x", "new": 1}, age="string", new="int64"))
    assert change.refused == (
        "the column name is gone from its events (new is new: renamed?)",
        "the column age was int64, and is string",
    )
    assert list(change.accepted.columns) == ["id", "name", "age", "new"]
    assert change.accepted.columns["age"].came_as == ("int64", "string")
    # A column that is gone from some events, and comes with another type in others.
    late = changed(table, sample(table, of_schemas({"age": "x"}, age="string")), marks={"~age"}, gone={"age"})
    assert late.accepted.columns["age"].declared.optional
    assert late.accepted.columns["age"].came_as == ("int64", "string")


def test_a_mark_that_no_event_of_the_sample_explains_is_refused() -> None:
    change = changed(TABLE, sample(TABLE), marks={f"{RETYPED}name"}, gone=())
    assert change.refused == ("the column name was string, and is unknown",)


# By the database's definition.


def of_database(
    columns: Mapping[str, str], row: Mapping[str, Any], *, keys: Sequence[str] = ("id",)
) -> DiscoveredTable:
    return made(event(row, key=KEY), of=OF_DATABASE, by=[defined(columns, keys=keys)])


def redefined(table: DiscoveredTable, *by: Record) -> Change:
    return by_definition(table, sample(table, of=OF_DATABASE, definition=definitions(by).get(table.table)))


BY_DATABASE = of_database(
    {"id": "INT", "name": "VARCHAR(50)", "cell": "DECIMAL(10,2)"}, {**KEY, "name": "x", "cell": "AQ=="}
)
SAME = {"id": "INT", "name": "VARCHAR(50)", "cell": "DECIMAL(10,2)"}


def test_a_definition_that_says_the_same_changes_nothing() -> None:
    change = redefined(BY_DATABASE, defined(SAME))
    assert (change.refused, change.table.columns) == ((), BY_DATABASE.columns)


def test_a_column_that_is_defined_new_is_added() -> None:
    change = redefined(BY_DATABASE, defined({**SAME, "at": "DATETIME(3)"}))
    assert change.refused == ()
    assert types(change.table)["at"] == "TIMESTAMP millis"


def test_a_column_that_is_dropped_is_refused() -> None:
    change = redefined(BY_DATABASE, defined({"id": "INT", "cell": "DECIMAL(10,2)"}))
    assert change.refused == ("the column name is gone from its events",)
    # Accepted, it is no news again.
    assert redefined(change.accepted, defined({"id": "INT", "cell": "DECIMAL(10,2)"})).refused == ()


def test_a_table_that_is_dropped_is_refused() -> None:
    change = redefined(BY_DATABASE)
    assert change.refused == ("the topic of schema changes says that it was dropped",)
    assert change.table == change.accepted == BY_DATABASE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("INT", "BIGINT"),
        ("INT(11)", "BIGINT(20)"),
        ("TINYINT", "MEDIUMINT"),
        ("SMALLINT UNSIGNED", "INT(10) UNSIGNED"),
        ("INT UNSIGNED", "BIGINT"),
        ("VARCHAR(50)", "VARCHAR(100)"),
        ("FLOAT", "DOUBLE"),
        ("DATETIME(0)", "DATETIME(3)"),
        ("DECIMAL(65,2)", "DECIMAL(65,2)"),
    ],
)
def test_a_definition_that_grows_goes_on(before: str, after: str) -> None:
    table = of_database({"id": "INT", "cell": before}, {**KEY, "cell": None})
    change = redefined(table, defined({"id": "INT", "cell": after}))
    assert change.refused == ()
    assert types(change.table) == types(table)
    assert change.table.columns["cell"].came_as[-1] == after


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("BIGINT", "INT", "was BIGINT, and is narrower now: INT"),
        ("INT", "INT UNSIGNED", "was INT, and is narrower now: INT UNSIGNED"),
        ("INT UNSIGNED", "INT", "was INT UNSIGNED, and is narrower now: INT"),
        ("VARCHAR(50)", "VARCHAR(10)", "was VARCHAR(50), and is narrower now: VARCHAR(10)"),
        ("VARCHAR(50)", "INT", "was VARCHAR(50), and is INT"),
        ("DECIMAL(10,2)", "DECIMAL(8,2)", "was DECIMAL(10,2), and is narrower now: DECIMAL(8,2)"),
        (
            "DECIMAL(10,2)",
            "DECIMAL(12,2)",
            "was DECIMAL(10,2), and is DECIMAL(12,2), which DECIMAL(10,2) of its table does not hold",
        ),
        ("DATETIME(3)", "DATETIME(0)", "was DATETIME(3), and is narrower now: DATETIME(0)"),
    ],
)
def test_another_definition_is_refused(before: str, after: str, why: str) -> None:
    table = of_database({"id": "INT", "cell": before}, {**KEY, "cell": None})
    change = redefined(table, defined({"id": "INT", "cell": after}))
    assert change.refused == (f"the column cell {why}",)
    assert change.table.columns == table.columns
    assert change.accepted.columns["cell"].came_as == (before, after)
    assert change.unreadable == ()
    assert redefined(change.accepted, defined({"id": "INT", "cell": after})).refused == ()


TEXTS: Mapping[str, Any] = {"decimal_handling_mode": "string", "time_precision_mode": "isostring"}
WRITTEN_OTHERWISE = [
    ("DECIMAL(10,2)", "DECIMAL(10,4)"),
    ("DECIMAL(10,2)", "DECIMAL(12,4)"),
    ("NUMERIC(10)", "DECIMAL(10,2)"),
    ("DATETIME(6)", "DATETIME(3)"),
    ("DATETIME(3)", "DATETIME(6)"),
    ("TIMESTAMP", "DATETIME"),
    ("DATE", "DATETIME"),
    ("INT", "DATE"),
    ("BIGINT", "TIME"),
    ("BIGINT UNSIGNED", "BIGINT"),
    ("BIGINT", "BIGINT UNSIGNED"),
    ("INT UNSIGNED", "BIGINT UNSIGNED"),
    ("VARCHAR(50)", "BLOB"),
]


@pytest.mark.parametrize(("before", "after"), WRITTEN_OTHERWISE)
def test_values_that_are_written_otherwise_are_accepted_by_nobody(before: str, after: str) -> None:
    """No message says which definition its values are of."""
    first, second = defined({"id": "INT", "cell": before}), defined({"id": "INT", "cell": after})
    table = of_database({"id": "INT", "cell": before}, {**KEY, "cell": None})
    why = f"the column cell was {before} and {after} in turn: in messages without a schema nothing says which of its "
    assert redefined(table, first, second).unreadable == (f"{why}values are which",)
    assert redefined(table, first, second, first).unreadable == (f"{why}values are which",)
    made_late = made(event({**KEY, "cell": None}, key=KEY), of=OF_DATABASE, by=[first, second])
    assert (made_late.is_made, made_late.may_be_accepted, made_late.why) == (False, False, f"{why}values are which")


@pytest.mark.parametrize(
    ("before", "after"),
    [one for one in WRITTEN_OTHERWISE if "UNSIGNED" not in one[0] + one[1] and "BLOB" not in one[1]],
)
def test_values_that_are_written_as_text_can_be_read_by_any_definition(before: str, after: str) -> None:
    first, second = defined({"id": "INT", "cell": before}), defined({"id": "INT", "cell": after})
    as_text = rule(schema_changes="order_dw", **TEXTS)
    table = made(event({**KEY, "cell": None}, key=KEY), of=as_text, by=[first])
    definition = definitions([first, second])[table.table]
    assert by_definition(table, sample(table, of=as_text, definition=definition)).unreadable == ()


def test_the_definition_of_a_table_that_was_dropped_still_counts() -> None:
    dropped = changing({"type": "DROP", "id": '"order_dw"."user"'})
    change = redefined(BY_DATABASE, defined(SAME), dropped, defined({**SAME, "cell": "DECIMAL(10,4)"}))
    assert len(change.unreadable) == 1
    # A column that is not there any more has no values to come.
    gone = {name: one for name, one in SAME.items() if name != "cell"}
    changed_before = defined({**SAME, "cell": "DECIMAL(10,4)"})
    assert redefined(BY_DATABASE, defined(SAME), changed_before, defined(gone)).unreadable == ()


def test_a_column_whose_event_comes_before_its_definition_waits_for_it() -> None:
    """Topics are read in no order: a type that values alone would give is none of the database's."""
    record = event({**KEY, "name": "x", "cell": "AQ==", "new": "AQ=="}, key=KEY)
    early = changed(BY_DATABASE, sample(BY_DATABASE, record, of=OF_DATABASE), marks={f"{NEW}new"}, gone=())
    assert early.refused == ("the topic of schema changes does not say yet what its new column new is",)
    assert "new" not in early.table.columns
    assert early.accepted.columns["new"].came_as == ()
    late = redefined(BY_DATABASE, defined({**SAME, "new": "DECIMAL(10,2)"}))
    assert late.refused == ()
    assert late.table.columns["new"].came_as == ("DECIMAL(10,2)",)


def test_sizes_of_an_unknown_scale_are_compared_as_far_as_they_go() -> None:
    table = made(of_schemas({"cell": None}, cell=decimal(2)), of=rule())
    assert change_by(table, of_schemas({"cell": None}, cell=decimal(2, 10))).refused == (
        f"the column cell was {DECIMAL}(2), and is {DECIMAL}(10,2), which DECIMAL(38,2) of its table does not hold",
    )
