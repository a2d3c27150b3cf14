"""What a column makes of the JSON of one field, as tests say it."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lakehouse.contracts.models import Feed
from lakehouse.contracts.tables import Column
from silver.decode.reference.decoder import conversion_error
from silver.decode.reference.message import FieldSchema, parsed
from silver.decode.reference.values import CONVERSION_ERROR, reader


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail where the block takes more of the processor's time."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < seconds


def conversion(fragment: str, column: Column, feed: Feed, schema: FieldSchema | None = None) -> tuple[Any, str | None]:
    """The value of the field, and the sentence where it does not fit."""
    field = parsed(f'{{"v":{fragment}}}', name="It")["v"]
    value = reader(column, feed)(field, schema)
    if value is not CONVERSION_ERROR:
        return value, None
    return None, conversion_error(field, column, feed, name="c", schema=schema)


def read_value(fragment: str, column: Column, feed: Feed, schema: FieldSchema | None = None) -> Any:
    """The value, None where it does not fit; dates as dates."""
    value, _sentence = conversion(fragment, column, feed, schema)
    is_date = column.type.ddl == "DATE" and value is not None
    return date.fromordinal(date(1970, 1, 1).toordinal() + value) if is_date else value


def came_to(fragment: str, column: Column, feed: Feed, schema: FieldSchema | None) -> str | None:
    """The value as Spark casts it to text, or `!` and the sentence."""
    value, sentence = conversion(fragment, column, feed, schema)
    return text_in_spark(value, column.type.ddl) if sentence is None else f"!{sentence}"


def text_in_spark(value: Any, ddl: str) -> str | None:
    """A value as Spark writes it; bytes in hex, arrays as JSON."""
    if value is None:
        return None
    if ddl.startswith("ARRAY<"):
        return f"[{','.join(_in_json(one, ddl[6:-1]) for one in value)}]"
    if ddl == "TIMESTAMP":
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        text = moment.replace(tzinfo=None).isoformat(sep=" ")
        return text.rstrip("0") if "." in text else text
    if ddl == "DATE":
        return date.fromordinal(date(1970, 1, 1).toordinal() + value).isoformat()
    if ddl == "BINARY":
        return str(value.hex().upper())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value, ddl)
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _float(value: float, ddl: str) -> str:
    """As Java writes it: the shortest digits, two at least, with an exponent for the large and the small."""
    if not math.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    shortest = (
        next(text for n in range(2, 10) if _single(float(text := f"{value:.{n}g}")) == value)
        if ddl == "FLOAT"
        else repr(value)
    )
    number = Decimal(shortest)
    if not value or 1e-3 <= abs(value) < 1e7:
        return repr(float(shortest))
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0") or "0"
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"


def _single(number: float) -> float:
    """The float of 32 bits nearest to a number."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _in_json(value: Any, ddl: str) -> str:
    if value is None:
        return "null"
    text = text_in_spark(value, ddl)
    is_number = isinstance(value, float | Decimal) or ddl in ("BOOLEAN", "SMALLINT", "INT", "BIGINT")
    return str(text) if is_number else json.dumps(text, ensure_ascii=False)
