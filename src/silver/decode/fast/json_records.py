"""The fast way: records of a table that are just as the contract declares, read into structs that are made from it.

It takes an envelope with each declared field in its usual form, whose key says what its row says. Whatever it does not
take (a field missing, a placeholder, another shape, a number that does not fit) goes to `explain`, which is the
definition: what is taken here, it reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec.structs import astuple

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import ArrayType, DecimalType
from lakehouse.contracts.tables import Column
from silver.decode.drift import KnownColumns
from silver.decode.reference.decoder import OF_DEFINITION, WHOLE_ROWS, large_columns, placeholders
from silver.decode.reference.message import (
    MAX_LEVELS,
    FieldSchema,
    MalformedError,
    MessageSchema,
    Number,
    SnapshotWord,
    Source,
    parsed,
    text_of,
)
from silver.decode.reference.numbers import is_base64, is_decimal
from silver.decode.reference.table import OF_ROUTER, fields_of, is_surely_own
from silver.decode.reference.times import SECONDS_OF_DAY, YEAR_1, YEAR_10000
from silver.decode.reference.values import (
    BITS,
    CONVERSION_ERROR,
    Reader,
    Value,
    carries_precise_decimals,
    epoch_unit,
    is_known,
    reader,
    scale_of,
)


class Form(Enum):
    """How the values of a column come out of its struct.

    AS_IS: as the value. CELL: as the JSON of one field, for a type that is read cell by cell. The others are read
    column by column: DECIMAL_TEXT, DECIMAL_NUMBER (the JSON of one), DECIMAL_BASE64 (of the unscaled number), DATE and
    TIME (numbers of days or microseconds, MILLIS of milliseconds, or ISO 8601 text).
    """

    AS_IS = "as is"
    CELL = "cell"
    DECIMAL_TEXT = "decimal as text"
    DECIMAL_NUMBER = "decimal as number"
    DECIMAL_BASE64 = "decimal as base64"
    DATE = "date"
    TIME = "time"
    MILLIS = "time in milliseconds"


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of the contract: its form, and the definition's reader for what its form does not take."""

    name: str
    declared: Column
    form: Form
    read: Reader
    schema: FieldSchema | None
    from_topic: re.Pattern[str] | None = None

    def value(self, cell: Any) -> Value:
        """One cell as the definition reads it: a text, a number, or (CELL, DECIMAL_NUMBER) the JSON of a field."""
        if cell is None:
            return None
        if isinstance(cell, msgspec.Raw):
            try:
                cell = parsed(bytes(cell).decode(), name="")
            except (MalformedError, UnicodeDecodeError):
                return CONVERSION_ERROR
        elif isinstance(cell, int):
            cell = Number(cell)
        return self.read(cell, self.schema)


@dataclass(slots=True)
class FastRows:
    """Records that were taken. `at`: which of the records these are.

    `source`: the fields of `Source`, its `sequence` as the JSON text that it travels as. `rows`: the cells of the
    contract's columns, each in its form; of a delete all but the key are None.
    """

    at: list[int] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    source_ts: list[int | None] = field(default_factory=list)
    read_ms: list[int | None] = field(default_factory=list)
    source: list[tuple[Any, ...]] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def without(self, numbers: set[int]) -> FastRows:
        """The same rows but these. `numbers`: counted from 0 among those that were taken."""
        kept = [number for number in range(len(self.at)) if number not in numbers]
        return FastRows(
            at=[self.at[n] for n in kept],
            op=[self.op[n] for n in kept],
            source_ts=[self.source_ts[n] for n in kept],
            read_ms=[self.read_ms[n] for n in kept],
            source=[self.source[n] for n in kept],
            rows=[self.rows[n] for n in kept],
        )


_MICROS, _MILLIS = 1_000_000, 1_000
_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NATURAL = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# From the year 1 and before the year 10000.
IN_MILLIS = (YEAR_1 * _MILLIS, YEAR_10000 * _MILLIS)
IN_MICROS = (YEAR_1 * _MICROS, YEAR_10000 * _MICROS)
IN_DAYS = (YEAR_1 // SECONDS_OF_DAY, YEAR_10000 // SECONDS_OF_DAY)
_IN_MILLIS = Annotated[int, msgspec.Meta(ge=IN_MILLIS[0], lt=IN_MILLIS[1])]
_IN_MICROS = Annotated[int, msgspec.Meta(ge=IN_MICROS[0], lt=IN_MICROS[1])]
_IN_DAYS = Annotated[int, msgspec.Meta(ge=IN_DAYS[0], lt=IN_DAYS[1])]
_TIMES = {
    "io.debezium.time.MicroTimestamp": Form.TIME,
    "io.debezium.time.Timestamp": Form.MILLIS,
    "org.apache.kafka.connect.data.Timestamp": Form.MILLIS,
}
_OF_UNIT = {"micros": Form.TIME, "millis": Form.MILLIS}
_TEXTS = ("", "json", "enum", "set")

_NOT_TAKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Block(msgspec.Struct, frozen=True, gc=False):
    """The source block: `Source`, field by field, of values that it may have."""

    name: str | None = None
    ts_ms: _IN_MILLIS | None = None
    ts_us: _IN_MICROS | None = None
    snapshot: SnapshotWord | None = None
    sequence: str | None = None
    lsn: _NATURAL | None = None
    file: str | None = None
    pos: _NATURAL | None = None
    row: _NATURAL | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None


_TS_MS, _TS_US, _FROM_DB = (Source._fields.index(name) for name in ("ts_ms", "ts_us", "db"))


def typed(feed: Feed, schema: MessageSchema | None = None) -> FastDecoder | None:
    """The reader of a feed's records whose messages have this schema; None where the definition must read each."""
    of_after = {} if schema is None else schema.nested.get("after", {})
    if not is_plain(feed) or any(KnownColumns(feed).drift(None, of_after, None)):
        return None
    reads = FastDecoder(feed, schema)
    return None if any(_is_json(column) for column in reads.columns if column.name in feed.keys) else reads


def is_plain(feed: Feed) -> bool:
    """Whether the feed's records may be as declared: changes of a table, one field a column, one column a field."""
    fields = [feed.fields_of(name) for name, column in feed.columns.items() if column.is_of_row]
    is_one_to_one = all(len(names) == 1 for names in fields) and len(set(fields)) == len(fields)
    says_more = any(column.metadata in OF_DEFINITION for column in feed.columns.values())
    # An op beside a source: both may be columns of a flattened row.
    says_more |= {"op", "source"} <= fields_of(feed).declared
    return feed.envelope == "table" and not feed.append_only and is_one_to_one and not says_more


class FastDecoder:
    """Reads the records of one feed, one schema, that are as declared."""

    def __init__(self, feed: Feed, schema: MessageSchema | None) -> None:
        """Make the structs of the contract."""
        of_after = {} if schema is None else schema.nested.get("after", {})
        self.columns = [column_of(name, declared, feed, of_after) for name, declared in feed.columns.items()]
        own = [column for column in self.columns if column.declared.is_of_row]
        keys = [column for column in own if column.name in feed.keys]
        types = {column.name: _type_of(column) for column in own}
        # Not under their own names: a column may have one that Python or msgspec uses.
        names = {column.name: f"c{number}" for number, column in enumerate(own)}
        fields = {names[column.name]: feed.fields_of(column.name)[0] for column in own}
        of_row = [(names[c.name], types[c.name] if c in keys else _or_null(types[c.name])) for c in own]
        of_key = [(names[c.name], types[c.name]) for c in keys]
        of_before = [(names[c.name], _or_null(types[c.name]), None) for c in keys]
        known = KnownColumns(feed)
        # Behind the columns of the key, and no part of it.
        of_router: list[Any] = [("router", Any, None)]
        fields["router"] = OF_ROUTER
        row, key, before = (
            msgspec.defstruct(name, parts, rename=fields, frozen=True, gc=False, forbid_unknown_fields=is_whole)
            for name, parts, is_whole in (
                # A field that is a change of the table is for the definition to show.
                ("Row", of_row, known.shows_new),
                ("Key", [*of_key, *of_router], known.shows_keys),
                ("Before", of_before, False),
            )
        )
        self._key_width = len(of_key)
        envelope = msgspec.defstruct(
            "Envelope",
            [
                ("op", str),
                ("source", _Block),
                ("after", row | None, None),
                ("before", before | None, None),
                ("ts_ms", _INT64 | None, None),
            ],
            frozen=True,
            gc=False,
        )
        self._envelope = msgspec.json.Decoder(envelope).decode
        self._key = msgspec.json.Decoder(key).decode
        self._fields = fields_of(feed)
        self._in_row = [own.index(column) for column in keys]
        self._key_at = [keys.index(column) if column in keys else None for column in self.columns]
        self._own_at = [self.columns.index(column) for column in own]
        self._has_all = len(own) == len(self.columns)
        self._placeholders = frozenset(placeholders(feed.unavailable_value_placeholder))
        large = large_columns(feed)
        self._large = [n for n, column in enumerate(own) if column.name in large and column.form is Form.AS_IS]
        self._known_tables: dict[tuple[str | None, ...], bool] = {}

    def read(self, keys: Sequence[bytes], values: Sequence[bytes]) -> FastRows:
        """The records that are as declared.

        Not shown is what structs do not see: a header that says more than the value, bytes that are not UTF-8, an op
        that is there twice.
        """
        found = FastRows()
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            self._take(found, at, key, value)
        return found

    def _take(self, found: FastRows, at: int, key: bytes, value: bytes) -> None:
        if _may_be_deep(value):
            return
        own = self.key(key)
        try:
            event: Any = self._envelope(value)
        except _NOT_TAKEN:
            return
        if own is None:
            return
        op, block = event.op, astuple(event.source)
        cells = self._of_delete(event, own) if op == "d" else self._of_row(event, own)
        if cells is None or not self._is_own_table(block[_FROM_DB:]):
            return
        ts_us, ts_ms = block[_TS_US], block[_TS_MS]
        found.at.append(at)
        found.op.append(op)
        found.source_ts.append(ts_us if ts_us is not None or ts_ms is None else ts_ms * 1000)
        found.read_ms.append(event.ts_ms)
        found.source.append(block)
        found.rows.append(cells)

    def key(self, key: bytes) -> tuple[Any, ...] | None:
        """The cells of a record's key; None of one that is not as declared."""
        if _may_be_deep(key):
            return None
        try:
            return astuple(self._key(key))[: self._key_width]
        except _NOT_TAKEN:
            return None

    def _of_row(self, event: Any, own: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The cells of a create or update whose rows have the key of the record; None of any other."""
        op, row = event.op, event.after
        if row is None or not (op in WHOLE_ROWS or (op == "u" and _may_be(event.before, own))):
            return None
        cells: tuple[Any, ...] = astuple(row)
        for number, one in zip(self._in_row, own, strict=True):
            if cells[number] != one:
                return None
        if op == "u":
            for number in self._large:
                if cells[number] in self._placeholders:
                    return None
        return cells if self._has_all else self._with_gaps(cells)

    def _of_delete(self, event: Any, own: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if event.after is not None or not _may_be(event.before, own):
            return None
        return tuple([None if number is None else own[number] for number in self._key_at])

    def _with_gaps(self, cells: tuple[Any, ...]) -> tuple[Any, ...]:
        """The cells, with None for each column that the topic's name states."""
        whole: list[Any] = [None] * len(self.columns)
        for number, cell in zip(self._own_at, cells, strict=True):
            whole[number] = cell
        return tuple(whole)

    def _is_own_table(self, names: tuple[str | None, ...]) -> bool:
        known = self._known_tables.get(names)
        if known is None:
            db, schema, table = names
            known = is_surely_own(Source(db=db, schema=schema, table=table), self._fields)
            if len(self._known_tables) < 1000:
                self._known_tables[names] = known
        return known

    def values(self, column: TypedColumn, cells: Sequence[Any]) -> list[Value]:
        """The cells of a column as the definition reads them; CONVERSION_ERROR where it must say more."""
        if column.form is not Form.CELL:
            return [column.value(cell) for cell in cells]
        is_large = column.name in large_columns(self._fields.feed)
        return [self._cell(column, cell, is_large=is_large) for cell in cells]

    def _cell(self, column: TypedColumn, cell: Any, *, is_large: bool) -> Value:
        if is_large and cell is not None and _text_of_json(cell) in self._placeholders:
            return CONVERSION_ERROR
        return column.value(cell)


def _may_be_deep(message: bytes) -> bool:
    """Whether the JSON may be nested more deeply than the definition reads."""
    # A level takes two bytes at least.
    return len(message) > 2 * MAX_LEVELS and message.count(b"{") + message.count(b"[") > MAX_LEVELS


def _may_be(before: Any, own: tuple[Any, ...]) -> bool:
    """Whether the row before has this key, as far as it says one."""
    if before is None:
        return True
    decoded = astuple(before)
    return decoded == own or all(one is None or one == other for one, other in zip(decoded, own, strict=True))


def _text_of_json(cell: msgspec.Raw) -> str | None:
    try:
        return text_of(parsed(bytes(cell).decode(), name=""))
    except (MalformedError, UnicodeDecodeError):
        return None


def column_of(name: str, declared: Column, feed: Feed, schemas: Mapping[str, FieldSchema]) -> TypedColumn:
    """A column of the contract, and how it is read where the fields have these schemas."""
    schema = schemas.get(feed.fields_of(name)[0])
    from_topic = None if declared.from_topic is None else re.compile(declared.from_topic)
    form = _form(declared, feed, schema) if declared.is_of_row else Form.AS_IS
    return TypedColumn(name, declared, form, reader(declared, feed), schema, from_topic)


def _form(declared: Column, feed: Feed, schema: FieldSchema | None) -> Form:
    held, source = declared.type, declared.source_name
    if isinstance(held, ArrayType):
        return Form.CELL
    if isinstance(held, DecimalType):
        is_number = source != "unsigned_bigint" and is_decimal(schema)
        return _decimal_form(declared, held, feed, schema) if is_number else Form.CELL
    if not is_known(schema, declared):
        return Form.CELL
    if held.name == "STRING":
        return Form.AS_IS if source in _TEXTS else Form.CELL
    if held.name in BITS or (held.name == "BOOLEAN" and not source):
        return Form.AS_IS
    if held.name == "DATE":
        return Form.DATE
    return _time_form(declared, feed, schema) if held.name == "TIMESTAMP" else Form.CELL


def _decimal_form(declared: Column, held: DecimalType, feed: Feed, schema: FieldSchema | None) -> Form:
    bytes_are_numbers, precise = feed.decimal_format == "numeric", carries_precise_decimals(feed)
    if is_base64("", schema, by_contract=precise, bytes_are_numbers=bytes_are_numbers):
        by_schema = None if schema is None or bytes_are_numbers else schema.scale
        scale = scale_of(declared, held) if by_schema is None else by_schema
        return Form.DECIMAL_BASE64 if scale == held.scale else Form.CELL
    return Form.DECIMAL_TEXT if feed.decimal_handling_mode == "string" else Form.DECIMAL_NUMBER


def _time_form(declared: Column, feed: Feed, schema: FieldSchema | None) -> Form:
    if feed.timestamp_format != "any":
        return Form.CELL
    if schema is not None and schema.name is not None:
        return _TIMES.get(schema.name, Form.CELL)
    unit = epoch_unit(declared, feed)
    return Form.CELL if unit is None else _OF_UNIT.get(unit, Form.CELL)


def _is_json(column: TypedColumn) -> bool:
    """Whether the column's cells are the JSON of a field."""
    return column.form in (Form.CELL, Form.DECIMAL_NUMBER)


def _or_null(of: Any) -> Any:
    """The type of a field that may be null; JSON may be `null` as it is."""
    return of if of is msgspec.Raw else of | None


def _type_of(column: TypedColumn) -> Any:
    """The type of the field in its struct; without null."""
    held = column.declared.type.ddl
    if column.form is Form.AS_IS:
        if held in BITS:
            limit = 1 << BITS[held]
            return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
        return bool if held == "BOOLEAN" else str
    of_form: dict[Form, Any] = {
        Form.DECIMAL_TEXT: str,
        Form.DECIMAL_BASE64: str,
        Form.DATE: _IN_DAYS | str,
        Form.TIME: _IN_MICROS | str,
        Form.MILLIS: _IN_MILLIS | str,
    }
    return of_form.get(column.form, msgspec.Raw)
