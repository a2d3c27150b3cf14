"""The types that a contract's columns may have, as Spark SQL writes them. Imports without pyspark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

SimpleName = Literal["BIGINT", "BOOLEAN", "DATE", "DOUBLE", "STRING", "TIMESTAMP"]
SIMPLE_NAMES: tuple[str, ...] = get_args(SimpleName)
_DECIMAL = r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)"
MOST_DIGITS = 38


@dataclass(frozen=True)
class DecimalType:
    """A fixed-point number, of at most 38 digits as in Spark."""

    precision: int
    scale: int

    @property
    def ddl(self) -> str:
        """The type in Spark SQL."""
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True)
class SimpleType:
    """A type without parameters."""

    name: str

    @property
    def ddl(self) -> str:
        """The type in Spark SQL."""
        return self.name


STRING = SimpleType("STRING")


def parse_type(text: Any) -> DecimalType | SimpleType:
    """The type that a contract means. Raises ValueError, with what it may say, for anything else."""
    if isinstance(text, DecimalType | SimpleType):
        return text
    if isinstance(text, str) and text in SIMPLE_NAMES:
        return SimpleType(text)
    decimal = re.fullmatch(_DECIMAL, text) if isinstance(text, str) else None
    if isinstance(text, str) and re.fullmatch(r"DECIMAL\(\d+", text):
        raise ValueError(f'{text!r} is cut off at its comma: between {{ }} write "DECIMAL(10,2)", in quotes')
    if decimal is None:
        close = get_close_matches(str(text).upper(), SIMPLE_NAMES, n=1)
        hint = f" did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"no type {text!r};{hint} Types are: {', '.join(SIMPLE_NAMES)}, DECIMAL(precision,scale)")
    precision, scale = int(decimal[1]), int(decimal[2])
    if not 1 <= precision <= MOST_DIGITS or scale > precision:
        raise ValueError(
            f"{text} is not possible: a DECIMAL has 1 to {MOST_DIGITS} digits, and of them at most all after the point"
        )
    return DecimalType(precision, scale)


ColumnType = Annotated[
    DecimalType | SimpleType,
    PlainValidator(parse_type),
    PlainSerializer(lambda parsed: parsed.ddl),
    WithJsonSchema(
        {
            "title": "Type",
            "description": "A Spark SQL type.",
            "anyOf": [{"enum": list(SIMPLE_NAMES)}, {"type": "string", "pattern": f"^{_DECIMAL}$"}],
        }
    ),
]
