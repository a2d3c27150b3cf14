"""Values of a column as an Arrow array: one by one as the definition has them, or all at once in their usual form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.parts.column_types import ArrayType, DecimalType, Type
from silver.decode.fast.json_records import Form, TypedColumn
from silver.decode.reference.numbers import from_base64
from silver.decode.reference.values import Value

UTC = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.string())
_SIMPLE: Mapping[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "STRING": pa.string(),
    "TIMESTAMP": UTC,
}
_SEQUENCE_TEXT = r'^\[(?:"(?P<commit>[0-9]+)"|null),"(?P<lsn>[0-9]+)"\]$'
_ISO_TIME = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z$"
_ISO_DATE = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"


def type_of(held: Type) -> pa.DataType:
    """The Arrow type of a declared type."""
    if isinstance(held, ArrayType):
        return pa.list_(type_of(held.element))
    return pa.decimal128(held.precision, held.scale) if isinstance(held, DecimalType) else _SIMPLE[held.ddl]


def array_of(values: Sequence[Value], held: Type) -> pa.Array:
    """Values of Python, as `silver.decode.reference.values` has them, as an array of the declared type."""
    if isinstance(held, ArrayType):
        present = [value for value in values if value is not None]
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)]).astype(np.int32)
        offsets = pa.array(ends, mask=np.array([value is None for value in values] + [False]))
        return pa.ListArray.from_arrays(offsets, array_of([one for value in present for one in value], held.element))
    if held.ddl == "TIMESTAMP":
        return pa.array(values, pa.int64()).cast(UTC)
    return pa.array(values, pa.int32()).cast(pa.date32()) if held.ddl == "DATE" else pa.array(values, type_of(held))


def empty_lists(number: int) -> pa.Array:
    """So many empty lists of texts."""
    return pa.ListArray.from_arrays(pa.array(np.zeros(number + 1, np.int32)), pa.array([], pa.string()))


def sequences(texts: Sequence[str | None]) -> tuple[pa.Array, set[int]]:
    """PostgreSQL's sequences, and the rows whose text is not as the connector writes it."""
    given = pa.array(texts, pa.string())
    found = pc.extract_regex(given, _SEQUENCE_TEXT)
    errors = np.asarray(pc.and_(given.is_valid(), found.is_null()), dtype=bool)
    commit, lsn = found.field("commit"), found.field("lsn")
    commit = pc.if_else(pc.equal(commit, ""), pa.scalar(None, pa.string()), commit)
    number = len(given)
    order = np.arange(2 * number).reshape(2, number).T.ravel()[np.repeat(np.asarray(found.is_valid(), dtype=bool), 2)]
    ends = 2 * np.concatenate([[0], np.cumsum(np.asarray(found.is_valid(), dtype=np.int32))])
    mask = np.append(np.asarray(found.is_null(), dtype=bool), False)
    offsets = pa.array(ends.astype(np.int32), mask=mask)
    values = pa.concat_arrays([commit, lsn]).take(pa.array(order))
    return pa.ListArray.from_arrays(offsets, values), set(np.flatnonzero(errors).tolist())


def in_bulk(column: TypedColumn, cells: Sequence[Any]) -> pa.Array | None:
    """The cells of a column as an array; None where they must be read one by one."""
    held = column.declared.type
    if column.form is Form.AS_IS:
        return pa.array(cells, type_of(held))
    if column.form in (Form.TIME, Form.MILLIS, Form.DATE):
        return _times(cells, column.form)
    if not isinstance(held, DecimalType):
        return None
    if column.form is Form.DECIMAL_BASE64:
        return _unscaled(cells, held)
    if column.form is Form.DECIMAL_NUMBER:
        # Cells of deletes are None, and null is JSON like the numbers.
        texts = [None if cell is None else bytes(cell).decode() for cell in cells]
        cells = [None if text == "null" else text for text in texts]
    return _decimals(cells, held) if column.form in (Form.DECIMAL_TEXT, Form.DECIMAL_NUMBER) else None


def _times(cells: Sequence[Any], form: Form) -> pa.Array | None:
    first = next((cell for cell in cells if cell is not None), None)
    if isinstance(first, str):
        if not all(cell is None or isinstance(cell, str) for cell in cells):
            return None
        return _from_text(cells, _ISO_DATE, pa.date32()) if form is Form.DATE else _from_text(cells, _ISO_TIME, UTC)
    try:
        numbers = pa.array(cells, pa.int32() if form is Form.DATE else pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # numbers and texts
        return None
    if form is Form.DATE:
        return numbers.cast(pa.date32())
    return (pc.multiply(numbers, 1000) if form is Form.MILLIS else numbers).cast(UTC)


def _decimals(cells: Sequence[Any], held: DecimalType) -> pa.Array | None:
    fraction = rf"(\.[0-9]{{1,{held.scale}}})?" if held.scale else ""
    return _from_text(cells, rf"^-?[0-9]{{1,{max(held.precision - held.scale, 1)}}}{fraction}$", type_of(held))


def _from_text(cells: Sequence[Any], pattern: str, kind: pa.DataType) -> pa.Array | None:
    """The texts as values of a type, where all are of that pattern."""
    texts = pa.array(cells, pa.string())
    if not pc.all(pc.fill_null(pc.match_substring_regex(texts, pattern), fill_value=True)).as_py():
        return None
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # the 30th of February
        return None


def _unscaled(cells: Sequence[Any], held: DecimalType) -> pa.Array | None:
    """Connect's Decimal of the column's own scale."""
    limit, parts = 10**held.precision, []
    for cell in cells:
        number = 0
        if cell is not None:
            found = cell if isinstance(cell, bytes) else from_base64(cell)
            if not found:
                return None
            number = int.from_bytes(found, "big", signed=True)
        if not -limit < number < limit:
            return None
        parts.append(number.to_bytes(16, "little", signed=True))
    mask = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_of(held), len(cells), [mask, pa.py_buffer(b"".join(parts))])
