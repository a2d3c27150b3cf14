"""Records that were erased: what stands in their place, and what that states.

An erased record has its coordinates, no key and no value. What the order of the other records needs of it is in a
header, as JSON: the source block, which table it was of and when the connector read it. None of that is of the row.
"""

from __future__ import annotations

import json
from typing import Any

from lakehouse.erasure.names import ERASED_HEADER
from silver.decode.reference.message import MalformedError, Record, Statement, parsed, text_of, whole_number
from silver.decode.reference.table import source_of


def erased_header(statement: Statement) -> bytes:
    """The header that takes the place of a record which states this."""
    block = {} if statement.source is None else statement.source._asdict()
    found: dict[str, Any] = {
        "table": statement.table,
        "read_ms": statement.read_ms,
        "source": {name: value for name, value in block.items() if value is not None} or None,
    }
    present = {name: value for name, value in found.items() if value is not None}
    return json.dumps(present, separators=(",", ":")).encode()


def erased_statement(record: Record) -> Statement | None:
    """What a record states that was erased (kind `erased`); None of any other."""
    if record.key is not None or record.value is not None:
        return None
    text = record.header(ERASED_HEADER)
    if text is None:
        return None
    try:
        found = parsed(text, name="The header")
    except MalformedError:
        found = None
    if not isinstance(found, dict):
        return Statement("erased")
    block = found.get("source")
    return Statement(
        "erased",
        source=source_of(block if isinstance(block, dict) else None),
        table=text_of(found.get("table")),
        read_ms=whole_number(found.get("read_ms")),
    )
