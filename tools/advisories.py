"""Known vulnerabilities of every package and jar in dist/sbom.json, as OSV has them: python -m tools.advisories

OSV (https://google.github.io/osv.dev/post-v1-querybatch/) has the advisories of PyPI, of Maven and of GitHub, and takes
the package URLs that the bill of materials has: one question for packages and jars. (pip-audit knows packages alone.)
Prints a table, and ends with 1 when there is an advisory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from rich.table import Table

from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table

OSV = "https://api.osv.dev"
BILL = Path(__file__).parents[1] / "dist" / "sbom.json"
TIMEOUT_SECONDS = 60.0
# Of one question, by OSV's documentation.
MOST_QUERIES = 1000


def package_urls(bill: Mapping[str, Any]) -> Sequence[str]:
    """The package URLs of all components, without qualifiers, which OSV does not know; each once."""
    return sorted({one["purl"].partition("?")[0] for one in bill["components"] if "purl" in one})


def advisories(urls: Sequence[str], *, osv: str = OSV) -> Mapping[str, Sequence[str]]:
    """The ids of the advisories of each package that has any. Raises requests.RequestException."""
    found: dict[str, list[str]] = {}
    with requests.Session() as session:
        waiting: list[tuple[str, str | None]] = [(url, None) for url in urls]
        while waiting:
            asked, waiting = waiting[:MOST_QUERIES], waiting[MOST_QUERIES:]
            queries = [
                {"package": {"purl": url}, **({"page_token": token} if token is not None else {})}
                for url, token in asked
            ]
            answer = session.post(f"{osv}/v1/querybatch", json={"queries": queries}, timeout=TIMEOUT_SECONDS)
            answer.raise_for_status()
            for (url, _token), result in zip(asked, answer.json()["results"], strict=True):
                found.setdefault(url, []).extend(one["id"] for one in result.get("vulns") or ())
                if result.get("next_page_token"):
                    waiting.append((url, result["next_page_token"]))
    return {url: sorted(set(ids)) for url, ids in found.items() if ids}


def table(found: Mapping[str, Iterable[str]]) -> Table:
    """The packages with their advisories, one a line."""
    shown = new_table("Advisories", "package", "advisory")
    for url, ids in sorted(found.items()):
        for one in ids:
            shown.add_row(url.removeprefix("pkg:"), f"https://osv.dev/vulnerability/{one}")
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print; 1 when there is an advisory."""
    parser = argparse.ArgumentParser(prog="python -m tools.advisories", description="Known vulnerabilities.")
    parser.add_argument("--bill", type=Path, default=BILL, help="the bill of materials (default: %(default)s)")
    parser.add_argument("--osv", default=OSV, help="where OSV answers (default: %(default)s)")
    asked = parser.parse_args(argv)
    urls = package_urls(json.loads(asked.bill.read_text(encoding="utf-8")))
    found = advisories(urls, osv=asked.osv)
    console = wide_console()
    if found:
        console.print(table(found))
    console.print(f"{len(urls)} packages and jars, {len(found)} of them with an advisory.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
