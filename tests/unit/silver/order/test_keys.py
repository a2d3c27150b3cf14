"""Which keys are folded together."""

from __future__ import annotations

from silver.order.keys import groups


def test_keys_that_were_changed_into_one_another_are_one_group() -> None:
    changed = [(("", "a"), ("", "b")), (("", "d"), ("", "c")), (("", "b"), ("", "c")), (("", "x"), ("", "y"))]
    found = groups(changed)
    assert {found["", key] for key in "abcd"} == {"a"}
    assert {found["", key] for key in "xy"} == {"x"}


def test_a_key_that_was_changed_back_is_of_its_own_group() -> None:
    assert groups([(("", "a"), ("", "b")), (("", "b"), ("", "a"))]) == {("", "a"): "a", ("", "b"): "a"}


def test_the_same_key_of_another_shard_is_another_one() -> None:
    found = groups([(("one", "a"), ("one", "b")), (("two", "b"), ("two", "c"))])
    assert found == {("one", "a"): "a", ("one", "b"): "a", ("two", "b"): "b", ("two", "c"): "b"}


def test_without_a_change_there_are_none() -> None:
    assert groups([]) == {}
