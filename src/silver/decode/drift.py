"""Where a record has other columns than the table that a rule has made: a field more, or one of another type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

from lakehouse.contracts.models import Feed
from silver.decode.reference.message import FieldSchema, Object

# A mark is one of these before the name of the field.
NEW, RETYPED = "+", "~"
# So many marks of a record are shown: a table has not more columns.
MAX_MARKS = 1000
BY_SCHEMA = "schema of the messages"
# What transforms add to a flattened row is no column of its table.
_ADDED = "__"


@cache
def came_as(schema: FieldSchema) -> str:
    """A field's type in the words of its schema: `int64`, `org.apache.kafka.connect.data.Decimal(10,2)`."""
    # A name may be anything: no more of it than names have.
    name = re.sub(r"[^A-Za-z0-9._$-]", "?", schema.name or schema.type or "unknown")[:200]
    sizes = [str(size) for size in (schema.precision, schema.scale) if size is not None]
    items = "" if schema.items is None else f"<{came_as(schema.items)}>"
    return name + items + (f"({','.join(sizes)})" if sizes else "")


def new_fields(fields: Collection[str], declared: Collection[str]) -> list[str]:
    """Of the fields of a row those that no column is of."""
    return [f"{NEW}{name}" for name in fields if name not in declared and not name.startswith(_ADDED)][:MAX_MARKS]


class Drift:
    """What a feed's events may have. A feed that no rule has made may have anything: its contract says what counts."""

    def __init__(self, feed: Feed) -> None:
        """Look at the table once, for all records."""
        discovered = feed.discovered
        self._is_made = discovered is not None
        columns = (
            {}
            if discovered is None
            else {feed.fields_of(name)[0]: column for name, column in discovered.columns.items()}
        )
        self._fields = columns.keys()
        is_known = discovered is not None and discovered.known_by == BY_SCHEMA
        self._came_as = {field: one.came_as for field, one in columns.items() if is_known and one.came_as}

    def marks(self, row: Object | None, schemas: Mapping[str, FieldSchema] | None) -> list[str]:
        """The marks of an event with this row, whose fields have these schemas."""
        if not self._is_made:
            return []
        found = new_fields((schemas or {}) if row is None else row, self._fields)
        if not schemas:
            return found
        stated = {field: schemas[field] for field in self._came_as if field in schemas}
        return found + [f"{RETYPED}{name}" for name, one in stated.items() if came_as(one) not in self._came_as[name]]
