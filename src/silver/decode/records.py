"""The records of a batch, looked at all at once: their headers, their bytes, and which may go the fast way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from silver.decode.avro import HEAD
from silver.decode.reference.decoder import RUN_ID
from silver.decode.reference.message import header_text

# Headers that say of an envelope what is not in it: of a changed key.
_OF_CHANGED_KEYS = ("__debezium.oldkey", "__debezium.newkey")
# Or one that is written with escapes.
_TWO_OPS = r'"op"[ \t\n\r]*:(?s:.*)"op"[ \t\n\r]*:|\\u00(6[fF]|70)'


class Headers:
    """The headers of a batch, looked through all at once: few say more than which run of the connector wrote them."""

    def __init__(self, headers: pa.Array) -> None:
        self._headers = headers
        flat = headers.flatten()
        self._names = flat.field("key")
        self._values = flat.field("value")
        self._parents = pc.list_parent_indices(headers)

    def run_ids(self, rows: Sequence[int]) -> pa.Array:
        """The connector's run of each of these records; empty where it does not say."""
        at = pc.indices_nonzero(pc.fill_null(pc.equal(self._names, RUN_ID), fill_value=False))
        # The first of that name counts: written last, it stays.
        parents, indices = np.asarray(self._parents)[np.asarray(at)][::-1], np.asarray(at)[::-1]
        first = np.full(len(self._headers), -1, dtype=np.int64)
        first[parents.astype(np.int64)] = indices
        first = first[np.asarray(rows, dtype=np.int64)]
        # A batch has few runs: each is read once.
        found = self._values.take(pa.array(first, mask=first < 0)).dictionary_encode()
        texts = [header_text(value) for value in found.dictionary.to_pylist()]
        return pc.fill_null(pa.array(texts, pa.string()).take(found.indices), "")

    def of_changed_keys(self) -> set[int]:
        """The records with a header that says what is not in the value."""
        named = pc.is_in(self._names, value_set=pa.array(_OF_CHANGED_KEYS))
        is_named = np.asarray(pc.fill_null(named, fill_value=False), dtype=bool)
        return set(np.asarray(self._parents)[is_named].tolist())

    def of(self, row: int) -> list[tuple[str, bytes | None]]:
        """The headers of one record."""
        names, values, ends = self._all
        return list(zip(names[ends[row] : ends[row + 1]], values[ends[row] : ends[row + 1]], strict=True))

    @cached_property
    def _all(self) -> tuple[list[str], list[bytes | None], list[int]]:
        """The names and values of all headers, and where those of each record begin and end."""
        sizes = pc.fill_null(pc.list_value_length(self._headers), 0)
        ends = np.concatenate([[0], np.cumsum(np.asarray(sizes))]).tolist()
        return self._names.to_pylist(), self._values.to_pylist(), ends


def is_fast_path(batch: pa.RecordBatch, headers: Headers, *, most: int) -> list[bool]:
    """Of each record whether `FastDecoder.read` may look at it. `most`: so many bytes it may have."""
    sizes = (pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value"))
    found = sum(np.asarray(size, dtype=np.int64) for size in sizes) <= most
    texts = {name: _without_avro(batch.column(name)) for name in ("key", "value")}
    for column in texts.values():
        found &= _is_text(column)
    has_two = pc.match_substring_regex(texts["value"], _TWO_OPS)
    found &= ~np.asarray(pc.fill_null(has_two, fill_value=False), dtype=bool)
    for row in headers.of_changed_keys():
        found[row] = False
    return [bool(one) for one in found]


def _without_avro(column: pa.Array) -> pa.Array:
    """The values, null in place of those in the Confluent wire format (`is_confluent`): they are no text."""
    begins = pc.equal(pc.binary_slice(column, 0, 1), b"\0")
    is_avro = pc.and_(begins, pc.greater(pc.binary_length(column), HEAD))
    return pc.if_else(is_avro, pa.scalar(None, column.type), column) if pc.any(is_avro).as_py() else column


def _is_text(column: pa.Array) -> Any:
    """Of each value whether its bytes are UTF-8."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(value) for value in column.to_pylist()], dtype=bool)
    return np.ones(len(column), dtype=bool)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def replaced(value: bytes | None) -> str | None:
    """The bytes as text, with the replacement character for what is none."""
    return None if value is None else value.decode(errors="replace")


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """The values of a binary column: cut out of one copy, several times as fast as one by one."""
    if column.offset or column.null_count == len(column):
        one_by_one: list[bytes | None] = column.to_pylist()
        return one_by_one
    _validity, ends, data = column.buffers()
    whole, at = data.to_pybytes() if data else b"", np.frombuffer(ends, np.int32, len(column) + 1).tolist()
    values: list[bytes | None] = [whole[at[n] : at[n + 1]] for n in range(len(column))]
    if column.null_count:
        for row in np.flatnonzero(np.asarray(column.is_null())):
            values[row] = None
    return values
