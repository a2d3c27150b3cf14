"""The fast way of Avro: envelopes whose schema has each declared field, read column by column, a batch at a time.

As `silver.decode.fast.json_records` is for JSON: what it does not take goes to `explain`, and what it takes, `explain`
reads the same. The schemas are known before a record is looked at, so how a column is read is decided once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lakehouse.contracts.models import Feed
from silver.decode.avro import HEAD, AvroSchema, as_json
from silver.decode.drift import KnownColumns
from silver.decode.fast.avro_columns import Cells, Columns, Numbers, Path, Read, UnsupportedError
from silver.decode.fast.json_records import (
    IN_DAYS,
    IN_MICROS,
    IN_MILLIS,
    FastRows,
    Form,
    TypedColumn,
    column_of,
    is_plain,
    typed,
)
from silver.decode.reference.decoder import WHOLE_ROWS, large_columns, placeholders
from silver.decode.reference.message import NUMBERS_OF_SOURCE, SNAPSHOT_WORDS, Key, MalformedError, Source, text_of
from silver.decode.reference.table import fields_of, is_surely_own
from silver.decode.reference.values import BITS, CONVERSION_ERROR, Value

_WHOLE = ("int", "long")
# In which types of Avro a form's values come; any other type is read cell by cell.
_KINDS = {
    Form.DECIMAL_BASE64: ("bytes",),
    Form.DECIMAL_TEXT: ("string",),
    **dict.fromkeys((Form.DATE, Form.TIME, Form.MILLIS), (*_WHOLE, "string")),
}
_RANGES = {Form.DATE: IN_DAYS, Form.TIME: IN_MICROS, Form.MILLIS: IN_MILLIS}
_OP, _READ_MS = ("op",), ("ts_ms",)
_SOURCE = {name: ("source", name) for name in Source._fields}
# What the fields of an envelope are; one that is of another type is read by the definition.
_ENVELOPE: Mapping[Path, tuple[str, ...]] = {
    _OP: ("string",),
    _READ_MS: _WHOLE,
    **{path: _WHOLE if name in NUMBERS_OF_SOURCE else ("string",) for name, path in _SOURCE.items()},
}
_RANGES_OF_SOURCE = {
    **{_SOURCE[name]: (0, 2**63) for name in NUMBERS_OF_SOURCE},
    _SOURCE["ts_ms"]: IN_MILLIS,
    _SOURCE["ts_us"]: IN_MICROS,
}


def typed_avro(feed: Feed, value: AvroSchema, key: AvroSchema | None) -> FastAvroDecoder | None:
    """The reader of records with these schemas; `key` None: their keys are JSON.

    None where the definition must read each record.
    """
    if not is_plain(feed):
        return None
    try:
        for schema in (value, *([] if key is None else [key])):
            schema.require()
        of_key = None if key is None else Key(fields=dict.fromkeys(key.message.fields))
        if any(KnownColumns(feed).drift(None, value.message.nested.get("after", {}), of_key)):
            return None
        return FastAvroDecoder(feed, value, key)
    except (UnsupportedError, MalformedError, RecursionError):
        return None


class FastAvroDecoder:
    """Reads the records of one feed, one schema of values and one of keys. Raises UnsupportedError, MalformedError."""

    def __init__(self, feed: Feed, value: AvroSchema, key: AvroSchema | None) -> None:
        """Decide how each column is read."""
        names = {name: feed.fields_of(name)[0] for name, one in feed.columns.items() if one.is_of_row}
        keys = [name for name in feed.keys if name in names]
        self._after = {name: ("after", field) for name, field in names.items()}
        before = {name: ("before", names[name]) for name in keys}
        self._values = Columns(value.declared, {*self._after.values(), *before.values(), *_ENVELOPE})
        self._kinds = self._values.kinds
        is_whole = {_OP, *self._after.values()} <= self._kinds.keys() and any(
            path[0] == "source" for path in self._kinds
        )
        if not is_whole or any(self._kinds.get(path, kinds[0]) not in kinds for path, kinds in _ENVELOPE.items()):
            raise UnsupportedError
        self._before = {name: path for name, path in before.items() if path in self._kinds}
        # Floats that are equal may be written differently, as 0.0 and -0.0 are.
        of_keys = [(self._kinds[self._after[name]], self._kinds.get(before[name])) for name in keys]
        if any(kind in ("float", "double") or there not in (kind, None) for kind, there in of_keys):
            raise UnsupportedError
        of_after = value.message.nested["after"]
        self.columns = [self._column(column_of(name, one, feed, of_after)) for name, one in feed.columns.items()]
        self._ranges = dict(self._ranges_of_columns())
        self._key_at = {name: number for number, name in enumerate(keys)}
        own = [column for column in self.columns if column.name in self._key_at]
        self._keys = _JsonKeys(feed, own) if key is None else self._avro_keys(key, keys)
        self._fields = fields_of(feed)
        self._placeholders = frozenset(placeholders(feed.unavailable_value_placeholder))
        self._large = frozenset(large_columns(feed))

    def read(self, keys: Sequence[bytes], values: Sequence[bytes]) -> FastRows:
        """The records that are as declared. Not shown is a header that says more than the value."""
        read = self._values.read(values, head=HEAD)
        own = self._keys.read(keys, read.fit)
        cells = {column.name: self._cells(read, own, column) for column in self.columns}
        op, ts_us, ts_ms = read.cells(_OP), self._of(read, _SOURCE["ts_us"]), self._of(read, _SOURCE["ts_ms"])
        source = [self._of(read, path) for path in _SOURCE.values()]
        self._require_ranges(read)
        self._require_rows(read, op)
        self._require_keys(read, own, cells)
        self._require_values(read, op, cells)
        self._require_table(read, source)
        self._require_snapshots(read, source)
        found = FastRows(
            at=list(range(len(values))),
            op=op,
            source_ts=[ms * 1000 if us is None and ms is not None else us for us, ms in zip(ts_us, ts_ms, strict=True)],
            read_ms=self._of(read, _READ_MS),
            source=list(zip(*source, strict=True)),
            rows=list(zip(*cells.values(), strict=True)),
        )
        return found if read.fit.all() else found.without(set(np.flatnonzero(~read.fit).tolist()))

    def values(self, column: TypedColumn, cells: Sequence[Any]) -> list[Value]:
        """The cells of a column as the definition reads them; CONVERSION_ERROR where it must say more."""
        kind, is_large = self._kinds[self._after[column.name]], column.name in self._large
        return [None if cell is None else self._value(column, as_json(kind, cell), is_large) for cell in cells]

    def _value(self, column: TypedColumn, field: Any, is_large: bool) -> Value:
        if is_large and text_of(field) in self._placeholders:
            return CONVERSION_ERROR
        return column.read(field, column.schema)

    def _avro_keys(self, schema: AvroSchema, names: Sequence[str]) -> _AvroKeys:
        after = [self._after[name] for name in names]
        keys = _AvroKeys(schema, [path[1:] for path in after], [self._ranges.get(path) for path in after])
        if keys.kinds != [self._kinds[path] for path in after]:
            raise UnsupportedError
        return keys

    def _column(self, column: TypedColumn) -> TypedColumn:
        """The column with the form in which Avro has it."""
        if not column.declared.is_of_row:
            return column
        held, kind = column.declared.type.ddl, self._kinds[self._after[column.name]]
        as_it_is = _WHOLE if held in BITS else ("boolean",) if held == "BOOLEAN" else ("string",)
        fits = kind in (as_it_is if column.form is Form.AS_IS else _KINDS.get(column.form, ()))
        return column if fits else replace(column, form=Form.CELL)

    def _ranges_of_columns(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Between which numbers the values of a field lie."""
        for path, limits in _RANGES_OF_SOURCE.items():
            if path in self._kinds:
                yield path, limits
        for column in self.columns:
            if not column.declared.is_of_row:
                continue
            path, held = self._after[column.name], column.declared.type.ddl
            if self._kinds[path] in _WHOLE:
                if column.form in _RANGES:
                    yield path, _RANGES[column.form]
                elif column.form is Form.AS_IS:
                    yield path, (-(1 << BITS[held]), 1 << BITS[held])

    def _cells(self, read: Read, own: Mapping[int, Cells], column: TypedColumn) -> Cells:
        """The cells of a column: of a delete those of its key, and None."""
        if not column.declared.is_of_row:
            return [None] * len(read.fit)
        at = self._key_at.get(column.name)
        return read.cells(self._after[column.name]) if at is None else own[at]

    def _of(self, read: Read, path: Path) -> Cells:
        return read.cells(path) if path in self._kinds else [None] * len(read.fit)

    def _require_ranges(self, read: Read) -> None:
        for path, (lowest, beyond) in self._ranges.items():
            read.require(path, lowest, beyond)

    def _require_rows(self, read: Read, op: Cells) -> None:
        """A create or update has a row, a delete has none; and there is a source block."""
        read.fit &= read.has(("source",))
        has_row = read.has(("after",))
        is_delete = np.fromiter((one == "d" for one in op), bool, len(op))
        may_have_row = np.fromiter((one == "u" or one in WHOLE_ROWS for one in op), bool, len(op))
        read.fit &= np.where(has_row, may_have_row, is_delete)

    def _require_keys(self, read: Read, own: Mapping[int, Cells], cells: Mapping[str, Cells]) -> None:
        """The row, and the one before as far as it says, have the key of the record."""
        has_row = read.has(("after",)).tolist()
        for name, at in self._key_at.items():
            after = read.cells(self._after[name])
            same = [
                key is not None and (row == key or not there)
                for key, row, there in zip(own[at], after, has_row, strict=True)
            ]
            read.fit &= np.array(same, bool)
            if name in self._before:
                before = zip(own[at], read.cells(self._before[name]), strict=True)
                read.fit &= np.fromiter((one is None or one == key for key, one in before), bool, len(same))

    def _require_values(self, read: Read, op: Cells, cells: Mapping[str, Cells]) -> None:
        """An update leaves out no large value."""
        for column in self.columns:
            if column.name in self._large and column.form is Form.AS_IS:
                found = [
                    one == "u" and cell in self._placeholders for one, cell in zip(op, cells[column.name], strict=True)
                ]
                read.fit &= ~np.array(found, bool)

    def _require_table(self, read: Read, source: Sequence[Cells]) -> None:
        """The source block names a table of the feed, or none."""
        db, schema, table = source[-3:]
        tables = list(zip(db, schema, table, strict=True))
        others = {
            one
            for one in set(tables)
            if not is_surely_own(Source(db=one[0], schema=one[1], table=one[2]), self._fields)
        }
        if others:
            read.fit &= np.fromiter((one not in others for one in tables), bool, len(tables))

    def _require_snapshots(self, read: Read, source: Sequence[Cells]) -> None:
        """The source block states a known word of snapshots, or none."""
        of_snapshot = source[Source._fields.index("snapshot")]
        if others := {*of_snapshot} - {None, *SNAPSHOT_WORDS}:
            read.fit &= np.fromiter((one not in others for one in of_snapshot), bool, len(of_snapshot))


class _AvroKeys:
    """Keys of one schema."""

    def __init__(self, schema: AvroSchema, fields: Sequence[Path], ranges: Sequence[tuple[int, int] | None]) -> None:
        self._fields, self._ranges = fields, ranges
        self._columns = Columns(schema.declared, fields)

    @property
    def kinds(self) -> list[str | None]:
        """The types of the fields; None of one that is not there."""
        return [self._columns.kinds.get(path) for path in self._fields]

    def read(self, keys: Sequence[bytes], fit: Numbers) -> Mapping[int, Cells]:
        """The cells of each column of the key; a key that is not of the schema does not fit."""
        read = self._columns.read(keys, head=HEAD)
        cells = {number: read.cells(path) for number, path in enumerate(self._fields)}
        for path, limits in zip(self._fields, self._ranges, strict=True):
            if limits is not None:
                read.require(path, *limits)
        fit &= read.fit
        return cells


class _JsonKeys:
    """Keys as JsonConverter writes them without a schema."""

    def __init__(self, feed: Feed, columns: Sequence[TypedColumn]) -> None:
        of_json = typed(feed)
        # What both forms write alike.
        if of_json is None or any(column.form is not Form.AS_IS for column in columns):
            raise UnsupportedError
        self._typed, self._count = of_json, len(columns)

    def read(self, keys: Sequence[bytes], fit: Numbers) -> Mapping[int, Cells]:
        """The cells of each column of the key; a key that is not as declared does not fit."""
        nothing = (None,) * self._count
        found = [self._typed.key(key) or nothing for key in keys]
        fit &= np.fromiter((one is not nothing for one in found), bool, len(found))
        return dict(enumerate(map(list, zip(*found, strict=True))))
