"""The HTML report in a real browser: nothing of it is wider than the window, of a phone or of a desk."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from monitoring.model import Status
from monitoring.page import page
from tests.unit.monitoring.test_page import AT, example

pytestmark = pytest.mark.live

Look = Callable[[str, int], Mapping[str, Any]]

# What is wider than the window but inside a box that scrolls by itself is no fault.
MEASURE = """
<script>addEventListener("load", () => {
  const page = document.documentElement;
  const isBeyond = (one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll *");
  const cut = [...document.querySelectorAll("main *:not(rect, title)")].filter(isBeyond).map((one) => one.outerHTML);
  const boxes = [...document.querySelectorAll(".scroll")];
  const report = {window: innerWidth, width: page.scrollWidth, cut,
    scrolling: boxes.filter((box) => box.scrollWidth > box.clientWidth).length,
    bars: [...document.querySelectorAll("svg")].map((one) => one.getBoundingClientRect().width),
    labels: [...document.querySelectorAll("td")].map((one) => getComputedStyle(one, "::before").content),
    text: document.body.innerText};
  const pre = parent.document.createElement("pre");
  pre.textContent = JSON.stringify(report);
  parent.document.body.append(pre);
})</script>
"""


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """What Chromium shows of a document in a window of that width.

    A frame is the window: Chromium's own is never narrower than 500 pixels.
    """

    def seen(document: str, width: int) -> Mapping[str, Any]:
        style = f"border: 0; width: {width}px; height: 800px"
        frame = f'<iframe style="{style}" srcdoc="{escape(document + MEASURE)}"></iframe>'
        wrapper = tmp_path / "wrapper.html"
        wrapper.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body>{frame}</body>", encoding="utf-8")
        dom = chromium("--window-size=1400,900", "--dump-dom", wrapper.as_uri(), profile=tmp_path / "profile")
        report = re.search(r"<pre>(.*?)</pre></body>", dom, re.DOTALL)
        assert report is not None, dom[-2_000:]
        answer: Mapping[str, Any] = json.loads(unescape(report[1]))
        assert answer["window"] == width
        return answer

    return seen


def chromium(*arguments: str, profile: Path) -> str:
    """Run it without a screen; what it writes."""
    # A scrollbar would take its part of the width; on a phone it has none.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    command = ["chromium", *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [320, 360, 768, 960, 1200])
def test_nothing_is_wider_than_the_window(look: Look, width: int) -> None:
    shown = look(page(example()), width)
    assert shown["cut"] == []
    assert shown["width"] == width
    assert shown["scrolling"] == 0
    assert len(shown["bars"]) > 10
    assert min(shown["bars"]) > 200


def test_long_names_are_broken_on_a_phone(look: Look) -> None:
    name = "a_source_whose_name_has_no_place_to_be_broken_at_" * 3
    status = example()
    stages = [replace(stage, source=name, lag_records=10**15, what=name, hint=name) for stage in status.stages]
    findings = [replace(finding, where=name, what=name, hint=name) for finding in status.findings]
    gates = [replace(gate, source=name, failed_rules=(name, name)) for gate in status.gates]
    headroom = [replace(one, source=name, lost_by=name) for one in status.headroom]
    tables = [replace(table, table=name) for table in status.tables]
    long = replace(
        status,
        stages=stages,
        findings=findings,
        gates=gates,
        headroom=headroom,
        tables=tables,
        suspended=[name],
        lock=name,
    )
    for width in (360, 1200):
        shown = look(page(long), width)
        assert (width, shown["cut"], shown["width"]) == (width, [], width)


def test_a_phone_shows_a_label_beside_every_number_of_a_table(look: Look) -> None:
    on_phone, on_desk = (look(page(example()), width)["labels"] for width in (360, 1200))
    assert {'"p99"', '"drain"', '"verdict"', '"deletion vectors"'} <= set(on_phone)
    assert "none" not in on_phone
    assert set(on_desk) == {"none"}


def test_a_status_without_parts_fits(look: Look) -> None:
    shown = look(page(Status(AT)), 360)
    assert shown["width"] == 360
    assert "Nothing is beyond a threshold" in shown["text"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(tmp_path: Path, scheme: str) -> None:
    """Every text has the contrast that WCAG 2 AA asks for: 4.5 to 1."""
    document = tmp_path / "page.html"
    document.write_text(page(example()) + CONTRAST, encoding="utf-8")
    chosen = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    dom = chromium("--window-size=1200,900", chosen, "--dump-dom", document.as_uri(), profile=tmp_path / "profile")
    report = re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)
    assert report is not None, dom[-2_000:]
    answer = json.loads(unescape(report[1]))
    assert answer["isDark"] == (scheme == "dark")
    assert answer["texts"] > 100
    assert answer["faint"] == []


# All text is on a card.
CONTRAST = """
<script>addEventListener("load", () => {
  const light = (colour) => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((one) => one / 255);
    const [r, g, b] = parts.map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one) => {
    const back = getComputedStyle(one.closest("section, header")).backgroundColor;
    const [dim, bright] = [light(getComputedStyle(one).color), light(back)].sort((a, b) => a - b);
    return (bright + 0.05) / (dim + 0.05);
  };
  const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && /[a-z0-9]/i.test(node.data));
  const texts = [...document.querySelectorAll("main *:not(title)")].filter(hasText);
  const faint = texts.filter((one) => contrast(one) < 4.5).map((one) => `${contrast(one)} ${one.outerHTML}`);
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const pre = Object.assign(document.createElement("pre"), {
    textContent: JSON.stringify({isDark, texts: texts.length, faint})});
  document.body.append(pre);
})</script>
"""
