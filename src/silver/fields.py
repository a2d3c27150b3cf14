"""JSON texts, and fields of them as text: every value exactly as it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
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


# A condition, and what is said where it holds.
Found = tuple["Column", "Column"]
TEXTS = "array<string>"


def parsed(text: Column, json_type: str) -> Column:
    """STRUCT<json: `json_type`, malformed: STRING>: the one JSON value that `text` is; see `read_json`."""
    return read_json(readable(text), json_type)


def read_json(of_readable: Column, json_type: str) -> Column:
    """STRUCT<json: `json_type`, malformed: STRING>: the one JSON value that a text is, of which this is the `readable`.

    `malformed` is NULL exactly when the text is one JSON value of that type (RFC 8259) with nothing but white space
    around it, and has no `flaw`. Types of fields are STRING, BIGINT (a whole number), or structs and maps of them.
    STRING takes everything: objects and arrays as JSON without spaces, scalars as they are written; numbers with a
    fraction or an exponent stand behind a mark that `typed` and `unmarked` take away.
    """
    return F.from_json(of_readable, f"json {json_type}, malformed STRING", STRICT)


def readable(text: Column) -> Column:
    """What `read_json` reads in place of `text`. For many records a column of its own, a step before it is read.

    Spark interprets from_json and whatever stands inside it; it generates code for what stands before.
    """
    # In Spark 4.1 from_json reads a number into STRING by way of a double, and into DECIMAL rounds it; text it keeps.
    exact = F.when(text.rlike(_SOME_FRACTION), F.regexp_replace(text, _NEXT_FRACTION, f'$1"{MARK}$2"')).otherwise(text)
    # It stops where the first value ends. Text that goes on cannot end both an array and an object in its own middle.
    is_one = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    return F.when(is_one & flaw(text, name="").isNull(), enclosed(exact)).otherwise(F.lit("not JSON"))


def enclosed(marked: Column) -> Column:
    """The same for JSON that was read into a STRING by `read_json`: its numbers are marked already."""
    return F.concat(F.lit('{"json":'), marked, F.lit("}"))


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


def present(found: Sequence[Found]) -> Column:
    """ARRAY<STRING>: the texts whose condition holds, in order.

    Spark interprets what takes NULLs out of an array, and all that stands in it; so only where some condition holds.
    """
    if not found:
        return F.array().cast(TEXTS)
    some = reduce(or_, [condition for condition, _text in found])
    texts = F.array_compact(F.array(*[F.when(condition, text) for condition, text in found]))
    return F.when(some, texts).otherwise(F.array()).cast(TEXTS)


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """`body` of the value, which stands in the plan once however often the body names it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))
