"""Reads every resource of the bundle, in every target, with Databricks' own models of them: no workspace is asked.

python -m tools.databricks.check    in the environment of tools/databricks; `make bundle-check` does that
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from databricks.bundles.alerts import Alert
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.secret_scopes import SecretScope
from databricks.bundles.sql_warehouses import SqlWarehouse
from databricks.bundles.volumes import Volume

from tools.bundle import BundleError
from tools.targets import BUNDLE, PASSED, TARGETS, resolved

MODELS: Mapping[str, Any] = {
    "alerts": Alert,
    "jobs": Job,
    "schemas": Schema,
    "secret_scopes": SecretScope,
    "sql_warehouses": SqlWarehouse,
    "volumes": Volume,
}


def mistakes() -> list[str]:
    """What the models say against resources: a field that there is not, one that is missing, a value that is none."""
    found = []
    for target in TARGETS:
        for kind, of_kind in resolved(target, PASSED[target])["resources"].items():
            for key, resource in of_kind.items():
                if kind not in MODELS:
                    found.append(f"{target}: resources.{kind}.{key}: no model for {kind}. Add it to tools/databricks.")
                    continue
                try:
                    MODELS[kind].from_dict(resource)
                except (ValueError, TypeError) as error:
                    found.append(f"{target}: resources.{kind}.{key}: {error}")
    return found


def main() -> None:
    """Ends with 1 and a sentence for each mistake."""
    try:
        found = mistakes()
    except BundleError as error:
        sys.exit(str(error))
    if found:
        sys.exit("\n".join(found))
    counts = ", ".join(f"{len(of_kind)} {kind}" for kind, of_kind in BUNDLE.resources.items())
    print(f"{', '.join(TARGETS)}: {counts}; nothing is wrong with their fields.")


if __name__ == "__main__":
    main()
