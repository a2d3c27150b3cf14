"""What names in contracts may be."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, StringConstraints


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


# Names become identifiers of tables and columns in Spark SQL: nothing else may be in them.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Pattern = Annotated[str, AfterValidator(_compiles)]
_TABLE = r"[^.\x00-\x1f]+\..+"
TableName = Annotated[str, StringConstraints(pattern=f"^{_TABLE}$")]


PLACEHOLDERS = ("database", "schema", "table", "topic")


def _is_route(route: str) -> str:
    parts = re.findall(r"\{([^}]*)\}", route.replace("<>", "{table}"))
    unknown = [part for part in parts if part not in PLACEHOLDERS]
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    if unknown:
        raise ValueError(f"{{{unknown[0]}}} is not known in a name of tables; there are {known} and <>")
    if not {"table", "topic"} & {*parts}:
        raise ValueError("all tables would have one name: it needs {table}, <> or {topic}")
    return route


Route = Annotated[str, AfterValidator(_is_route)]


def route_name(route: str, *, database: str, schema: str, table: str, topic: str) -> str:
    """The name that a route gives a table, as a `Name`; empty where nothing of it can be in one."""
    values = {"{database}": database, "{schema}": schema, "{table}": table, "{topic}": topic}
    parts = re.split(r"(\{\w+\})", route.replace("<>", "{table}"))
    return as_name("".join(values.get(part, part) for part in parts))


def is_table_name(text: str) -> bool:
    """Whether the text is a `TableName`."""
    return re.fullmatch(_TABLE, text) is not None


def as_name(text: str) -> str:
    """The text as a `Name`, empty when nothing of it is left: `TotalAmount` is total_amount."""
    latin = unicodedata.normalize("NFKD", text.replace("ß", "ss")).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", latin)
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return f"column_{name}" if name[:1].isdigit() else name


def column_name(field: str, *, number: int) -> str:
    """A field as the name of a column: its own where that is a `Name`. `number`: of the field, from 1."""
    return field if re.fullmatch(r"[a-z][a-z0-9_]*", field) else as_name(field) or f"column_{number}"


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it where it is taken."""
    again, found = 1, name
    while found in taken:
        again += 1
        found = f"{name}_{again}"
    return found
