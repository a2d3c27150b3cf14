"""A backlog of both sources through everything: this project, plain Spark and Flink SQL, on the same topics.

python -m benchmarks.backlog [--events 500000] [--keys 150000] [--turns 1] [--seed 1] [--profile]

Each is a command of its own that begins with Java; their order is drawn anew in every turn. What a run leaves on its
topic is compared with the truth, so a fast wrong answer is said to be wrong. Prints a line of JSON for every run, and a
table at the end. With --profile this project runs once more, with Spark's event log, and tells where its seconds go.
`make bench` sets up what it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from rich.table import Table

from benchmarks import profile, report
from benchmarks.load import Row, create_topics, send, tables, write_contracts
from benchmarks.memory import most_of_java
from demo.broker import embedded_broker
from lakehouse.contracts.files import load_contracts
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from lakehouse.process.steps import wide_console
from lakehouse.spark.jars import jar_paths, load_manifest

HERE = Path(__file__).parent
OURS, PLAIN, FLINK = "this project", "plain Spark", "Flink SQL"
PUBLICATION = load_contracts().gold.unified_topic
UNIFIED = PUBLICATION.topic
LIMIT_SECONDS = 1800


@dataclass(frozen=True)
class Run:
    """One run of one contender: `wrong` is the number of keys whose last record on the topic is not the truth.

    `java_mb`: the most resident memory that its Java had. `again`: of this project, the stages of the same command once
    more, which finds nothing new, and its `command`, all of it.
    """

    contender: str
    turn: int
    seconds: float
    wrong: int
    topic_records: int
    bytes_on_disk: int
    java_mb: float
    stages: Mapping[str, float]
    again: Mapping[str, float]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark. Ends with 1 when a contender was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backlog", description=__doc__)
    parser.add_argument("--events", type=int, default=500_000, help="records of each source, tombstones included")
    parser.add_argument("--keys", type=int, default=150_000, help="orders of each source at the beginning")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--place", default="backlog", help="where in docs/benchmarks.md the table stands")
    parser.add_argument("--profile", action="store_true", help="tell which of Spark's stages take longest, at the end")
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    runs = []
    with TemporaryDirectory(prefix="backlog-") as folder, embedded_broker() as servers:
        create_topics(servers, partitions=2)
        sources = tables(seed=chosen.seed, keys=chosen.keys)
        sent = send(servers, sources, events=chosen.events)
        print(json.dumps({"load": asdict(sent)}), flush=True)
        truth = dict(row for table in sources for row in table.unified())
        order = Random(chosen.seed)  # noqa: S311 - an order, no secret
        for turn in range(1, chosen.turns + 1):
            for contender in order.sample(chosen.only, len(chosen.only)):
                run = one_run(contender, turn, servers, Path(folder) / f"{turn} {contender}", truth)
                runs.append(run)
                print(json.dumps(asdict(run)), flush=True)
        profiled = profile_of_this_project(servers, Path(folder) / "profile") if chosen.profile else {}
    shown = summary(runs)
    records = f"{sent.records:,} records of {sent.bytes:,} bytes"
    nothing_new = summary_without_news(runs) if any(run.again for run in runs) else None
    for table in (shown, *([nothing_new] if nothing_new else []), *profiled.values()):
        wide_console().print(table)
    if chosen.write_docs:
        report.write(chosen.place, shown, plots(runs), asked=f"{records}, {chosen.turns} turns")
        if nothing_new:
            report.write(f"{chosen.place} without news", nothing_new, [], asked=f"after {records}")
        for place, table in profiled.items():
            report.write(place, table, [], asked=f"{records}, a run with Spark's event log")
    if any(run.wrong for run in runs):
        sys.exit(1)


def one_run(contender: str, turn: int, servers: str, folder: Path, truth: Mapping[str, Row]) -> Run:
    """A contender from an empty folder and an empty topic to the end. Raises RuntimeError when it fails."""
    folder.mkdir()
    with unified_topic(servers):
        command = COMMANDS[contender](servers, folder)
        seconds, said, java_mb = ended(command)
        found, records = last_values(servers)
        again = {}
        if contender == OURS:
            of_command, said_again, _java_mb = ended(command)
            again = {"command": round(of_command, 1), **stages(said_again)}
    wrong = sum(found.get(key) != row for key, row in comparable(truth).items()) + len(found.keys() - truth.keys())
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Run(contender, turn, round(seconds, 1), wrong, records, size, java_mb, stages(said), again)


def ended(command: Sequence[str]) -> tuple[float, str, float]:
    """The command, run to its end: its seconds, what it said on standard error, and the most memory its Java had.

    Raises RuntimeError when it fails.
    """
    begun = time.monotonic()
    with started(command) as process, most_of_java(process.pid) as most:
        _nothing, said = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {process.returncode}: {said[-2000:]}")
    return time.monotonic() - begun, said, most()


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The command, at work with this tree's code; it has ended after the block, which kills it when it raises."""
    path = f"{HERE.parent / 'src'}:{HERE.parent}"
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextmanager
def unified_topic(servers: str) -> Iterator[None]:
    """The unified topic, empty; gone at the end."""
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"cleanup.policy": "compact", "max.message.bytes": str(PUBLICATION.max_message_bytes)}
    new = NewTopic(UNIFIED, num_partitions=3, replication_factor=1, config=config)
    admin.create_topics([new])[UNIFIED].result()
    try:
        yield
    finally:
        admin.delete_topics([UNIFIED])[UNIFIED].result()
        while UNIFIED in partitions(KafkaConnection(bootstrap_servers=servers)):
            time.sleep(0.2)


def last_values(servers: str) -> tuple[dict[str, Row], int]:
    """The last value of every key that is not deleted, comparable; and how many records there are."""
    found: dict[str, Row | None] = {}
    records = 0
    for record in committed_records(KafkaConnection(bootstrap_servers=servers), UNIFIED):
        records += 1
        found[json.loads(record.key)["composite_key"]] = json.loads(record.value) if record.value else None
    return comparable({key: row for key, row in found.items() if row is not None}), records


def comparable(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows without `processed_at`, amounts as numbers and times as times: every contender writes its own forms."""
    return {
        key: {
            **{name: value for name, value in row.items() if name != "processed_at"},
            "total_amount": Decimal(str(row["total_amount"])),
            "created_at": datetime.fromisoformat(row["created_at"].replace("Z", "")),
        }
        for key, row in rows.items()
    }


def stages(said: str) -> dict[str, float]:
    """The seconds of each job, as `lakehouse run` tells them: `bronze  1,000 new records (3.2 s)`."""
    found = {}
    for line in said.splitlines():
        name, _, rest = line.strip().removeprefix("✓ ").partition(" ")
        if name in {"session", "news", "bronze", "silver", "gold", "publish"} and rest.endswith(" s)"):
            found[name] = float(rest.rsplit("(", 1)[1].removesuffix(" s)"))
    return found


def profile_of_this_project(servers: str, folder: Path) -> dict[str, Table]:
    """Where the seconds of a run go, by the name of the place on the page. Raises RuntimeError when it fails."""
    log = folder / "events"
    log.mkdir(parents=True)
    with unified_topic(servers):
        layers = layers_of([*of_this_project(servers, folder), *profile.settings(log)])
    of_log = profile.stages_in(log)
    return {
        profile.LAYERS: profile.layers_table(layers, of_log),
        profile.STAGES: profile.stages_table(layers, of_log),
    }


def layers_of(command: Sequence[str]) -> list[profile.Layer]:
    """The layers of `lakehouse run`, each from the end of the one before. Raises RuntimeError when it fails."""
    layers: list[profile.Layer] = []
    said = []
    begun = time.time()
    with started(command) as process:
        limit = Timer(LIMIT_SECONDS, process.kill)
        limit.daemon = True
        limit.start()
        try:
            for line in process.stderr or ():
                said.append(line)
                for name in stages(line):
                    layers.append(profile.Layer(name, layers[-1].ended if layers else begun, time.time()))
        finally:
            limit.cancel()
    if process.returncode:
        raise RuntimeError(f"{OURS} ended with {process.returncode}: {''.join(said)[-2000:]}")
    return layers


def of_this_project(servers: str, folder: Path) -> list[str]:
    """`lakehouse run`."""
    contracts = write_contracts(folder / "contracts")
    where = ["--bootstrap-servers", servers, "--warehouse", str(folder / "warehouse"), "--contracts", str(contracts)]
    return [sys.executable, "-m", "orders_lakehouse", "run", *where]


def of_plain_spark(servers: str, folder: Path) -> list[str]:
    """benchmarks/plain_spark.py."""
    where = ["--bootstrap-servers", servers, "--warehouse", str(folder), "--topic", UNIFIED]
    return [sys.executable, "-m", "benchmarks.plain_spark", *where]


def of_flink(servers: str, folder: Path) -> list[str]:
    """benchmarks/flink/unified.py, in its own environment."""
    (jar,) = jar_paths(load_manifest(HERE / "flink" / "jars.yaml"))
    python = HERE / "flink" / ".venv" / "bin" / "python"
    return [str(python), str(HERE / "flink" / "unified.py"), servers, UNIFIED, str(jar), str(folder)]


def summary(runs: Sequence[Run]) -> Table:
    """The median of every contender, and how many times as long as this project's it is."""
    table = Table("contender", "seconds", "all runs", "of this project's", "most MB of Java", "wrong keys")
    of: dict[str, list[Run]] = {}
    for run in runs:
        of.setdefault(run.contender, []).append(run)
    ours = median(run.seconds for run in of[OURS]) if OURS in of else None
    for contender, its in of.items():
        middle = median(run.seconds for run in its)
        ratio = f"{middle / ours:.2f}" if ours else ""
        every = ", ".join(f"{run.seconds:.1f}" for run in its)
        most = f"{max(run.java_mb for run in its):,.0f}"
        table.add_row(contender, f"{middle:.1f}", every, ratio, most, str(max(run.wrong for run in its)))
    return table


def summary_without_news(runs: Sequence[Run]) -> Table:
    """The same command once more: the medians, and how many times the start of Spark in the first one it takes."""
    table = Table("what", "seconds", "of the session's start")
    again = [run.again for run in runs if run.again]
    start = median(run.stages["session"] for run in runs if run.again)
    for stage in again[0]:
        seconds = median(one[stage] for one in again)
        table.add_row(stage, f"{seconds:.1f}", f"{seconds / start:.1f}")
    return table


def plots(runs: Sequence[Run]) -> list[str]:
    """The medians of all, and where this project's go."""
    by_name = {name: [run for run in runs if run.contender == name] for name in COMMANDS}
    seconds = {name: median(run.seconds for run in of) for name, of in by_name.items() if of}
    found = [report.bars("A backlog from Kafka to the unified topic", "seconds", seconds)] if len(seconds) > 1 else []
    stages = by_name[OURS][0].stages if by_name[OURS] else {}
    if stages:
        middle = {stage: median(run.stages[stage] for run in by_name[OURS]) for stage in stages}
        found.append(report.bars("Where this project's seconds go", "seconds", middle))
    return found


COMMANDS: Mapping[str, Any] = {OURS: of_this_project, PLAIN: of_plain_spark, FLINK: of_flink}

if __name__ == "__main__":
    main()
