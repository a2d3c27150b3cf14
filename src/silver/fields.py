"""JSON texts, and fields of them as text: every value exactly as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

# JSON as RFC 8259 has it: by default Spark also takes 'text' and NaN.
STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "columnNameOfCorruptRecord": "malformed"}

# Stands before a number that must be kept as it is written. A noncharacter: Unicode leaves those to programs.
MARK = "\ufdd0"
_SPACE = r"[ \t\n\r]*+"
_STRING = r'"(?:[^"\\]++|\\.)*+"'
# A JSON number with a fraction or an exponent, as a value: never the name of a field.
_FRACTION = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?+|[eE][+-]?[0-9]++)" rf"(?={_SPACE}(?:[,}}\]]|\z))"
# The end of one: quick to look for, found wherever there is one, and seldom elsewhere (inside a string).
_SOME_FRACTION = rf"[.eE][-+]?[0-9]++(?:[eE][-+]?[0-9]++)?+{_SPACE}(?:[,}}\]]|\z)"
# From the end of the last match to the next such number. Possessive throughout: no backtracking, no deep recursion.
_NEXT_FRACTION = rf'\G((?:[^"0-9-]++|{_STRING}|(?!{_FRACTION})[0-9-][0-9A-Za-z.+-]*+)*+)({_FRACTION})'
_MARKED = rf'^{MARK}|"{MARK}([^"]*+)"'

_HEX = "[0-9a-fA-F]"
# Text in which every escaped half of a surrogate pair has its other half.
_PAIRED = (
    rf"^(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F]){_HEX}{{4}}"
    rf"|\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})*+\z"
)

# Sign, whole part, fraction, exponent.
NUMBER = rf"^{MARK}?(-?)([0-9]++)(?:\.([0-9]++))?+(?:[eE]([+-]?[0-9]{{1,9}}+))?+\z"


def parsed(text: Column, json_type: str) -> Column:
    """STRUCT<json: `json_type`, malformed: STRING>: the one JSON value that `text` is.

    `malformed` is NULL exactly when `text` is one JSON value of that type (RFC 8259) with nothing but white space
    around it, and has no `flaw`. Types of fields are STRING, BIGINT (a whole number), or structs and maps of them.
    STRING takes everything: objects and arrays as JSON without spaces, scalars as they are written; numbers with a
    fraction or an exponent stand behind a mark that `typed` and `unmarked` take away.
    """
    # In Spark 4.1 from_json reads a number into STRING by way of a double, and into DECIMAL rounds it; text it keeps.
    exact = F.when(text.rlike(_SOME_FRACTION), F.regexp_replace(text, _NEXT_FRACTION, f'$1"{MARK}$2"')).otherwise(text)
    # It stops where the first value ends. Text that goes on cannot end both an array and an object in its own middle.
    is_one = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    wrapped = F.concat(F.lit('{"json":'), exact, F.lit("}"))
    readable = F.when(is_one & flaw(text, name="").isNull(), wrapped).otherwise(F.lit("not JSON"))
    return F.from_json(readable, f"json {json_type}, malformed STRING", STRICT)


def flaw(text: Column, *, name: str) -> Column:
    """A sentence about `name`, when `text` is JSON with a string that cannot be kept as it is; else NULL."""
    has_escapes = text.contains("\\u")
    halved = has_escapes & text.rlike(r"\\u[dD][89a-fA-F]") & ~text.rlike(_PAIRED)
    marked = text.contains(MARK) | (has_escapes & text.rlike(r"(?i)\\ufdd0"))
    return F.when(halved, f"{name} has one half of a surrogate pair, which is no text.").when(
        marked, f"{name} has the noncharacter U+FDD0, which cannot be kept."
    )


def unmarked(field: Column) -> Column:
    """A field that was read as STRING, with its numbers as they are written."""
    return F.when(field.contains(MARK), F.regexp_replace(field, _MARKED, "$1")).otherwise(field)


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """`body` of the value, which stands in the plan once however often the body names it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))
