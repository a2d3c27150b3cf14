"""Offsets of partitions, asked of a client that stands in for the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from lakehouse.errors import KafkaError
from lakehouse.kafka import offsets
from lakehouse.kafka.broker import Admin
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition, latest

CONNECTION = KafkaConnection(bootstrap_servers="127.0.0.1:1")
PLACE = Partition("order_dw.order_dw.user", 0)


class Client:
    """Answers with these error codes in turn, then with an offset."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def list_offsets(self, wanted: Mapping[Any, Any], **_options: Any) -> Mapping[Any, Future[Any]]:
        answers = {}
        code = self.codes.pop(0) if self.codes else None
        for place in wanted:
            answer = answers[place] = Future[Any]()
            if code is None:
                answer.set_result(SimpleNamespace(offset=17))
            else:
                answer.set_exception(KafkaException(ClientError(code)))
        return answers


def asked(client: Client) -> Mapping[Partition, int]:
    return latest(CONNECTION, [PLACE], kept=cast(Admin, SimpleNamespace(client=client)))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_PAUSES", (0.0, 0.0))


def test_a_topic_that_is_being_created_is_asked_again() -> None:
    client = Client(ClientError.NOT_LEADER_FOR_PARTITION, ClientError.LEADER_NOT_AVAILABLE)
    assert asked(client) == {PLACE: 17}


def test_a_partition_without_a_leader_is_an_error_in_the_end() -> None:
    with pytest.raises(KafkaError, match="did not state its offsets"):
        asked(Client(*[ClientError.NOT_LEADER_FOR_PARTITION] * 3))


def test_another_error_is_one_at_once() -> None:
    client = Client(ClientError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError):
        asked(client)
    assert client.codes == []
