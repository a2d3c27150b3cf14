"""How the bundle is read without the Databricks CLI: what a reference stands for, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.bundle import ROOT, Bundle, BundleError, Values, Yaml, read_bundle

BUNDLE = read_bundle(ROOT)


def test_references_to_resources_have_the_names_of_their_files() -> None:
    values = Values(
        Bundle(
            BUNDLE.settings,
            {
                "schemas": {"ops": {"catalog_name": "${var.catalog}", "name": "ops"}},
                "volumes": {
                    "kept": {
                        "catalog_name": "${var.catalog}",
                        "schema_name": "${resources.schemas.ops.name}",
                        "name": "kept",
                    }
                },
                "secret_scopes": {"kafka": {"name": "kafka-${bundle.target}"}},
            },
        ),
        "prod",
        {},
    )
    assert values.resolve("${resources.schemas.ops.name}", "") == "ops"
    assert values.resolve("${resources.schemas.ops.id}", "") == "orders_prod.ops"
    assert values.resolve("${resources.volumes.kept.volume_path}/x", "") == "/Volumes/orders_prod/ops/kept/x"
    assert values.resolve("{{secrets/${resources.secret_scopes.kafka.name}/key}}", "") == "{{secrets/kafka-prod/key}}"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("var.bootstrap_server", 'no variable "bootstrap_server". Did you mean "bootstrap_servers"?'),
        ("bundle.git.branch", "is not known. Known are"),
        ("workspace.file_path", "is not known. Known are"),
        ("resources.schemas.opps.name", 'no resource "opps" among schemas'),
        ("resources.jobs.orders_lakehouse.nom", 'there is no "nom"'),
    ],
)
def test_a_reference_that_is_not_known_is_refused(reference: str, says: str) -> None:
    with pytest.raises(BundleError, match=re.escape(says)):
        Values(BUNDLE, "dev", {}).resolve({"parameters": ["a", f"${{{reference}}}"]}, "job")


def test_a_reference_alone_keeps_its_type_and_a_circle_is_refused() -> None:
    settings = {
        **BUNDLE.settings,
        "variables": {"hours": {"default": 3}, "a": {"default": "x${var.b}"}, "b": {"default": "${var.a}"}},
    }
    values = Values(Bundle(settings, {}), "staging", {})
    assert values.resolve({"n": "${var.hours}", "t": "${var.hours}h"}, "") == {"n": 3, "t": "3h"}
    with pytest.raises(BundleError, match="part of its own value"):
        values.resolve("${var.a}", "")


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("bundle.yaml", "    mode: development\n", "    mode: development\n    sync: {}\n", "sync is not read"),
        ("bundle.yaml", "    presets:\n", "    presets:\n      name_prefix: a\n", "presets: name_prefix is not read"),
        ("resources/orders-lakehouse.job.yml", "resources:\n", "sync: {}\nresources:\n", "sync is not read"),
        ("resources/orders-lakehouse.job.yml", "      name: orders", "     name: orders", "orders-lakehouse.job.yml:"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    for path in (ROOT / "bundle.yaml", *ROOT.glob("resources/*.yml")):
        text = path.read_text(encoding="utf-8")
        (tmp_path / "resources").mkdir(exist_ok=True)
        (tmp_path / path.relative_to(ROOT)).write_text(text, encoding="utf-8")
    path = tmp_path / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BundleError, match=says):
        read_bundle(tmp_path)


def of_prod(resources: Yaml) -> Bundle:
    settings = {**BUNDLE.settings, "targets": {"prod": {"resources": resources}}}
    return Bundle(settings, {"schemas": {"ops": {"name": "ops", "lifecycle": {"a": 1}}}})


def test_what_a_target_says_of_a_resource_is_merged_into_it() -> None:
    merged = of_prod({"schemas": {"ops": {"name": "own", "lifecycle": {"prevent_destroy": True}}}}).of_target("prod")
    assert merged.resources == {"schemas": {"ops": {"name": "own", "lifecycle": {"a": 1, "prevent_destroy": True}}}}


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"schemas": {"opps": {}}}, "targets.prod.resources.schemas.opps: there is no such resource"),
        ({"schemas": {"ops": {"grants": []}}}, "targets.prod.resources.schemas.ops.grants: a list is added"),
    ],
)
def test_a_target_makes_no_resource_and_adds_to_no_list(resources: Yaml, says: str) -> None:
    with pytest.raises(BundleError, match=re.escape(says)):
        of_prod(resources).of_target("prod")
