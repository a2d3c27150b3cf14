"""What Debezium writes for a large value that a change did not touch, in the shape of every type. Without pyspark.

Debezium documentation, PostgreSQL connector, "Toasted values" and `unavailable.value.placeholder`.
"""

from __future__ import annotations

import base64
import json
from hashlib import md5
from uuid import UUID

_IN_HEX = "hex:"


def placeholders(configured: str) -> tuple[str, ...]:
    """The texts of a field that stand for the placeholder `configured`: JSON without spaces, scalars as they are.

    Text and JSON have it as it is, bytes in base64 or hex, arrays a single element of their type or one number a byte,
    hstore a map of it to itself, arrays of UUIDs the UUID that is made of its bytes.
    """
    raw = bytes.fromhex(configured.removeprefix(_IN_HEX)) if configured.startswith(_IN_HEX) else configured.encode()
    text = raw.decode("utf-8", errors="replace")
    in_bytes = (
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
    )
    arrays = (
        *([one] for one in (text, *in_bytes, _name_uuid(raw))),
        [byte - 256 if byte > 127 else byte for byte in raw],  # Java's bytes have a sign
    )
    shapes = (text, *in_bytes, *map(_json, arrays), _json({text: text}))
    return tuple(dict.fromkeys(shapes))


def _name_uuid(raw: bytes) -> str:
    """The UUID of a name, version 3 without a namespace: Java's UUID.nameUUIDFromBytes."""
    return str(UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
