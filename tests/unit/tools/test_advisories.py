from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tools import advisories

BILL = {
    "components": [
        {"purl": "pkg:pypi/requests@2.19.0"},
        {"purl": "pkg:pypi/pyarrow@15.0.0"},
        {"purl": "pkg:maven/org.lz4/lz4-java@1.8.0?type=jar"},
        {"name": "the project"},
    ]
}


class Osv(BaseHTTPRequestHandler):
    """Answers as OSV's documentation says: a result a query, in their order, and more of one on the next page."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        body = json.dumps({"results": [self._result(query) for query in queries]}).encode()
        self.send_response(200 if self.path == "/v1/querybatch" else 404)
        self.end_headers()
        self.wfile.write(body)

    def _result(self, query: dict[str, Any]) -> dict[str, Any]:
        url, token = query["package"]["purl"], query.get("page_token")
        if "requests" in url:
            return {"vulns": [{"id": "GHSA-1"}], "next_page_token": "2"} if token is None else {"vulns": [{"id": "B"}]}
        return {"vulns": [{"id": "CVE-1", "modified": "2026-01-01"}]} if "lz4-java@1.8.0" in url else {}

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def osv() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_packages_and_jars_are_asked_for_by_their_urls() -> None:
    assert advisories.package_urls(BILL) == [
        "pkg:maven/org.lz4/lz4-java@1.8.0",
        "pkg:pypi/pyarrow@15.0.0",
        "pkg:pypi/requests@2.19.0",
    ]


def test_every_advisory_is_found_on_whatever_page(osv: str) -> None:
    assert advisories.advisories(advisories.package_urls(BILL), osv=osv) == {
        "pkg:maven/org.lz4/lz4-java@1.8.0": ["CVE-1"],
        "pkg:pypi/requests@2.19.0": ["B", "GHSA-1"],
    }


def test_it_ends_with_1_when_there_is_an_advisory(osv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bill = tmp_path / "sbom.json"
    bill.write_text(json.dumps(BILL))
    assert advisories.main(["--bill", str(bill), "--osv", osv]) == 1
    printed = capsys.readouterr().out
    assert "https://osv.dev/vulnerability/GHSA-1" in printed
    assert "3 packages and jars, 2 of them with an advisory." in printed
    bill.write_text(json.dumps({"components": BILL["components"][1:2]}))
    assert advisories.main(["--bill", str(bill), "--osv", osv]) == 0


def test_a_service_that_refuses_is_no_clean_bill(osv: str) -> None:
    with pytest.raises(requests.RequestException):
        advisories.advisories(["pkg:pypi/pyarrow@15.0.0"], osv=f"{osv}/elsewhere")
