"""A table that a rule has made, and events that have other columns: what is added by itself, and what is not.

A column that comes new is added, and one whose type grows within the type that the table has goes on. A column that is
gone, became narrower or has another type needs a person: until one accepts it, the table is suspended. Imports without
pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.contracts.by_rule import DiscoveredTable, MadeColumn
from lakehouse.contracts.parts.names import column_name, unique
from silver.by_rule.discovered import Sample, encodings_differ
from silver.decode.drift import NEW, RETYPED

# In bytes.
_SIZES_OF_WHOLE = {
    **{"int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INT": 4, "INTEGER": 4, "BIGINT": 8},
    **{"int": 4, "long": 8},
}
_SIZES_OF_FLOAT = {"float": 4, "double": 8, "FLOAT": 4, "DOUBLE": 8}
_UNSIGNED = " UNSIGNED"


@dataclass(frozen=True)
class Change:
    """What becomes of a table: the `table` with all that is added by itself, and `refused`, what a person must accept.

    `accepted`: the table with that too. `unreadable`: what nobody can accept, for its values could not be read.
    """

    table: DiscoveredTable
    accepted: DiscoveredTable
    refused: Sequence[str] = field(default_factory=tuple)
    unreadable: Sequence[str] = field(default_factory=tuple)


def changed(discovered: DiscoveredTable, sample: Sample, *, marks: Collection[str], gone: Collection[str]) -> Change:
    """The change of a table by events with these marks (silver.decode.drift).

    `sample`: some of these events, and the last of all. `gone`: columns that events have no field for, and that earlier
    ones had one for (silver.order.missing_columns). Accepted, events may lack it.
    """
    columns, accepted, refused = dict(discovered.columns), dict(discovered.columns), list[str]()
    new = sorted(mark.removeprefix(NEW) for mark in marks if mark.startswith(NEW))
    for name in sorted(gone):
        column = discovered.columns[name]
        accepted[name] = _with(column, optional=True)
        renamed = f" ({', '.join(new)} is new: renamed?)" if new else ""
        refused.append(f"the column {_field(name, column)} is gone from its events{renamed}")
    for name, column in discovered.columns.items():
        if f"{RETYPED}{_field(name, column)}" in marks:
            now = sample.column(name, _field(name, column))
            merged = column.model_copy(update={"came_as": tuple(dict.fromkeys((*column.came_as, *now.came_as)))})
            accepted[name] = merged.model_copy(update={"declared": accepted[name].declared})
            why = _why_not(column, now)
            if why is None:
                columns[name] = merged.model_copy(update={"declared": columns[name].declared})
            else:
                refused.append(f"the column {_field(name, column)} {why}")
    for of_event in new:
        name = unique(column_name(of_event, number=len(columns) + 1), columns)
        accepted[name] = sample.column(name, of_event)
        if sample.known_by == "topic of schema changes" and not accepted[name].came_as:
            refused.append(f"the topic of schema changes does not say yet what its new column {of_event} is")
        else:
            columns[name] = accepted[name]
    table = discovered.model_copy(update={"columns": columns, "version": discovered.version + 1})
    return Change(table, table.model_copy(update={"columns": accepted}), tuple(refused))


def by_definition(discovered: DiscoveredTable, sample: Sample) -> Change:
    """The change of a table whose types the topic of schema changes states, by its definition now."""
    definition = sample.definition
    if definition is None:
        why = "the topic of schema changes says that it was dropped"
        return Change(discovered, discovered, (why,))
    fields = {_field(name, column): name for name, column in discovered.columns.items()}
    marks = {
        f"{RETYPED}{own}"
        for own, name in fields.items()
        if own in definition.columns and discovered.columns[name].came_as[-1:] != (definition.columns[own].text,)
    }
    marks |= {f"{NEW}{own}" for own in definition.columns if own not in fields}
    lost = {name for own, name in fields.items() if own not in definition.columns}
    gone = {name for name in lost if not discovered.columns[name].declared.optional}
    return replace(
        changed(discovered, sample, marks=marks, gone=gone), unreadable=encodings_differ(definition, sample.rule)
    )


def _why_not(before: MadeColumn, now: MadeColumn) -> str | None:
    """Why a column that came as the one cannot go on by itself as the other; None where it can."""
    was, has = before.came_as[-1] if before.came_as else "unknown", now.came_as[-1] if now.came_as else "unknown"
    # Of a column that only its values have made nothing is known but the type that it has in its table.
    is_known = bool(before.came_as)
    if is_known and _family(was) != _family(has):
        return f"was {was}, and is {has}"
    if is_known and any(one < other for one, other in zip(_sizes(has), _sizes(was), strict=False)):
        return f"was {was}, and is narrower now: {has}"
    kept = ("type", "source_type", "epoch_unit")
    if any(getattr(before.declared, name) != getattr(now.declared, name) for name in kept):
        return f"was {was}, and is {has}, which {before.declared.type.ddl} of its table does not hold"
    return None


def _family(came: str) -> str:
    name = re.sub(r"\(.*\)", "", came)
    if name.removesuffix(_UNSIGNED) in _SIZES_OF_WHOLE:
        return "a whole number"
    return "a float" if name in _SIZES_OF_FLOAT else name


def _sizes(came: str) -> tuple[int, ...]:
    """How much it holds: of a whole number bits and sign, of a decimal the digits before and after its point."""
    name, _open, rest = came.removesuffix(_UNSIGNED).partition("(")
    if name in _SIZES_OF_WHOLE:
        sign = 0 if came.endswith(_UNSIGNED) else 1
        return (8 * _SIZES_OF_WHOLE[name] - sign, sign)
    if name in _SIZES_OF_FLOAT:
        return (_SIZES_OF_FLOAT[name],)
    sizes = tuple(int(size) for size in re.findall(r"\d+", rest))
    return (sizes[0] - sizes[1], sizes[1]) if len(sizes) == 2 else sizes


def _field(name: str, column: MadeColumn) -> str:
    return column.declared.fields[0] if column.declared.fields else name


def _with(column: MadeColumn, *, optional: bool) -> MadeColumn:
    return column.model_copy(update={"declared": column.declared.model_copy(update={"optional": optional})})
