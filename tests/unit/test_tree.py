"""The tree stays readable: modules of a size that is read at once, and folders that are seen at once."""

from __future__ import annotations

from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
MAX_LINES = 350
MAX_MODULES = 10
# The rules of silver and of contracts are still longer.
SHORT = ("bronze", "gold", "lakehouse", "connectors", "monitoring", "cli")
LONG = SRC / "lakehouse" / "contracts"


@pytest.mark.parametrize("package", SHORT)
def test_no_module_is_too_long(package: str) -> None:
    lines = {
        str(module.relative_to(SRC)): len(module.read_text(encoding="utf-8").splitlines())
        for module in (SRC / package).rglob("*.py")
        if LONG not in module.parents
    }
    assert {module: count for module, count in lines.items() if count > MAX_LINES} == {}


def test_no_folder_has_too_many_modules() -> None:
    folders = [SRC, *(folder for folder in SRC.rglob("*") if folder.is_dir())]
    counts = {
        str(folder.relative_to(SRC)): sum(module.name != "__init__.py" for module in folder.glob("*.py"))
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}
