"""`lakehouse forget` with a broker: the topics follow, and are compared with their tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from cli.main import main
from gold.topics import publish
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.log import committed_records
from tests.support.command_line import run as run_command
from tests.support.erasure import Jobs, files_with, postgres
from tests.support.shop import delete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

KEY, CANARY = 987654321, "canary-of-the-person"


def test_the_last_value_of_an_erased_key_is_a_tombstone(
    spark: SparkSession, bootstrap_servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"unified-{uuid4()}"
    folder, records = tmp_path / "contracts", tmp_path / "records"
    records.mkdir()
    main(["init", str(folder)])
    tables = folder / "gold" / "tables.yaml"
    tables.write_text(tables.read_text().replace("topic: bigquery.unified.orders", f"topic: {topic}"))
    (folder / "gold" / "gate.yaml").write_text("{}\n")
    location = str(tmp_path / "warehouse")
    jobs = Jobs(Warehouse(spark, location, f"{location}/_checkpoints"), load_contracts(folder), records)
    chosen = settings(warehouse=location, bootstrap_servers=bootstrap_servers)
    try:
        jobs.store("postgres", postgres(0, KEY, "c", 100, status=CANARY), postgres(1, 1, "c", 110))
        jobs.run()
        publish.run(spark, chosen, jobs.contracts)
        jobs.store("postgres", postgres(2, KEY, "d", 120))
        jobs.run()  # and not published
        where = ("--warehouse", location, "--contracts", str(folder), "--json")
        words = ("postgres_orders", str(KEY), "--bootstrap-servers", bootstrap_servers, *where)
        code, said, _errors = run_command(capsys, "forget", *words, "--yes", "--vacuum")
        assert (code, json.loads(said)["found"]) == (0, [])
        assert files_with(location, CANARY) == []
        values = {record.key: record.value for record in committed_records(chosen.kafka(), topic)}
        assert [value is None for key, value in values.items() if str(KEY).encode() in key] == [True]
        assert len(values) == 2
        code, said, _errors = run_command(capsys, "verify", "--bootstrap-servers", bootstrap_servers, *where)
        assert (code, json.loads(said)["errors"]) == (0, [])
    finally:
        delete(chosen.kafka(), topic, f"{topic}.progress")
