"""Files that are made from the code: the JSON Schemas of the contracts, and the gallery of expectations.

python -m tools.generated    writes them; a test holds that they are as the code would write them now
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lakehouse.checkpoint import gallery
from lakehouse.contract_files import SCHEMAS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PACKAGE = Path(__file__).parent.parent / "src" / "lakehouse"


def schemas() -> Mapping[Path, str]:
    """The JSON Schema of every kind of contract: what editors complete and check the YAML by."""
    return {
        PACKAGE / "schemas" / name: _text({"$schema": DIALECT, **model.model_json_schema()})
        for name, model in SCHEMAS.items()
    }


def expectations() -> Mapping[Path, str]:
    """The expectations of the installed Great Expectations, with their arguments."""
    return {PACKAGE / "gallery.json": _text(gallery())}


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in {**schemas(), **expectations()}.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
