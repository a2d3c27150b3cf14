"""Schemas as a schema registry has them. Imports nothing: decoders know it, and what asks the registry."""

from __future__ import annotations

from typing import NamedTuple

AVRO = "AVRO"
# The kind of one that the registry does not have.
ABSENT = "ABSENT"


class RegisteredSchema(NamedTuple):
    """Its kind, as the registry names it (AVRO, PROTOBUF, JSON), and its text."""

    kind: str
    text: str


class SchemaIds(NamedTuple):
    """The ids that the schemas of a topic's keys and values have in the registry; 0 of one that it does not have."""

    key: int
    value: int


NO_IDS = SchemaIds(0, 0)
