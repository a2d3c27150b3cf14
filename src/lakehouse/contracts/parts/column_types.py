"""The types that a contract's columns may have, as Spark SQL writes them, and what a column may be in its database.

Imports without pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from lakehouse.contracts.checks.mistakes import did_you_mean

SimpleName = Literal["BIGINT", "BINARY", "BOOLEAN", "DATE", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIMESTAMP"]
SIMPLE_NAMES: tuple[str, ...] = get_args(SimpleName)
WHOLE_NUMBERS = ("SMALLINT", "INT", "BIGINT")
_DECIMAL = r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)"
MAX_DIGITS = 38
# Digits that every decimal number of so many keeps on its way through a double.
DIGITS_OF_DOUBLE = 15


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


@dataclass(frozen=True)
class ArrayType:
    """An array of values of one type, which may be NULL."""

    element: DecimalType | SimpleType

    @property
    def ddl(self) -> str:
        """The type in Spark SQL."""
        return f"ARRAY<{self.element.ddl}>"


STRING = SimpleType("STRING")
Type = DecimalType | SimpleType | ArrayType


def parse_type(text: Any) -> Type:
    """The type that a contract means. Raises ValueError, with what it may say, for anything else."""
    if isinstance(text, Type):
        return text
    array = re.fullmatch(r"ARRAY<(.+)>", text) if isinstance(text, str) else None
    return ArrayType(_parse_element(array[1])) if array else _parse_element(text)


def _parse_element(text: Any) -> DecimalType | SimpleType:
    if isinstance(text, str) and text in SIMPLE_NAMES:
        return SimpleType(text)
    decimal = re.fullmatch(_DECIMAL, text) if isinstance(text, str) else None
    if isinstance(text, str) and re.fullmatch(r"DECIMAL\(\d+", text):
        raise ValueError(f'{text!r} is cut off at its comma: between {{ }} write "DECIMAL(10,2)", in quotes')
    if decimal is None:
        known = f"{', '.join(SIMPLE_NAMES)}, DECIMAL(precision,scale), and ARRAY<…> of these"
        raise ValueError(f"no type {text!r}{did_you_mean(str(text), SIMPLE_NAMES)} Types are: {known}")
    precision, scale = int(decimal[1]), int(decimal[2])
    if not 1 <= precision <= MAX_DIGITS or scale > precision:
        raise ValueError(
            f"{text} is not possible: a DECIMAL has 1 to {MAX_DIGITS} digits, and of them at most all after the point"
        )
    return DecimalType(precision, scale)


@dataclass(frozen=True)
class SourceType:
    """What a column is in its database, where the type alone does not say how to read it."""

    name: str
    sizes: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """As a contract writes it."""
        return f"{self.name}({','.join(map(str, self.sizes))})" if self.sizes else self.name


# Which types can hold the column without a change. Of what an array holds, where it is one.
HOLDERS: Mapping[str, tuple[str, ...]] = {
    "bit": ("STRING", "BOOLEAN"),
    "bytes": ("BINARY", "STRING"),
    "date": ("DATE", "STRING"),
    "enum": ("STRING",),
    "interval": ("STRING",),
    "json": ("STRING",),
    "map": ("STRING",),
    "numeric": ("DECIMAL", "STRING"),
    "set": ("STRING",),
    "time": ("STRING",),
    "timestamp": ("TIMESTAMP", "STRING"),
    "timestamptz": ("TIMESTAMP", "STRING"),
    "timetz": ("STRING",),
    "unsigned_bigint": ("DECIMAL", "STRING"),
    "uuid": ("STRING",),
    "varbit": ("STRING",),
    "year": ("SMALLINT", "INT", "BIGINT"),
}
_UNSIZED = "|".join(name for name in HOLDERS if name != "bit")
_SOURCE = rf"({_UNSIZED})|(?:(bit)\(([1-9]\d{{0,4}})\))|(?:(numeric)\(([1-9]\d{{0,2}}), ?(\d{{1,3}})\))"


def parse_source_type(text: Any) -> SourceType:
    """The database's type that a contract means. Raises ValueError, with what it may say, for anything else."""
    if isinstance(text, SourceType):
        return text
    match = re.fullmatch(_SOURCE, text) if isinstance(text, str) else None
    if match is None:
        known = ", ".join("bit(length)" if name == "bit" else name for name in HOLDERS)
        meant = did_you_mean(str(text), HOLDERS)
        raise ValueError(f"no source_type {text!r}{meant} There are: {known}, numeric(precision,scale)")
    name = match[1] or match[2] or match[4]
    sizes = tuple(int(size) for size in (match[3], match[5], match[6]) if size is not None)
    if name == "numeric" and sizes and sizes[1] > sizes[0]:
        raise ValueError(f"{text} is not possible: of its digits at most all stand after the point")
    return SourceType(name, sizes)


ColumnSource = Annotated[
    SourceType,
    PlainValidator(parse_source_type),
    PlainSerializer(lambda parsed: parsed.text),
    WithJsonSchema(
        {
            "title": "Source type",
            "description": "What the column is in its database.",
            "anyOf": [
                {"enum": [name for name in HOLDERS if name != "bit"]},
                {"type": "string", "pattern": f"^(?:{_SOURCE})$"},
            ],
        }
    ),
]


ColumnType = Annotated[
    Type,
    PlainValidator(parse_type),
    PlainSerializer(lambda parsed: parsed.ddl),
    WithJsonSchema(
        {
            "title": "Type",
            "description": "A Spark SQL type.",
            "anyOf": [
                {"enum": list(SIMPLE_NAMES)},
                {"type": "string", "pattern": f"^{_DECIMAL}$"},
                {"type": "string", "pattern": f"^ARRAY<({'|'.join(SIMPLE_NAMES)}|{_DECIMAL})>$"},
            ],
        }
    ),
]
