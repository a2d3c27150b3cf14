"""A table that a rule has made, and events that have other columns: what becomes of it, by its contract.

`on_schema_change` says by the kind of change whether the table goes on with it, waits for an operator, or goes on
without the records that show it; what an operator has approved it goes on with. Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lakehouse.contracts.by_rule import DiscoveredTable, MadeColumn, SchemaChange
from lakehouse.contracts.parts.names import column_name, unique
from lakehouse.contracts.parts.schema_policy import Kind, OnSchemaChange, Policy
from silver.by_rule.discovered import Sample, encodings_differ
from silver.decode.drift import BY_DEFINITION, GONE, KEY, NEW, RETYPED, field_and_type, is_alike, kind_of, retyped

_OF_TYPES = ("widen", "narrow", "retype")
_KEPT = ("type", "source_type", "epoch_unit")


@dataclass(frozen=True)
class Change:
    """What becomes of a table: the `table` with all that it goes on with, and with what it waits for, by `seen`.

    Where it waits and not `may_be_accepted`, nobody can approve it: values could not be read.
    """

    table: DiscoveredTable
    seen: tuple[SchemaChange, ...] = ()

    @property
    def refused(self) -> str:
        """Why the table waits; empty where it goes on."""
        return self.table.why


def changed(discovered: DiscoveredTable, sample: Sample, *, marks: Collection[str], gone: Collection[str]) -> Change:
    """The change of a table by events with these marks (silver.decode.drift).

    `sample`: some of these events, and the last of all. `gone`: columns that events have no field for, and that earlier
    ones had one for (silver.order.missing_columns).
    """
    policy = sample.rule.policy_of(discovered.table)
    columns, waiting = dict(discovered.columns), list[SchemaChange]()
    seen = tuple(_changes(discovered, sample, marks=marks, gone=gone))
    for change in seen:
        decided = decision(discovered, policy, change)
        if decided == "evolve":
            _evolve(columns, sample, change)
        elif decided == "suspend":
            waiting.append(change)
    return Change(_version(discovered, columns, waiting), seen)


def decision(discovered: DiscoveredTable, policy: OnSchemaChange, change: SchemaChange) -> Policy:
    """What becomes of the table by this change.

    Another key is never gone on with: the rows of the table are those of its key. Of a table whose types its definition
    states no record says by itself which type it has: it waits where such records should go to quarantine.
    """
    if change.kind != "key" and change.mark in discovered.approved:
        return "evolve"
    decided = policy.of(change.kind)
    if decided == "evolve" and change.is_undefined:
        return "suspend"
    is_shown = change.kind not in _OF_TYPES or (discovered.known_by != BY_DEFINITION and not change.is_beyond)
    return "suspend" if decided == "quarantine" and not is_shown else decided


def is_waiting(discovered: DiscoveredTable, policy: OnSchemaChange) -> bool:
    """Whether the table's records cannot be applied yet: events are missing, or an operator's approval."""
    if not discovered.why or not discovered.waiting:
        return bool(discovered.why)
    return any(decision(discovered, policy, change) == "suspend" for change in discovered.waiting)


def by_definition(discovered: DiscoveredTable, sample: Sample) -> Change:
    """The change of a table whose types the topic of schema changes states, by its definition now."""
    definition = sample.definition
    if definition is None:
        what = "the topic of schema changes says that it was dropped"
        dropped = SchemaChange(kind="drop", mark=GONE, field="", what=what)
        goes_on = decision(discovered, sample.rule.policy_of(discovered.table), dropped) == "evolve"
        return Change(_version(discovered, discovered.columns, () if goes_on else (dropped,)), (dropped,))
    names = columns_by_field(discovered.columns)
    marks = {
        retyped(field, definition.columns[field].text)
        for field, name in names.items()
        if field in definition.columns and discovered.columns[name].came_as[-1:] != (definition.columns[field].text,)
    }
    marks |= {f"{NEW}{field}" for field in definition.columns if field not in names}
    kept = {name for field, name in names.items() if field in definition.columns}
    gone = {name for name, one in discovered.columns.items() if name not in kept and not one.declared.optional}
    change = changed(discovered, sample, marks=marks, gone=gone)
    if unreadable := encodings_differ(definition, sample.rule):
        table = change.table.model_copy(update={"why": "; ".join(unreadable), "waiting": (), "may_be_accepted": False})
        return Change(table, change.seen)
    return change


def with_rename(discovered: DiscoveredTable, *, before: str, after: str) -> DiscoveredTable:
    """The table whose column of the field `before` is that of the field `after` too; the column keeps its name.

    Raises ValueError where the table does not wait for the one to be gone and the other to come.
    """
    waiting = {one.mark for one in discovered.waiting}
    name, marks = columns_by_field(discovered.columns).get(before), {f"{GONE}{before}", f"{NEW}{after}"}
    if name is None or not marks <= waiting:
        raise ValueError(f"{discovered.name} does not wait for {before} to be gone and {after} to be new")
    column = discovered.columns[name]
    declared = column.declared.model_copy(update={"fields": (after, *(column.declared.fields or (name,)))})
    columns = {**discovered.columns, name: column.model_copy(update={"declared": declared})}
    return _version(discovered, columns, [one for one in discovered.waiting if one.mark not in marks])


def with_approval(discovered: DiscoveredTable) -> DiscoveredTable:
    """The table with all that it waits for approved: the next run of silver goes on with it.

    Raises ValueError where it waits for a key: a table of another key is another table.
    """
    if any(one.kind == "key" for one in discovered.waiting):
        raise ValueError(f"{discovered.name} has another key now, and a table of another key is another table")
    approved = {*discovered.approved, *(one.mark for one in discovered.waiting)}
    return discovered.model_copy(update={"approved": tuple(sorted(approved)), "version": discovered.version + 1})


def columns_by_field(columns: Mapping[str, MadeColumn]) -> Mapping[str, str]:
    """The name of the column of each field of the events."""
    return {field: name for name, column in columns.items() for field in column.declared.fields or (name,)}


def _version(
    discovered: DiscoveredTable,
    columns: Mapping[str, MadeColumn],
    waiting: Collection[SchemaChange],
) -> DiscoveredTable:
    update = {
        "columns": columns,
        "waiting": tuple(waiting),
        "why": "; ".join(dict.fromkeys(one.what for one in waiting)),
        "may_be_accepted": True,
        "version": discovered.version + 1,
    }
    return discovered.model_copy(update=update)


def _changes(
    discovered: DiscoveredTable, sample: Sample, *, marks: Collection[str], gone: Collection[str]
) -> Iterator[SchemaChange]:
    """What the marks show."""
    new = sorted(mark.removeprefix(NEW) for mark in marks if mark.startswith(NEW))
    renamed = ""
    for name in sorted(gone):
        field = (discovered.columns[name].declared.fields or (name,))[0]
        what = f"the column {field} is gone from its events"
        if new:
            what += f" ({', '.join(new)} is new: renamed?)"
            renamed = renamed or what
        yield SchemaChange(kind="rename" if new else "drop", mark=f"{GONE}{field}", field=field, what=what)
    names = columns_by_field(discovered.columns)
    for mark in sorted(one for one in marks if one.startswith(RETYPED)):
        field, came = field_and_type(mark)
        if field in names:
            yield _of_type(discovered.columns[names[field]], sample.column(names[field], field), field=field, came=came)
    for field in new:
        kind: Kind = "rename" if gone else "add"
        what, is_undefined = renamed or f"the column {field} is new", False
        if sample.known_by == BY_DEFINITION and not sample.column(field, field).came_as:
            what, is_undefined = f"the topic of schema changes does not say yet what its new column {field} is", True
        yield SchemaChange(kind=kind, mark=f"{NEW}{field}", field=field, what=what, is_undefined=is_undefined)
    for mark in sorted(one for one in marks if one.startswith(KEY)):
        field = mark.removeprefix(KEY)
        what = f"the key of its records was {', '.join(discovered.keys)}, and is {field}"
        yield SchemaChange(kind="key", mark=mark, field=field, what=what)


def _of_type(column: MadeColumn, now: MadeColumn, *, field: str, came: str) -> SchemaChange:
    """The change of a column that came as another type; `now`: as the sample has it."""
    kind, was = kind_of(column, came), column.came_as[-1] if column.came_as else "unknown"
    is_beyond = kind == "widen" and any(getattr(column.declared, one) != getattr(now.declared, one) for one in _KEPT)
    kind = "retype" if is_beyond else kind
    what = f"the column {field} was {was}, and is {'narrower now: ' if kind == 'narrow' else ''}{came}"
    if kind == "retype" and is_alike(was, came):
        what += f", which {column.declared.type.ddl} of its table does not hold"
    return SchemaChange(kind=kind, mark=retyped(field, came), field=field, what=what, is_beyond=is_beyond)


def _evolve(columns: dict[str, MadeColumn], sample: Sample, change: SchemaChange) -> None:
    """Have the change in these columns."""
    if change.mark.startswith(NEW):
        name = unique(column_name(change.field, number=len(columns) + 1), columns)
        columns[name] = sample.column(name, change.field)
        return
    name = columns_by_field(columns)[change.field]
    column = columns[name]
    if change.mark.startswith(GONE):
        declared = column.declared.model_copy(update={"optional": True})
        columns[name] = column.model_copy(update={"declared": declared})
    else:
        _field, came = field_and_type(change.mark)
        columns[name] = column.model_copy(update={"came_as": tuple(dict.fromkeys((*column.came_as, came)))})
