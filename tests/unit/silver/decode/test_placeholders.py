"""What stands for a large value that a change left out, in every shape that Debezium gives it."""

from __future__ import annotations

import pytest

from silver.decode.reference.decoder import placeholders

NAME = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    "shape",
    [
        NAME,
        "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565",
        f'["{NAME}"]',
        '["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]',
        "[95,95,100,101,98,101,122,105,117,109,95,117,110,97,118,97,105,108,97,98,108,101,95,118,97,108,117,101]",
        f'{{"{NAME}":"{NAME}"}}',
        # What Java's UUID.nameUUIDFromBytes makes of the placeholder.
        '["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]',
    ],
)
def test_a_placeholder_is_known_in_every_shape(shape: str) -> None:
    assert shape in placeholders(NAME)


def test_a_configured_one_takes_its_place() -> None:
    assert placeholders("gone")[0] == "gone"
    assert NAME not in placeholders("gone")


def test_one_in_hex_is_bytes() -> None:
    assert placeholders("hex:00ff")[1] == "AP8="
    assert "[0,-1]" in placeholders("hex:00ff")
