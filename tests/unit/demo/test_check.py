"""The demo's comparison: it names the keys that differ, and never a value."""

from __future__ import annotations

from demo.check import differences


def test_equal_tables_have_no_differences() -> None:
    assert differences({1: {"a": "x"}}, {1: {"a": "x"}}, of="silver.t", against="its source") == []


def test_a_changed_a_missing_and_a_ghost_key_are_named() -> None:
    actual = {1: {"a": "secret"}, 2: {"a": "y"}, 9: {"a": "z"}}
    expected = {1: {"a": "x"}, 2: {"a": "y"}, 3: {"a": "w"}}
    (sentence,) = differences(actual, expected, of="silver.t", against="its source")
    assert sentence == "silver.t differs from its source in 3 of 3 keys: 1, 3, 9."
    assert "secret" not in sentence


def test_many_keys_are_counted_and_a_few_named() -> None:
    expected = {key: {"a": "x"} for key in range(100)}
    (sentence,) = differences({}, expected, of="silver.t", against="its source")
    assert sentence == "silver.t differs from its source in 100 of 100 keys: 0, 1, 2, 3, 4 and 95 more."
