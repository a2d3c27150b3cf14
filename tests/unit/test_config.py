"""Settings: what is a path, what is a catalog, and what must be given."""

from __future__ import annotations

import pytest

from lakehouse.config import settings
from lakehouse.errors import SettingsError


def test_a_folder_keeps_its_checkpoints_beside_the_tables() -> None:
    chosen = settings(warehouse="/data/lake/")
    assert (chosen.warehouse, chosen.checkpoints) == ("/data/lake", "/data/lake/_checkpoints")


def test_a_uri_is_as_hadoop_has_it() -> None:
    chosen = settings(warehouse="file:///data/lake/", checkpoints="hdfs:///checkpoints")
    assert (chosen.warehouse, chosen.checkpoints) == ("file:/data/lake", "hdfs:/checkpoints")
    chosen = settings(warehouse="s3a://bucket/lake/")
    assert (chosen.warehouse, chosen.checkpoints) == ("s3a://bucket/lake", "s3a://bucket/lake/_checkpoints")


def test_a_catalog_needs_a_place_for_checkpoints() -> None:
    with pytest.raises(SettingsError, match="--checkpoints"):
        settings(warehouse="orders_dev")
    chosen = settings(warehouse="orders_dev", checkpoints="/Volumes/orders_dev/ops/checkpoints")
    assert (chosen.warehouse, chosen.checkpoints) == ("orders_dev", "/Volumes/orders_dev/ops/checkpoints")


def test_nothing_is_guessed() -> None:
    with pytest.raises(SettingsError, match="--warehouse"):
        settings(warehouse=None)
    with pytest.raises(SettingsError, match="local, dev, staging, prod"):
        settings(warehouse="/data", target="production")
    with pytest.raises(SettingsError, match="--bootstrap-servers"):
        settings(warehouse="/data").kafka()
