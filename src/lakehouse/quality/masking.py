"""What may be shown of a record: its fields, but the values of columns that the contract marks as sensitive."""

from __future__ import annotations

import json
from collections.abc import Collection

from lakehouse.contracts.models import Feed
from lakehouse.secrets import MASK


def sensitive_fields(feed: Feed) -> frozenset[str]:
    """The fields of events that hold sensitive columns, and the columns' own names."""
    return frozenset(name for column in feed.sensitive_columns for name in (column, *feed.fields_of(column)))


def has_sensitive_key(feed: Feed) -> bool:
    """Whether a column of the key is sensitive."""
    return not feed.sensitive_columns.isdisjoint(feed.keys)


def shown_value(value: bytes | None, feed: Feed) -> str:
    """The value of a record for a person: JSON, its sensitive fields masked, whatever JSON text it holds in turn.

    What is no JSON object is not shown of a table that has sensitive columns.
    """
    if value is None:
        return "(none)"
    hidden = sensitive_fields(feed)
    try:
        text = bytes(value).decode()
        parsed = json.loads(text)
    except ValueError:
        text, parsed = bytes(value).decode(errors="backslashreplace"), None
    if hidden and not isinstance(_opened(parsed), dict):
        return f"({len(value):,} bytes that are no JSON object, not shown: the table has sensitive columns)"
    if parsed is None:
        return text
    return json.dumps(_masked(parsed, hidden), indent=2, ensure_ascii=False)


def shown_key(key: bytes | None, feed: Feed) -> str:
    """The key of a record for a person."""
    if key is None:
        return "(none)"
    return MASK if has_sensitive_key(feed) else bytes(key).decode(errors="backslashreplace")


def _opened(parsed: object) -> object:
    """What JSON text in JSON says."""
    if not isinstance(parsed, str):
        return parsed
    try:
        return json.loads(parsed)
    except ValueError:
        return parsed


def _masked(parsed: object, hidden: Collection[str]) -> object:
    if isinstance(parsed, dict):
        return {name: MASK if name in hidden else _masked(value, hidden) for name, value in parsed.items()}
    if isinstance(parsed, list):
        return [_masked(value, hidden) for value in parsed]
    if isinstance(parsed, str) and isinstance(inner := _opened(parsed), dict | list):
        return _masked(inner, hidden)
    return parsed
