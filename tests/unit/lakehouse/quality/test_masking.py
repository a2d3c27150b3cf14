"""What is shown of a record: never a value of a sensitive column, wherever in the record it stands."""

from __future__ import annotations

import json

import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.tables import Column
from lakehouse.quality.masking import shown_key, shown_value
from lakehouse.secrets import MASK

HIDDEN = "a private word"


@pytest.fixture
def feed(contracts: Contracts) -> Feed:
    """A table whose note is sensitive, which events call `remark`."""
    feed = contracts.feeds["postgres_orders"]
    note = Column.model_validate({"type": "STRING", "fields": ["remark"], "sensitive": True})
    return feed.model_copy(update={"columns": {**feed.columns, "note": note}})


@pytest.mark.parametrize(
    "value",
    [
        {"before": None, "after": {"order_id": 1, "remark": HIDDEN}, "op": "c"},
        {"order_id": 1, "note": HIDDEN},
        {"payload": {"after": {"order_id": 1, "remark": HIDDEN}}, "schema": {"fields": [{"field": "remark"}]}},
        {"payload": json.dumps({"order_id": 1, "remark": HIDDEN}), "timestamp": 1},
        json.dumps({"order_id": 1, "remark": {"text": HIDDEN}}),
        {"orders": [{"order_id": 1, "remark": [HIDDEN]}]},
    ],
    ids=["envelope", "flattened", "with schema", "outbox in its envelope", "plain outbox", "list"],
)
def test_a_sensitive_field_is_masked_and_the_others_are_shown(feed: Feed, value: object) -> None:
    shown = shown_value(json.dumps(value).encode(), feed)
    assert HIDDEN not in shown
    assert MASK in shown
    assert "order_id" in shown


@pytest.mark.parametrize(
    "value", [f"not JSON: {HIDDEN}", json.dumps(HIDDEN), json.dumps([HIDDEN]), "{" + HIDDEN, "\x00\x01" + HIDDEN]
)
def test_what_has_no_fields_is_not_shown(feed: Feed, value: str) -> None:
    shown = shown_value(value.encode(), feed)
    assert HIDDEN not in shown
    assert f"{len(value)} bytes" in shown


def test_without_sensitive_columns_everything_is_shown(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    assert shown_value(b"not JSON", feed) == "not JSON"
    assert shown_value(b"\xff", feed) == "\\xff"
    assert shown_value(None, feed) == "(none)"
    assert json.loads(shown_value('{"note": "é"}'.encode(), feed)) == {"note": "é"}
    assert shown_key(b'{"order_id":1}', feed) == '{"order_id":1}'
    assert shown_key(None, feed) == "(none)"


def test_a_sensitive_key_is_masked(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    key = Column.model_validate({"type": "BIGINT", "sensitive": True})
    hidden = feed.model_copy(update={"columns": {**feed.columns, "order_id": key}})
    assert shown_key(b"42", hidden) == MASK
