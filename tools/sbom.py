"""A bill of materials with the jars in it: CycloneDX 1.5 of the packages on standard input, of both on standard output.

Package URLs of Maven: https://github.com/package-url/purl-spec, type `maven`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.spark.jars import SPARK_MANIFEST, Jar, load_manifest
from tools.version import version


def with_jars(packages: Mapping[str, Any], jars: Iterable[Jar], *, release: str) -> dict[str, Any]:
    """The bill with a component for each jar, on which the project depends, and with the project's own version."""
    components = [_component(jar) for jar in jars]
    metadata = packages["metadata"]
    project = {**metadata["component"], "version": release}
    references = [one["bom-ref"] for one in components]
    dependencies = [
        {**one, "dependsOn": [*one.get("dependsOn", ()), *references]} if one["ref"] == project["bom-ref"] else one
        for one in packages["dependencies"]
    ]
    return {
        **packages,
        "metadata": {**metadata, "component": project},
        "components": [*packages["components"], *components],
        "dependencies": [*dependencies, *({"ref": reference, "dependsOn": []} for reference in references)],
    }


def _component(jar: Jar) -> dict[str, Any]:
    group, artifact, release, classifier, extension = jar.parts
    qualifiers = "&".join(
        f"{name}={value}"
        for name, value in (("classifier", classifier), ("type", extension))
        if value not in ("", "jar")
    )
    purl = f"pkg:maven/{group}/{artifact}@{release}" + (f"?{qualifiers}" if qualifiers else "")
    return {
        "type": "library",
        "bom-ref": purl,
        "group": group,
        "name": artifact,
        "version": release,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


if __name__ == "__main__":
    bill = with_jars(json.load(sys.stdin), load_manifest(SPARK_MANIFEST), release=version())
    json.dump(bill, sys.stdout, indent=2)
