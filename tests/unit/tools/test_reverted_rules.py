"""The rules that `make test-rules` reverts are in the code as its list says, and the tests that it names are there."""

from __future__ import annotations

import re

import pytest

from tools.reverted_rules import ROOT, SCENARIO, Reverted, read


@pytest.mark.parametrize("one", read(), ids=lambda one: one.rule)
def test_a_rule_is_where_the_list_says(one: Reverted) -> None:
    assert (ROOT / one.file).read_text(encoding="utf-8").count(one.old) == 1
    assert one.old != one.new
    if one.fails.startswith(SCENARIO):
        assert (ROOT / "tests" / "scenarios" / one.fails.removeprefix(SCENARIO) / "why.md").exists()
    else:
        file, test = one.fails.split("::")
        assert re.search(rf"^def {test.split('[')[0]}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
