"""What becomes of a made table whose events have other columns: it goes on, waits, or leaves them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from silver.by_rule.changed import Change, by_definition, changed, is_waiting, with_approval, with_rename
from silver.by_rule.definitions import definitions
from silver.decode.drift import NEW, retyped
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record
from tests.support.by_rule import changing, connect, defined, event, feed_of, made, rule, sample, types
from tests.unit.silver.by_rule.test_discovered import OF_DATABASE, decimal

KEY = {"id": 1}
USER = {"id": "int64", "name": "string"}


def of_schemas(values: Mapping[str, Any], **schema: Any) -> Record:
    return event({**KEY, **values}, key=KEY, schema=connect(id="int64", **schema))


def change_by(table: DiscoveredTable, *records: Record, **policy: Any) -> Change:
    """The change that these events lead to, by the marks that the decoder gives them; by this `on_schema_change`."""
    of = rule(on_schema_change=policy)
    explaining = ReferenceDecoder(feed_of(table, of))
    events = [explaining.event(record) for record in records]
    marks = {mark for one in events for mark in one.drift}
    gone = {name for one in events for name in one.absent if not table.columns[name].declared.optional}
    return changed(table, sample(table, *records, of=of), marks=marks, gone=gone)


def approved(change: Change, *records: Record) -> DiscoveredTable:
    """The table once a person has approved what it waits for, and the events are read again."""
    return change_by(with_approval(change.table), *records).table


TABLE = made(of_schemas({"name": "Tom"}, name="string"))


def test_a_column_that_comes_new_is_added() -> None:
    change = change_by(TABLE, of_schemas({"name": "Tom", "Age": 7}, name="string", Age="int32"))
    assert change.refused == ""
    assert types(change.table) == {"id": "BIGINT", "name": "STRING", "age": "BIGINT"}
    age = change.table.columns["age"]
    assert (age.declared.fields, age.declared.optional, age.came_as) == (("Age",), False, ("int32",))
    assert change.table.version == 2
    assert not change.table.waiting


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
    assert change.refused == ""
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
    assert change.refused == f"the column cell {why}"
    assert change.table.columns == table.columns
    # Accepted, it comes as both, into the type that the table has.
    later = approved(change, record)
    assert types(later) == types(table)
    assert len(later.columns["cell"].came_as) == 2
    assert change_by(later, record).table.columns == later.columns


def test_a_column_that_is_gone_is_refused() -> None:
    record = of_schemas({})
    change = change_by(TABLE, record)
    assert change.refused == "the column name is gone from its events"
    assert change.table.columns == TABLE.columns
    later = approved(change, record)
    assert later.columns["name"].declared.optional
    assert change_by(later, record).refused == ""


def test_a_column_that_is_renamed_is_gone_and_new() -> None:
    record = of_schemas({"called": "Tom"}, called="string")
    change = change_by(TABLE, record)
    assert change.refused == "the column name is gone from its events (called is new: renamed?)"
    assert change.table.columns == TABLE.columns
    later = approved(change, record)
    assert list(later.columns) == ["id", "name", "called"]
    assert later.columns["name"].declared.optional


def test_a_column_is_named_as_its_events_name_it() -> None:
    table = made(of_schemas({"Full Name": "Tom"}, **{"Full Name": "string"}))
    assert change_by(table, of_schemas({})).refused == "the column Full Name is gone from its events"
    retyped_column = change_by(table, of_schemas({"Full Name": 1}, **{"Full Name": "int32"}))
    assert retyped_column.refused == "the column Full Name was string, and is int32"


def test_a_column_that_is_gone_from_some_events_is_refused_though_the_last_has_it() -> None:
    records = of_schemas({}), of_schemas({"name": "Tom"}, name="string")
    change = change_by(TABLE, *records)
    assert change.refused == "the column name is gone from its events"
    assert not change.table.columns["name"].declared.optional
    assert approved(change, *records).columns["name"].declared.optional


def test_a_column_that_is_renamed_in_case_only_is_gone_and_new() -> None:
    change = change_by(TABLE, of_schemas({"Name": "Tom"}, Name="string"))
    assert change.refused == "the column name is gone from its events (Name is new: renamed?)"


def test_all_reasons_are_said_and_all_is_approved_at_once() -> None:
    table = made(of_schemas({"name": "Tom", "age": 1}, name="string", age="int64"))
    record = of_schemas({"age": "x", "new": 1}, age="string", new="int64")
    change = change_by(table, record)
    assert change.refused == (
        "the column name is gone from its events (new is new: renamed?); the column age was int64, and is string"
    )
    later = approved(change, record)
    assert list(later.columns) == ["id", "name", "age", "new"]
    assert later.columns["age"].came_as == ("int64", "string")
    # A column that is gone from some events, and comes with another type in others.
    events, marks = sample(table, of_schemas({"age": "x"}, age="string")), {retyped("age", "string")}
    waits = changed(table, events, marks=marks, gone={"age"}).table
    late = changed(with_approval(waits), events, marks=marks, gone={"age"}).table
    assert late.columns["age"].declared.optional
    assert late.columns["age"].came_as == ("int64", "string")


def test_a_mark_that_no_event_of_the_sample_explains_is_refused() -> None:
    change = changed(TABLE, sample(TABLE), marks={retyped("name", "int32")}, gone=())
    assert change.refused == "the column name was string, and is int32"
    # A field that no column is of any more.
    assert changed(TABLE, sample(TABLE), marks={retyped("called", "int32")}, gone=()).seen == ()


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
    assert (change.refused, change.table.columns) == ("", BY_DATABASE.columns)


def test_a_column_that_is_defined_new_is_added() -> None:
    change = redefined(BY_DATABASE, defined({**SAME, "at": "DATETIME(3)"}))
    assert change.refused == ""
    assert types(change.table)["at"] == "TIMESTAMP millis"


def test_a_column_that_is_dropped_is_refused() -> None:
    change = redefined(BY_DATABASE, defined({"id": "INT", "cell": "DECIMAL(10,2)"}))
    assert change.refused == "the column name is gone from its events"
    # Approved, it is no news again.
    later = redefined(with_approval(change.table), defined({"id": "INT", "cell": "DECIMAL(10,2)"})).table
    assert redefined(later, defined({"id": "INT", "cell": "DECIMAL(10,2)"})).seen == ()


def test_a_table_that_is_dropped_is_refused() -> None:
    change = redefined(BY_DATABASE)
    assert change.refused == "the topic of schema changes says that it was dropped"
    assert change.table.columns == BY_DATABASE.columns
    assert redefined(with_approval(change.table)).refused == ""


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
    assert change.refused == ""
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
    assert change.refused == f"the column cell {why}"
    assert change.table.columns == table.columns
    assert change.table.may_be_accepted
    later = redefined(with_approval(change.table), defined({"id": "INT", "cell": after})).table
    assert later.columns["cell"].came_as == (before, after)
    assert redefined(later, defined({"id": "INT", "cell": after})).seen == ()


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
    for by in ((first, second), (first, second, first)):
        change = redefined(table, *by)
        assert (change.refused, change.table.may_be_accepted) == (f"{why}values are which", False)
        assert is_waiting(change.table, OF_DATABASE.declared.on_schema_change)
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
    assert by_definition(table, sample(table, of=as_text, definition=definition)).table.may_be_accepted


def test_the_definition_of_a_table_that_was_dropped_still_counts() -> None:
    dropped = changing({"type": "DROP", "id": '"order_dw"."user"'})
    change = redefined(BY_DATABASE, defined(SAME), dropped, defined({**SAME, "cell": "DECIMAL(10,4)"}))
    assert not change.table.may_be_accepted
    # A column that is not there any more has no values to come.
    gone = {name: one for name, one in SAME.items() if name != "cell"}
    changed_before = defined({**SAME, "cell": "DECIMAL(10,4)"})
    assert redefined(BY_DATABASE, defined(SAME), changed_before, defined(gone)).table.may_be_accepted


def test_a_column_whose_event_comes_before_its_definition_waits_for_it() -> None:
    """Topics are read in no order: a type that values alone would give is none of the database's."""
    record = event({**KEY, "name": "x", "cell": "AQ==", "new": "AQ=="}, key=KEY)
    early = changed(BY_DATABASE, sample(BY_DATABASE, record, of=OF_DATABASE), marks={f"{NEW}new"}, gone=())
    assert early.refused == "the topic of schema changes does not say yet what its new column new is"
    assert "new" not in early.table.columns
    events = sample(BY_DATABASE, record, of=OF_DATABASE)
    by_values = changed(with_approval(early.table), events, marks={f"{NEW}new"}, gone=())
    assert by_values.table.columns["new"].came_as == ()
    # Its definition comes late, and says a type that the values' holds.
    of_text = redefined(by_values.table, defined({**SAME, "new": "TEXT"}))
    assert (of_text.refused, of_text.table.columns["new"].came_as) == ("", ("TEXT",))
    late = redefined(BY_DATABASE, defined({**SAME, "new": "DECIMAL(10,2)"}))
    assert late.refused == ""
    assert late.table.columns["new"].came_as == ("DECIMAL(10,2)",)


def test_sizes_of_an_unknown_scale_are_compared_as_far_as_they_go() -> None:
    table = made(of_schemas({"cell": None}, cell=decimal(2)), of=rule())
    assert change_by(table, of_schemas({"cell": None}, cell=decimal(2, 10))).refused == (
        f"the column cell was {DECIMAL}(2), and is {DECIMAL}(10,2), which DECIMAL(38,2) of its table does not hold"
    )


# By what the contract says (`on_schema_change`).

WIDE = made(of_schemas({"name": "Tom", "age": 1}, name="string", age="int64"))
NARROW = of_schemas({"name": "Tom", "age": 1}, name="string", age="int32")
OTHER_TYPE = of_schemas({"name": "Tom", "age": "x"}, name="string", age="string")
DROPPED = of_schemas({"age": 1}, age="int64")
RENAMED = of_schemas({"called": "Tom", "age": 1}, called="string", age="int64")
ADDED = of_schemas({"name": "Tom", "age": 1, "new": 1}, name="string", age="int64", new="int32")
KINDS = {"add": ADDED, "narrow": NARROW, "retype": OTHER_TYPE, "drop": DROPPED, "rename": RENAMED}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_goes_on_with_what_is_to_evolve(kind: str) -> None:
    change = change_by(WIDE, KINDS[kind], **{kind: "evolve"})
    assert {one.kind for one in change.seen} == {kind}
    assert (change.refused, change.table.waiting) == ("", ())
    assert change.table.columns != WIDE.columns
    assert change_by(change.table, KINDS[kind], **{kind: "evolve"}).table.columns == change.table.columns


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_waits_with_what_is_to_suspend_it_until_it_is_approved(kind: str) -> None:
    suspend = OnSchemaChange.model_validate({kind: "suspend"})
    change = change_by(WIDE, KINDS[kind], **{kind: "suspend"})
    assert {one.kind for one in change.table.waiting} == {kind}
    assert change.refused
    assert is_waiting(change.table, suspend)
    assert change.table.columns == WIDE.columns
    assert not is_waiting(with_approval(change.table), suspend)
    # The contract may say otherwise by now.
    assert not is_waiting(change.table, OnSchemaChange.model_validate({kind: "evolve"}))
    later = change_by(with_approval(change.table), KINDS[kind], **{kind: "suspend"})
    assert (later.refused, later.table.waiting) == ("", ())
    # What is approved is that alone.
    other = of_schemas({"name": "Tom", "age": 1}, name="string", age="double")
    assert change_by(later.table, other).refused


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_to_go_to_quarantine_changes_no_table(kind: str) -> None:
    change = change_by(WIDE, KINDS[kind], **{kind: "quarantine"})
    assert (change.refused, change.table.columns) == ("", WIDE.columns)
    event_of = ReferenceDecoder(feed_of(WIDE, rule(on_schema_change={kind: "quarantine"}))).event(KINDS[kind])
    # What is gone shows by position alone.
    assert bool(event_of.problems) == (kind not in ("drop", "rename"))


def test_the_policy_of_a_single_table_counts_before_that_of_its_rule() -> None:
    of = rule(on_schema_change={"drop": "evolve"}, on_schema_change_of={"order_dw.user": {"drop": "suspend"}})
    assert feed_of(WIDE, of).on_schema_change.drop == "suspend"
    assert changed(WIDE, sample(WIDE, DROPPED, of=of), marks=(), gone={"name"}).refused


def test_a_definition_shows_no_type_in_a_record_so_its_table_waits() -> None:
    narrower, policy = defined({**SAME, "name": "VARCHAR(10)"}), {"narrow": "quarantine", "drop": "quarantine"}
    of = rule(schema_changes="order_dw", on_schema_change=policy)
    by = definitions([narrower]).get(BY_DATABASE.table)
    change = by_definition(BY_DATABASE, sample(BY_DATABASE, of=of, definition=by))
    assert change.refused == "the column name was VARCHAR(50), and is narrower now: VARCHAR(10)"
    assert is_waiting(change.table, of.declared.on_schema_change)
    # A column that is gone shows in the records' fields.
    by = definitions([defined({"id": "INT", "cell": "DECIMAL(10,2)"})]).get(BY_DATABASE.table)
    assert by_definition(BY_DATABASE, sample(BY_DATABASE, of=of, definition=by)).refused == ""


def test_another_key_is_never_approved() -> None:
    record = event({**KEY, "line": 1, "name": "Tom"}, key={**KEY, "line": 1}, schema=connect(id="int64", name="string"))
    change = change_by(TABLE, record, add="evolve")
    assert "the key of its records was id, and is id, line" in change.refused
    with pytest.raises(ValueError, match="a table of another key is another table"):
        with_approval(change.table)
    approved_by_hand = change.table.model_copy(update={"approved": tuple(one.mark for one in change.table.waiting)})
    assert is_waiting(approved_by_hand, OnSchemaChange())


def test_a_rename_that_is_approved_has_both_fields_in_one_column() -> None:
    change = change_by(WIDE, RENAMED)
    later = with_approval(with_rename(change.table, before="name", after="called"))
    assert (later.why, later.waiting, list(later.columns)) == ("", (), ["id", "name", "age"])
    assert later.columns["name"].declared.fields == ("called", "name")
    explaining = ReferenceDecoder(feed_of(later))
    rows = [
        explaining.event(one) for one in (RENAMED, of_schemas({"name": "Tom", "age": 1}, name="string", age="int64"))
    ]
    assert [one.row for one in rows] == [[1, "Tom", 1], [1, "Tom", 1]]
    assert all((one.drift, one.absent, one.problems) == ([], [], []) for one in rows)
    # The new field may come as another type, or be renamed again.
    retyped_too = of_schemas({"called": 1, "age": 1}, called="int32", age="int64")
    assert change_by(later, retyped_too).refused == "the column called was string, and is int32"
    twice = change_by(later, of_schemas({"x": "y", "age": 1}, x="string", age="int64"))
    again = with_rename(twice.table, before="called", after="x")
    assert again.columns["name"].declared.fields == ("x", "called", "name")


def test_a_rename_is_of_what_the_table_waits_for() -> None:
    waits = change_by(WIDE, RENAMED).table
    for before, after in (("age", "called"), ("name", "age"), ("nothing", "called")):
        with pytest.raises(ValueError, match=f"does not wait for {before} to be gone and {after} to be new"):
            with_rename(waits, before=before, after=after)
    # What else it waits for it waits for.
    more = change_by(WIDE, of_schemas({"called": "Tom", "age": "x"}, called="string", age="string")).table
    assert with_rename(more, before="name", after="called").why == "the column age was int64, and is string"
