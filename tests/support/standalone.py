"""Spark's own cluster manager on loopback: a master and workers, each a process, from the installed pyspark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pyspark

from demo.processes import HOST, Server, free_ports, last_lines, text_of

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 60.0
STOP_SECONDS = 15.0
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


@dataclass(frozen=True)
class StandaloneCluster:
    """A running cluster: the URL of its master, and the port of every worker's web page."""

    master: str
    workers: frozenset[int]


@contextmanager
def standalone_cluster(folder: Path, *, workers: int) -> Iterator[StandaloneCluster]:
    """A master and so many workers of one core and 1 GB each, gone when the block is left in any way."""
    port, web_port, *ports = free_ports(2 + 2 * workers)
    cluster = StandaloneCluster(f"spark://{HOST}:{port}", frozenset(ports[workers:]))
    own = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
    }
    with ExitStack() as stack:

        def start(name: str, kind: str, *arguments: str) -> Server:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", HOST]
            environment = {**own, "SPARK_WORKER_DIR": str(folder / name)}
            server = Server([*command, *arguments], log=folder / f"{name}.log", environment=environment)
            stack.callback(server.stop, seconds=STOP_SECONDS)
            return server

        master = start("master", "master.Master", "--port", str(port), "--webui-port", str(web_port))
        for number, (own_port, page) in enumerate(zip(ports[:workers], ports[workers:], strict=True)):
            addresses = ("--port", str(own_port), "--webui-port", str(page))
            start(f"worker-{number}", "worker.Worker", *addresses, "--cores", "1", "--memory", "1g", cluster.master)
        said = folder / "master.log"
        assert master.answers(lambda: _workers_at(web_port) == workers, seconds=START_SECONDS), last_lines(
            text_of(said)
        )
        yield cluster


def tasks_by_worker(event_log: Path) -> Counter[int]:
    """How many tasks of an application ended well on each worker, by the port of the worker's web page.

    By the application's event log: there an executor has the addresses of its logs, which are pages of its worker.
    """
    worker_of: dict[str, int] = {}
    ended: Counter[int] = Counter()
    with event_log.open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            if event["Event"] == "SparkListenerExecutorAdded":
                page = urlsplit(event["Executor Info"]["Log Urls"]["stdout"])
                assert page.port is not None
                worker_of[event["Executor ID"]] = page.port
            elif event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                ended[worker_of[event["Task Info"]["Executor ID"]]] += 1
    return ended


def _workers_at(web_port: int) -> int | None:
    """How many workers a master has; None while it does not answer."""
    try:
        with urlopen(f"http://{HOST}:{web_port}/json/", timeout=5) as answer:
            page: dict[str, Any] = json.load(answer)
    except OSError:
        return None
    return int(page["aliveworkers"])
