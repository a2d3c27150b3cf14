"""What a MERGE sets in its session: for itself alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.spark.materialized import merge_source

SETTING = "spark.databricks.delta.merge.materializeSource"


class Conf:
    """The settings of a session."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.get, self.set, self.unset = self.known.get, self.known.__setitem__, self.known.__delitem__


@pytest.mark.parametrize(("on_databricks", "inside"), [(False, {SETTING: "none"}), (True, {})])
def test_a_setting_ends_with_its_merge_and_is_none_where_sources_share_a_session(
    monkeypatch: pytest.MonkeyPatch, on_databricks: bool, inside: dict[str, str]
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    if on_databricks:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    conf = Conf()
    rows: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
    with merge_source(rows, key="order_id", count=None, size_in_bytes=0, are_kept=True) as source:
        assert source is rows
        assert conf.known == inside
    assert conf.known == {}
