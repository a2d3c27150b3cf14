"""Records of changes in the shapes of other tools: each has fields that a row may have too, and is no row.

A flattened row, or the payload of an outbox, is any object with one of the declared fields. So what has the marks of
one of these is recognized before, unless the contract declares all of them: then they are columns.

CloudEvents specification 1.0, "Required Attributes"; Maxwell's "Data format"; Canal's FlatMessage; Oracle GoldenGate,
"JSON Formatter"; the Iceberg sink's `_cdc`; AWS DMS, "JSON"; Qlik Replicate's message envelope; wal2json, format 2;
MongoDB, "Change Events".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from silver.decode.reference.message import Object, text_of

OTHER_SHAPE = "The value has the shape of {}, which is not read: let the connector send Debezium's own envelope."

_CHANGES = ("insert", "update", "delete")
_OPERATIONS = ("I", "U", "D", "T")


class _Shape(NamedTuple):
    """A shape: its name, the fields that all of its records have, and what else is true of them."""

    name: str
    marks: frozenset[str]
    fits: Callable[[Object], bool] = lambda _body: True


def _is_of_flink(body: Object, rows: type) -> bool:
    """Whether it is as Flink writes these: an operation, and the row in an object or a list, without a table."""
    is_alone = body.keys() <= {"data", "old", "type"}
    return is_alone and isinstance(body["data"], rows) and (text_of(body["type"]) or "").lower() in _CHANGES


def _has(name: str, field: str) -> Callable[[Object], bool]:
    return lambda body: isinstance(body[name], dict) and field in body[name]


def _has_operation(name: str, *others: str) -> Callable[[Object], bool]:
    """The word of an operation in one field, and one of these others."""
    return lambda body: text_of(body[name]) in _OPERATIONS and any(other in body for other in others)


_ICEBERG = "the Iceberg sink's transforms (_cdc.op)"
_SHAPES = (
    _Shape("CloudEvents", frozenset({"specversion", "source", "type"})),
    _Shape("Canal", frozenset({"isDdl", "type"})),
    _Shape("Canal", frozenset({"data", "type"}), lambda body: _is_of_flink(body, list)),
    _Shape("Maxwell", frozenset({"data", "type"}), lambda body: _is_of_flink(body, dict)),
    _Shape("Canal", frozenset({"database", "table", "type", "data"}), lambda body: isinstance(body["data"], list)),
    *(_Shape("Maxwell", frozenset({"database", "table", "type", name})) for name in ("data", "def")),
    _Shape("OGG", frozenset({"op_type"}), _has_operation("op_type", "before", "after", "op_ts", "current_ts")),
    _Shape(_ICEBERG, frozenset({"_cdc"}), _has("_cdc", "op")),
    *(_Shape(_ICEBERG, frozenset({name})) for name in ("_cdc.op", "_cdc_op")),
    _Shape("AWS DMS", frozenset({"data", "metadata"}), _has("metadata", "record-type")),
    _Shape("Qlik Replicate", frozenset({"data", "headers"}), _has("headers", "changeSequence")),
    _Shape("wal2json", frozenset({"action", "schema", "table"}), _has_operation("action", "columns", "identity")),
    _Shape("MongoDB's change events", frozenset({"operationType", "documentKey"})),
)


def other_shape(body: Object, declared: Collection[str]) -> str | None:
    """The sentence about an object that is a record of another tool; None of any other. `declared`: the fields of the
    contract's columns.
    """
    for shape in _SHAPES:
        if shape.marks <= body.keys() and not shape.marks <= set(declared) and shape.fits(body):
            return OTHER_SHAPE.format(shape.name)
    return None
