"""Where a record shows that its table has other columns than silver's: a field more, another type, another key.

Each such change has a kind, and by its kind the table's contract says what becomes of it (`on_schema_change`): a record
that is to go to quarantine has a problem, any other has marks, by which the batch decides. Columns that are gone do not
show in a record by itself: it may be older than they are (silver.order.missing_columns).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

from lakehouse.contracts.by_rule import KnownBy, MadeColumn
from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import DecimalType
from lakehouse.contracts.parts.schema_policy import Kind
from silver.decode.reference.message import FieldSchema, Key, Object

# A mark is one of these before the name of the field; RETYPED has the type behind it, KEY the fields of the key.
NEW, GONE, RETYPED, KEY = "+", "-", "~", "#"
_AS = " :: "
# The end of the sentences about records that go to quarantine for what they show of their table.
BY_POLICY = "(on_schema_change: quarantine)."
# So many marks of a record are shown: a table has not more columns.
MAX_MARKS = 1000
# What states the types of a table by rule (KnownBy).
BY_SCHEMA: KnownBy = "schema of the messages"
BY_DEFINITION: KnownBy = "topic of schema changes"
# What transforms add to a flattened row is no column of its table.
_ADDED = "__"
# In bytes.
_SIZES_OF_WHOLE = {
    **{"int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INT": 4, "INTEGER": 4, "BIGINT": 8},
    **{"int": 4, "long": 8},
}
_SIZES_OF_FLOAT = {"float": 4, "double": 8, "FLOAT": 4, "DOUBLE": 8}
_UNSIGNED = " UNSIGNED"


@cache
def came_as(schema: FieldSchema) -> str:
    """A field's type in the words of its schema: `int64`, `org.apache.kafka.connect.data.Decimal(10,2)`."""
    # A name may be anything: no more of it than names have.
    name = re.sub(r"[^A-Za-z0-9._$-]", "?", schema.name or schema.type or "unknown")[:200]
    sizes = [str(size) for size in (schema.precision, schema.scale) if size is not None]
    items = "" if schema.items is None else f"<{came_as(schema.items)}>"
    return name + items + (f"({','.join(sizes)})" if sizes else "")


def retyped(field: str, came: str) -> str:
    """The mark of a field that came as another type."""
    return f"{RETYPED}{field}{_AS}{came}"


def field_and_type(mark: str) -> tuple[str, str]:
    """The field of such a mark, and the type that it came as."""
    field, _as, came = mark.removeprefix(RETYPED).rpartition(_AS)
    return field, came


def new_fields(fields: Collection[str], declared: Collection[str]) -> list[str]:
    """Of the fields of a row those that no column is of."""
    return [name for name in fields if name not in declared and not name.startswith(_ADDED)][:MAX_MARKS]


def kind_of(column: MadeColumn, came: str) -> Kind:
    """What it is that a column came as another type than before: widen, narrow or retype.

    Of a column whose values alone are known nothing is known but its type: it widens.
    """
    if not column.came_as:
        return "widen"
    was = column.came_as[-1]
    if not is_alike(was, came):
        return "retype"
    has = _sizes(came)
    if any(one < other for one, other in zip(has, _sizes(was), strict=False)):
        return "narrow"
    held = column.declared.element_type
    is_held = not (isinstance(held, DecimalType) and len(has) == 2) or (
        has[0] <= held.precision - held.scale and has[1] <= held.scale
    )
    return "widen" if is_held else "retype"


def is_alike(was: str, came: str) -> bool:
    """Whether both are types of one kind, whatever their sizes."""
    return _family(was) == _family(came)


class Drift(NamedTuple):
    """What a record shows of its table: the marks of changes, and the sentences for which it goes to quarantine."""

    marks: list[str]
    problems: list[str]


NO_DRIFT = Drift([], [])


class KnownColumns:
    """What a feed's events may have.

    Of a table with a contract any type may come, for the contract's types count, and any field, unless it says that one
    is a change.
    """

    def __init__(self, feed: Feed) -> None:
        """Look at the table once, for all records."""
        discovered = feed.discovered
        self._policy = feed.on_schema_change
        self._approved = frozenset(() if discovered is None else discovered.approved)
        self._is_made = discovered is not None
        # Rows of an outbox or a list of changes have what their sender likes; no row is identified by it.
        self._shows_new = self._is_made or (self._policy.add != "evolve" and feed.envelope == "table")
        self._fields = frozenset(field for name in feed.columns for field in feed.fields_of(name))
        is_known = discovered is not None and discovered.known_by == BY_SCHEMA
        of_rule = {} if discovered is None or not is_known else discovered.columns
        self._columns = {
            field: column for name, column in of_rule.items() if column.came_as for field in feed.fields_of(name)
        }
        has_key = feed.envelope == "table" and not feed.append_only and self._policy.key != "evolve"
        self._keys = feed.key_fields if has_key else ()

    @property
    def shows_keys(self) -> bool:
        """Whether another key is a change."""
        return bool(self._keys)

    @property
    def shows_new(self) -> bool:
        """Whether a field that no column is of is a change."""
        return self._shows_new

    def drift(self, row: Object | None, schemas: Mapping[str, FieldSchema] | None, key: Key | None) -> Drift:
        """What a record shows: its row, whose fields have these schemas, and its own key."""
        found: list[tuple[Kind, str, str]] = []
        if self._shows_new and (row is not None or schemas):
            fields = (schemas or {}) if row is None else row
            found += [("add", NEW + name, f"the field {name}") for name in new_fields(fields, self._fields)]
        if schemas and self._columns:
            found += self._types(schemas)
        if key is not None and self._keys and self._is_other_key(key):
            names = ", ".join(key.fields or ()) or "no field"
            found.append(("key", f"{KEY}{names}", f"the key {names}"))
        if not found:
            return NO_DRIFT
        rejected = {mark: what for kind, mark, what in found if self._is_rejected(kind, mark)}
        return Drift(
            [mark for _kind, mark, _what in found if mark not in rejected],
            [f"The record has {what[:300]}, which its table has not {BY_POLICY}" for what in rejected.values()],
        )

    def _types(self, schemas: Mapping[str, FieldSchema]) -> list[tuple[Kind, str, str]]:
        stated = {field: came_as(schemas[field]) for field in self._columns if field in schemas}
        return [
            (kind_of(self._columns[field], came), retyped(field, came), f"the field {field} as {came}")
            for field, came in stated.items()
            if came not in self._columns[field].came_as
        ]

    def _is_rejected(self, kind: Kind, mark: str) -> bool:
        return self._policy.of(kind) == "quarantine" and mark not in self._approved

    def _is_other_key(self, key: Key) -> bool:
        """Whether the record's key has other columns than the table's; one that states none says nothing of a contract.

        A contract may name columns that the record's key has not: those that identify a row without a primary key.
        """
        names = {name for name in key.fields or () if not name.startswith(_ADDED)}
        if not names:
            return self._is_made and key.value is None
        own = [name for fields in self._keys for name in fields]
        has_own = all(any(name in names for name in fields) for fields in self._keys)
        return not names <= {*own} if has_own else self._is_made


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
