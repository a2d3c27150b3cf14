"""A schema as a schema registry has it. Imports nothing: decoders know it, and what asks the registry."""

from __future__ import annotations

from typing import NamedTuple

AVRO = "AVRO"
# The kind of one that the registry does not have.
ABSENT = "ABSENT"


class RegisteredSchema(NamedTuple):
    """Its kind, as the registry names it (AVRO, PROTOBUF, JSON), and its text."""

    kind: str
    text: str
