"""A steady load on `lakehouse run --trigger continuous`: how fresh the topic is, memory, and how many files there are.

python -m benchmarks.steady [--rate 1000] [--minutes 5] [--burst 0] [--keys 20000] [--heap 2g] [--seed 1]

Once the inserts of all keys are on the unified topic, changes of both sources are sent at the rate, and every one is
waited for: it has arrived when a reader of committed records meets it, or a later state of its order. What the topic
ends in is compared with the truth. With --burst so many changes more are sent at once after that, and once they have
arrived too nothing is sent for two minutes. Meanwhile, every half minute: the memory of Java and of Python (resident;
of Java it grows to the heap's size before it is flat), and the data files of the table that has most. Prints lines of
JSON, and a table at the end; ends with 1 when the topic was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import linear_regression, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Consumer, Producer
from rich.table import Table as Shown

from benchmarks import report
from benchmarks.backlog import UNIFIED, comparable, last_values
from benchmarks.load import PREFIXES, TOPICS, Table, create_topics, send, tables, write_contracts
from benchmarks.memory import in_thread, resident_mb
from demo.broker import embedded_broker
from lakehouse.process.steps import wide_console

HERE = Path(__file__).parent
SAMPLE_SECONDS = 30
QUIET_SECONDS = 120
# Of a burst so many changes are sent between two looks at the answers.
BURST_STEP = 10_000
# What a pass may take, and the first one, which starts Java and reads the inserts.
LIMIT_SECONDS = 900


@dataclass(frozen=True)
class Sample:
    """Resident memory, in MB, and the data files of the table that has most, so many seconds after the beginning."""

    second: float
    java_mb: float
    python_mb: float
    files: int
    table: str


@dataclass
class Waiting:
    """The changes that are not on the topic yet, of every order in the order of its changes; how long others took.

    `said`: what a change is known by there: status and amount, or None of a delete. `there`: the orders that the topic
    has. An order that comes and goes between two passes is never there, so its changes are not waited for.
    """

    there: set[str]
    by_key: dict[str, deque[tuple[Any, float]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, key: str, said: Any) -> None:
        """A change is sent now."""
        with self.lock:
            if said is None and key not in self.there:
                self.by_key.pop(key, None)
                return
            self.by_key.setdefault(key, deque()).append((said, time.monotonic()))

    def arrived(self, key: str, said: Any) -> None:
        """The topic has this state of the order, so all its changes up to that one."""
        now = time.monotonic()
        with self.lock:
            (self.there.discard if said is None else self.there.add)(key)
            of_key = self.by_key.get(key)
            if of_key is None or said not in [one for one, _at in of_key]:
                return
            while of_key:
                one, at = of_key.popleft()
                self.seconds.append(now - at)
                if one == said:
                    break
            if not of_key:
                del self.by_key[key]

    def left(self) -> int:
        """How many changes are waited for."""
        with self.lock:
            return sum(map(len, self.by_key.values()))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steady", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="changes a second, of both sources together")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--burst", type=int, default=0, help="changes that are sent at once at the end")
    parser.add_argument("--keys", type=int, default=20_000, help="orders of each source at the beginning")
    parser.add_argument("--heap", default="2g")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", default="steady", help="where in docs/benchmarks.md the table stands")
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    with TemporaryDirectory(prefix="steady-") as name, embedded_broker() as servers:
        folder = Path(name)
        create_topics(servers, partitions=2)
        sources = tables(seed=chosen.seed, keys=chosen.keys)
        send(servers, sources, events=chosen.keys)
        waiting = Waiting({key for table in sources for key, _row in table.unified()})
        with continuous_run(servers, folder, heap=chosen.heap) as process:
            wait_for_inserts(servers, process, orders=len(TOPICS) * chosen.keys)
            begun = time.monotonic()
            with reading(servers, waiting), sampling(process.pid, folder / "warehouse", begun) as samples:
                due = at_a_rate(chosen.rate, chosen.minutes * 60)
                sent = send_changes(servers, sources, waiting, due)
                wait_for_all(process, waiting)
                seconds = time.monotonic() - begun
                steady_seconds = list(waiting.seconds)
                burst = burst_of(servers, process, sources, waiting, count=chosen.burst) if chosen.burst else {}
        passes = (folder / "said").read_text().count("✓ publish") - 1
        truth = comparable(dict(row for table in sources for row in table.unified()))
        found, _records = last_values(servers)
        wrong = sum(found.get(key) != row for key, row in truth.items()) + len(found.keys() - truth.keys())
    told = {"sent": sent, "seconds": round(seconds, 1), "passes": passes, "never_arrived": waiting.left(), **burst}
    figures = {**told, "wrong_keys": wrong, **freshness(steady_seconds), **memory(samples)}
    print(json.dumps(figures), flush=True)
    shown = summary(figures)
    wide_console().print(shown)
    if chosen.write_docs:
        burst_too = f", then {chosen.burst:,} at once" if chosen.burst else ""
        asked = f"{chosen.rate:,} changes a second for {chosen.minutes:g} minutes{burst_too}, a heap of {chosen.heap}"
        report.write(chosen.place, shown, plots(samples), asked=asked)
    if wrong or waiting.left():
        sys.exit(1)


@contextmanager
def continuous_run(servers: str, folder: Path, *, heap: str) -> Iterator[subprocess.Popen[bytes]]:
    """`lakehouse run --trigger continuous` with a heap of this size; what it says is in the file `said`."""
    contracts = write_contracts(folder / "contracts")
    where = ["--bootstrap-servers", servers, "--warehouse", str(folder / "warehouse"), "--contracts", str(contracts)]
    how = ["--trigger", "continuous", "--spark-conf", f"spark.driver.memory={heap}"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "orders_lakehouse", "run", *where, *how],
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": f"{HERE.parent / 'src'}:{HERE.parent}"},
        )
        try:
            yield process
        except RuntimeError:
            print((folder / "said").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def require_running(process: subprocess.Popen[bytes]) -> None:
    """Raise RuntimeError when the run has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"The run has ended with {process.returncode}.")


def wait_for_all(process: subprocess.Popen[bytes], waiting: Waiting) -> None:
    """Return when everything has arrived, or has had time enough. Raises RuntimeError when the run ends before."""
    until = time.monotonic() + LIMIT_SECONDS
    while waiting.left() and time.monotonic() < until:
        require_running(process)
        time.sleep(0.5)


def burst_of(
    servers: str, process: subprocess.Popen[bytes], sources: Sequence[Table], waiting: Waiting, *, count: int
) -> dict[str, float]:
    """Send so many changes at once, wait for them, then for quiet: the seconds of sending, and until all arrived."""
    begun = time.monotonic()
    send_changes(servers, sources, waiting, range(BURST_STEP, count + BURST_STEP, BURST_STEP))
    sent = time.monotonic()
    wait_for_all(process, waiting)
    recovered = time.monotonic()
    time.sleep(QUIET_SECONDS)
    require_running(process)
    return {
        "burst": count,
        "burst_sent_seconds": round(sent - begun, 1),
        "burst_arrived_seconds": round(recovered - begun, 1),
    }


def wait_for_inserts(servers: str, process: subprocess.Popen[bytes], *, orders: int) -> None:
    """Return when the topic has so many orders. Raises RuntimeError when the run ends before, or takes too long."""
    until = time.monotonic() + LIMIT_SECONDS
    found: set[bytes | None] = set()
    with consumer(servers) as topic:
        while len(found) < orders:
            require_running(process)
            if time.monotonic() > until:
                raise RuntimeError(f"{len(found):,} of {orders:,} orders were on the topic after {LIMIT_SECONDS} s.")
            found |= {message.key() for message in topic.consume(10_000, timeout=1) if message.error() is None}


@contextmanager
def consumer(servers: str, *, offset: str = "earliest") -> Iterator[Consumer]:
    """A reader of the unified topic's committed records, also of a topic that is not there yet."""
    topic = Consumer(
        {
            **{"bootstrap.servers": servers, "group.id": f"steady {time.monotonic()}", "auto.offset.reset": offset},
            **{"isolation.level": "read_committed", "topic.metadata.refresh.interval.ms": 1000},
            **{"allow.auto.create.topics": False, "fetch.wait.max.ms": 100},
        }
    )
    topic.subscribe([UNIFIED])
    try:
        yield topic
    finally:
        topic.close()


@contextmanager
def reading(servers: str, waiting: Waiting) -> Iterator[None]:
    """Inside the block, tell `waiting` what arrives."""
    ended = threading.Event()

    def read() -> None:
        with consumer(servers) as topic:
            while not ended.is_set():
                for message in topic.consume(1000, timeout=0.2):
                    if message.error() is None:
                        row = json.loads(message.value() or b"null")
                        waiting.arrived(json.loads(message.key() or b"{}")["composite_key"], said_of(row))

    with in_thread(read, ended):
        yield


def said_of(row: Mapping[str, Any] | None) -> tuple[str, float] | None:
    """What tells one state of an order from its others."""
    return None if row is None else (row["status"], float(row["total_amount"]))


def at_a_rate(rate: int, seconds: float) -> Iterator[int]:
    """How many changes are to have been sent by now, again and again for so many seconds."""
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < seconds:
        yield int(now * rate)
        time.sleep(0.01)


def send_changes(servers: str, sources: Sequence[Table], waiting: Waiting, due: Iterable[int]) -> int:
    """Send changes of all sources in turn, each time as many as are due by then; how many."""
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random", "linger.ms": 5})
    told = [(table, table.events(), table.headers()) for table in sources]
    sent = 0
    for total in due:
        while sent < total:
            table, events, headers = told[sent % len(told)]
            key, value = next(events)
            number = json.loads(key)["order_id"]
            if value is not None:  # a tombstone says what its delete has said
                waiting.sent(f"{PREFIXES[table.kind]}-{number}", said_of(table.rows.get(number)))
            while True:
                try:
                    producer.produce(TOPICS[table.kind], key=key, value=value, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += 1
        producer.poll(0)
    # The tombstones of last deletes too: the truth has both.
    producer.flush(60)
    return sent


@contextmanager
def sampling(pid: int, warehouse: Path, begun: float) -> Iterator[list[Sample]]:
    """Inside the block, samples of the process, of Java below it, and of the warehouse."""
    ended, samples = threading.Event(), list[Sample]()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            table, files = most_files(warehouse)
            java, python = resident_mb(pid)
            samples.append(Sample(round(time.monotonic() - begun, 1), java, python, files, table))
            print(json.dumps(asdict(samples[-1])), flush=True)

    with in_thread(sample, ended):
        yield samples


def most_files(warehouse: Path) -> tuple[str, int]:
    """The table whose current version has most data files, and how many: what is added and not removed by its log."""
    most = ("", 0)
    for log in warehouse.glob("*/*/_delta_log"):
        live: set[str] = set()
        for commit in sorted(log.glob("*.json")):
            for line in commit.read_text().splitlines():
                action = json.loads(line)
                if "add" in action:
                    live.add(action["add"]["path"])
                elif "remove" in action:
                    live.discard(action["remove"]["path"])
        most = max(most, (f"{log.parent.parent.name}.{log.parent.name}", len(live)), key=lambda one: one[1])
    return most


def freshness(seconds: Sequence[float]) -> dict[str, float]:
    """The middle and the worst of how long changes took, in seconds."""
    cuts = quantiles(seconds, n=100)
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "longest": round(max(seconds), 1)}


def memory(samples: Sequence[Sample]) -> dict[str, float]:
    """How memory went in the second half of the samples, in MB a minute; and the most of it, and of files."""
    half = samples[len(samples) // 2 :]
    found: dict[str, float] = {"most_files": max(sample.files for sample in samples)}
    for name in ("java_mb", "python_mb"):
        values = [getattr(sample, name) for sample in half]
        slope = linear_regression([sample.second / 60 for sample in half], values).slope if len(half) > 1 else 0.0
        found |= {f"most_{name}": max(getattr(sample, name) for sample in samples)}
        found |= {f"{name}_a_minute": round(slope, 2)}
    return found


def summary(found: Mapping[str, float]) -> Shown:
    """Each figure in a line."""
    shown = Shown("what", "figure")
    for name, value in found.items():
        shown.add_row(name.replace("_", " "), f"{value:,}")
    return shown


def plots(samples: Sequence[Sample]) -> list[str]:
    """Memory and files by minute."""
    by_minute = {int(sample.second // 60): sample for sample in samples}
    minutes = [str(minute) for minute in by_minute]
    memory_of = [[getattr(one, name) for one in by_minute.values()] for name in ("java_mb", "python_mb")]
    return [
        report.lines("Resident memory by minute: Java, and Python", "MB", minutes, memory_of),
        report.lines("Files of the table that has most", "files", minutes, [[one.files for one in by_minute.values()]]),
    ]


if __name__ == "__main__":
    main()
