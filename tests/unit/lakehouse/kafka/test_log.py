"""A record of a topic as it is read: whoever wrote it, it can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Message

from lakehouse.kafka.log import Record, _record


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        (None, {}),
        ([], {}),
        ([("change_sequence", b"1/2"), ("none", None)], {"change_sequence": "1/2", "none": ""}),
        ([("trace", b"\xff\xfe\x00"), ("change_sequence", b"1/2")], {"trace": "��\0", "change_sequence": "1/2"}),
    ],
)
def test_headers_are_text_whatever_bytes_they_are(given: Any, headers: Mapping[str, str]) -> None:
    message = Message(topic="orders", partition=1, offset=7, key=b"k", value=b"v", headers=given)
    assert _record(message) == Record(1, 7, b"k", b"v", headers)
