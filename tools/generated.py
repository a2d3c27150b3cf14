"""Files that are made from others: schemas of contracts, expectations, targets' differences, commands, troubles.

python -m tools.generated    writes them; a test holds that they are as the code would write them now
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from lakehouse.contracts.files import SCHEMAS
from lakehouse.quality.gx import gallery
from monitoring.known_issues import as_page
from tools.bundle import ROOT
from tools.commands import reference
from tools.targets import PASSED, differences

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PACKAGE = Path(__file__).parent.parent / "src" / "lakehouse"


def schemas() -> Mapping[Path, str]:
    """The JSON Schema of every kind of contract: what editors complete and check the YAML by."""
    return {
        PACKAGE / "contracts" / "schemas" / name: _text({"$schema": DIALECT, **model.model_json_schema()})
        for name, model in SCHEMAS.items()
    }


def expectations() -> Mapping[Path, str]:
    """The expectations of the installed Great Expectations, with their arguments."""
    return {PACKAGE / "quality" / "gallery.json": _text(gallery())}


def targets() -> Mapping[Path, str]:
    """What differs between the bundle's targets, to be looked at when it has changed."""
    head = "# What differs between the targets: `make generated` writes it. `at`: where the values stand.\n"
    text = yaml.safe_dump(differences(PASSED), sort_keys=False, width=120, allow_unicode=True)
    return {ROOT / "tests/bundle/targets.yaml": head + text}


def commands() -> Mapping[Path, str]:
    """Every command with its options, and the exit codes."""
    return {ROOT / "docs/commands.md": reference()}


def troubles() -> Mapping[Path, str]:
    """The troubles that `lakehouse doctor` knows."""
    return {ROOT / "docs/troubleshooting.md": as_page()}


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in {**schemas(), **expectations(), **targets(), **commands(), **troubles()}.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
