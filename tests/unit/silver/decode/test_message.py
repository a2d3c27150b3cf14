"""Messages as JSON: what is, what is not, and what stands around it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silver.decode.reference.message import (
    MAX_LEVELS,
    Key,
    MalformedError,
    Number,
    compact,
    has_twice,
    parsed,
    whole_number,
)
from silver.decode.reference.message import text_of as text_of_field
from silver.decode.reference.wrapper import Unwrapping, read_key

PIECES = [
    *'{}[],:"0159.-+eE\\ \n',
    *('"a":', '"b"', "1.5", "-0.10", "2e3", "1E-7", "null", "true", "NaN", "'", '\\"', "\\u0041", "//"),
]
NO_JSON_OR_MORE = [
    "{}{}",
    "{},{}",
    "{}]",
    "{}}",
    '{},"json":{}',
    '{}],"json":[{}',
    "{} x",
    " {}\n",
    "\ufeff{}",
    "1 2",
    "1.5 2",
]


def strict_json(text: str) -> Any:
    """What Python makes of the text, every number as it is written; raises ValueError when it is not JSON."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=refuse)


def text_of(value: str | bool | None) -> str | None:
    """A JSON value that is no number as a text column has it."""
    return json.dumps(value) if isinstance(value, bool) else value


def check_json(text: str) -> None:
    try:
        value = strict_json(text)
    except ValueError:
        with pytest.raises(MalformedError):
            parsed(text, name="It")
        return
    found = parsed(text, name="It")
    assert strict_json(compact(found)) == value
    if isinstance(value, Decimal):
        assert (type(found), found) == (Number, text.strip(" \t\r\n"))
    elif not isinstance(value, dict | list):
        assert text_of_field(found) == text_of(value)


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@settings(max_examples=1000, deadline=None)
def test_what_is_json_and_what_is_not(text: str) -> None:
    check_json(text)
    check_json(f'{{"a":{text}}}')
    check_json(f'{{"a":[{text}],"b":1.5}}')


@pytest.mark.parametrize("text", NO_JSON_OR_MORE)
def test_more_than_one_value_is_no_json(text: str) -> None:
    check_json(text)


SOUND = [
    '"\\ud83d\\ude80"',
    '"\\uD83D\\uDE80 \\\\ud83d"',
    '"\\\\ud83d"',
    '"\\u00e9"',
    '"ud83d"',
    '"🚀"',
    '"\\\\\\ud83d\\ude80"',
    # A noncharacter is a character like any other: no parser of Spark's needs it as a mark any more.
    *('"\ufdd0"', '"\\ufdd0"', '"a\\uFDD01.5"'),
]
HALVES = [
    *('"\\ud83d"', '"\\ude80"', '"\\ud83d\\ud83d\\ude80"', '"\\ude80\\ud83d"', '"\\ud83d \\ude80"', '"\\uD83Dx"'),
    *('"\\\\\\ud83d"', '"\\ud83d\\\\ude80"', '"\\ud83d🚀"', '{"\\ud83d":1}', '[{"a":["\\udc00"]}]'),
]


@pytest.mark.parametrize("text", SOUND)
def test_a_surrogate_pair_is_text(text: str) -> None:
    assert parsed(text, name="It") == json.loads(text)


@pytest.mark.parametrize("text", HALVES)
def test_half_a_surrogate_pair_is_a_flaw(text: str) -> None:
    with pytest.raises(MalformedError, match=r"^It has one half of a surrogate pair, which is no text\.$"):
        parsed(text, name="It")


@given(st.lists(st.sampled_from(["\\ud83d", "\\ude80", "\\uD83D", "\\uDE80", "\\\\", "ud83d", "a", "\\n"]), max_size=7))
@settings(max_examples=500, deadline=None)
def test_text_is_refused_just_where_half_a_pair_is_in_it(parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    try:
        json.loads(text).encode()
    except UnicodeEncodeError:
        with pytest.raises(MalformedError, match="half of a surrogate pair"):
            parsed(text, name="It")
        return
    assert parsed(text, name="It") == json.loads(text)


def test_nesting_ends_somewhere() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = "" if opening == "[" else "1"
        deep = opening * MAX_LEVELS + inner + closing * MAX_LEVELS
        assert strict_json(compact(parsed(deep, name="It"))) == strict_json(deep)
        with pytest.raises(MalformedError, match="It is nested more than 500 levels deep"):
            parsed(f"[{deep}]", name="It")
        with pytest.raises(MalformedError, match="It is nested more than 500 levels deep"):
            parsed(f"[{'[],' * 10}{deep}]", name="It")
        # As deep, with more brackets beside.
        beside = f"[[],{opening * (MAX_LEVELS - 1)}{inner}{closing * (MAX_LEVELS - 1)}]"
        assert strict_json(compact(parsed(beside, name="It"))) == strict_json(beside)
        many = json.dumps({"text": "[{" * MAX_LEVELS, "flat": [[]] * MAX_LEVELS * 2})
        assert parsed(many, name="It") == json.loads(many)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, Key()),
        (b"", Key()),
        (b'{"id":1.10}', Key(fields={"id": "1.10"})),
        (b'"1"', Key(value="1")),
        (b"1", Key(value="1")),
        (b"null", Key()),
        (b"abc", Key(value="abc")),
        (b" 1", Key(value=" 1")),
        (b' "1"', Key(value="1")),
        (b'{"schema":{"type":"int64"},"payload":7}', Key(value="7")),
        (b'{"schema":{"type":"struct","fields":[]},"payload":{"id":7}}', Key(fields={"id": "7"})),
    ],
)
def test_a_key_is_an_object_or_the_text_of_a_value(key: bytes | None, expected: Key) -> None:
    assert read_key(key, Unwrapping()) == expected


@pytest.mark.parametrize("key", [b"\xff", b'{"id":1', b"[1", b'"1'])
def test_a_key_that_is_neither_cannot_be_read(key: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^The key "):
        read_key(key, Unwrapping())


def test_schemas_are_known_again_and_only_their_own_payload_is_read() -> None:
    unwrapped = Unwrapping()
    schema = '{"type":"struct","fields":[{"field":"after","type":"struct","fields":[{"field":"a","type":"int32"}]}]}'
    first, second = (unwrapped(f'{{"schema":{schema},"payload":{{"n":{n}}}}}', name="It") for n in (1, 2))
    assert (len(unwrapped.known), first.payload, second.payload) == (1, {"n": "1"}, {"n": "2"})
    assert first.schema is second.schema
    assert first.schema is not None
    assert first.schema.nested["after"]["a"].type == "int32"
    # With more behind the payload it is another message.
    more = unwrapped(f'{{"schema":{schema},"payload":1,"x":2}}', name="It")
    assert (more.schema, more.payload["x"]) == (None, "2")
    for text in (
        f'{{"schema":{schema},"payload":1}} x',
        f'{{"schema":{schema},"payload":1,}}',
        f'{{"schema":{schema},"payload":}}',
    ):
        with pytest.raises(MalformedError):
            unwrapped(text, name="It")
    turned = unwrapped(f'{{"payload":1, "schema":{schema}}}', name="It")
    assert (turned.payload, turned.schema) == ("1", first.schema)


def test_a_wrapper_may_have_spaces() -> None:
    text = json.dumps({"schema": {"type": "string"}, "payload": "a"}, indent=1)
    for spaced in (text, text.replace('\n "schema"', '"schema"'), '{"schema": {"type":"string"}, "payload": "a"}'):
        found = Unwrapping()(spaced, name="It")
        assert found.payload == "a"
        assert found.schema is not None
        assert found.schema.type == "string"


def test_of_a_schema_that_is_there_twice_the_last_one_counts_there_alone() -> None:
    unwrapped = Unwrapping()
    twice = unwrapped('{"schema":{"type":"int32"},"payload":1,"schema":{"type":"int64"}}', name="It")
    once = unwrapped('{"schema":{"type":"int32"},"payload":1}', name="It")
    assert [found.schema and found.schema.type for found in (twice, once)] == ["int64", "int32"]


def test_a_name_with_escapes_is_the_same_name() -> None:
    for text in ('{"op":1,"\\u006fp":2}', '{"\\u006Fp":1,"o\\u0070":2}', '[{"op":[{"o\\u0070":1,"op":2}]}]'):
        assert has_twice(text, "op")
    assert not has_twice('{"op":1,"\\u006fq":2,"x":{"o\\u0070":1}}', "op")


@pytest.mark.parametrize("number", ["7" * 5000, f"-{'7' * 5000}.5e5000"], ids=["whole", "with an exponent"])
def test_a_number_of_any_length_is_passed_over(number: str) -> None:
    assert has_twice(f'{{"op":1,"op":{number}}}', "op")
    assert not has_twice(f'{{"op":1,"after":{{"op":{number}}}}}', "op")


def test_a_name_that_is_there_once_is_not_there_twice() -> None:
    assert has_twice('{"op":1}', "op") is has_twice('{"a":"op","op":1}', "op") is False


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, -(2**63)])
def test_a_whole_number_has_64_bits(number: int) -> None:
    assert whole_number(Number(number)) == number


@pytest.mark.parametrize(
    "value", [*(Number(one) for one in (2**63, -(2**63) - 1, 10**30, "1.0", "1e3")), "1", None, True, [], {}]
)
def test_anything_else_is_no_whole_number(value: Any) -> None:
    assert whole_number(value) is None
