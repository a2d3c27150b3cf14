"""The bill of materials has what the lock and the manifest of jars pin, each once and with its hash."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lakehouse.spark.jars import SPARK_MANIFEST, Jar, load_manifest
from tools.sbom import with_jars

ROOT = Path(__file__).parents[3]
PACKAGES: dict[str, Any] = {
    "metadata": {"component": {"bom-ref": "us", "name": "orders-lakehouse"}},
    "components": [{"bom-ref": "a", "name": "a"}],
    "dependencies": [{"ref": "us", "dependsOn": ["a"]}, {"ref": "a"}],
}


def test_jars_are_components_on_which_the_project_depends() -> None:
    jars = [
        Jar(coordinate="io.delta:delta-storage:4.4.0", sha256="0" * 64),
        Jar(coordinate="a.b:c:1:linux@zip", sha256="f" * 64),
    ]
    bill = with_jars(PACKAGES, jars, release="1.2.3")
    assert bill["metadata"]["component"]["version"] == "1.2.3"
    refs = ["pkg:maven/io.delta/delta-storage@4.4.0", "pkg:maven/a.b/c@1?classifier=linux&type=zip"]
    assert [one["bom-ref"] for one in bill["components"]] == ["a", *refs]
    assert bill["components"][1]["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]
    assert bill["dependencies"][0] == {"ref": "us", "dependsOn": ["a", *refs]}
    assert {one["ref"] for one in bill["dependencies"]} == {"us", "a", *refs}


def test_the_bill_is_whole() -> None:
    done = subprocess.run([str(ROOT / "tools" / "sbom.sh")], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bill = json.loads((ROOT / "dist" / "sbom.json").read_text(encoding="utf-8"))
    names = {one["name"] for one in bill["components"]}
    assert {"pyspark", "delta-spark", "great-expectations", "confluent-kafka"} <= names
    assert {jar.parts[1] for jar in load_manifest(SPARK_MANIFEST)} <= names
    refs = [one["bom-ref"] for one in bill["components"]]
    assert len(refs) == len(set(refs))
    hashed = [
        one
        for one in bill["components"]
        if "hashes" in one or any("hashes" in of for of in one.get("externalReferences", ()))
    ]
    assert len(hashed) == len(refs)
