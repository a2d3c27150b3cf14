"""Settings: what is a path, what is a catalog, and what must be given."""

from __future__ import annotations

from pathlib import Path

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


def test_schemas_may_have_other_names() -> None:
    chosen = settings(warehouse="orders_dev", checkpoints="/c", schemas="bronze=dev_me_bronze, gold=dev_me_gold")
    warehouse = chosen.address.open(None)  # type: ignore[arg-type]
    assert warehouse.path("bronze.postgres_events") == "orders_dev.dev_me_bronze.postgres_events"
    assert warehouse.path("silver.postgres_orders") == "orders_dev.silver.postgres_orders"
    folder = settings(warehouse="/data", schemas="gold=published").address.open(None)  # type: ignore[arg-type]
    assert folder.path("gold.unified_orders") == "/data/published/unified_orders"
    assert folder.address == folder.address.open(None).address  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", ["bronze", "bronze=", "iron=x", "bronze=a-b", "bronze=a,bronze=b", "bronze=x,silver=x", "bronze=silver"]
)
def test_a_wrong_name_of_a_schema_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="--schemas"):
        settings(warehouse="/data", schemas=wrong)


def test_a_catalog_has_a_name_that_needs_no_quotes() -> None:
    with pytest.raises(SettingsError, match="no name of a catalog"):
        settings(warehouse="orders-dev", checkpoints="/c")


def test_a_secret_without_a_scope_gets_the_one_that_is_given(tmp_path: Path) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text(
        "security_protocol: SASL_SSL\nsasl_mechanism: PLAIN\nusername: {databricks_secret: {scope: own, key: user}}\n"
        "password: {databricks_secret: {key: password}}\n"
    )
    chosen = settings(warehouse="/d", bootstrap_servers="b:1", kafka_config=file, secret_scope="orders-prod")  # noqa: S106  # a name
    assert str(chosen.kafka().password) == "the secret password of the scope orders-prod"
    assert str(chosen.kafka().username) == "the secret user of the scope own"
    with pytest.raises(SettingsError, match="password"):
        settings(warehouse="/d", bootstrap_servers="b:1", kafka_config=file).kafka()
