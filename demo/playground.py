"""A broker with recorded topics to try things on: it stays until Ctrl-C.

python -m demo.playground

Writes the file `warehouse/playground.env`, which a shell sources to find the broker and the `lakehouse` command.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.__main__ import DATA, RECORDINGS
from demo.broker import embedded_broker
from demo.replay import Recorded, cut, replay
from lakehouse.process.steps import Steps, wide_console

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / "warehouse" / "playground.env"
# Three more databases, each with its own way of telling of its orders.
MORE = {
    "pg_default": {
        "pg.public.orders": "erp.public.orders",
        "__debezium-heartbeat.pg": "__debezium-heartbeat.erp",
    },
    "mysql": {"mysql.ecommerce.orders": "webshop.ecommerce.orders", "mysql": "webshop"},
    "outbox_mysql_expand": {"outboxexpand.event.mysql.orders": "app.event.orders"},
}
# A database that was recorded under another name than the packaged contracts have: as the source block names the two.
RENAMED = ('"db":"ecommerce_big2"', '"db":"ecommerce"')
# Of the big recordings so many records a partition: enough to look at, and soon read.
FIRST = 400


def main() -> int:
    """Run until Ctrl-C or TERM; the broker ends with this process."""
    console = wide_console()
    with ExitStack() as running:
        servers = running.enter_context(embedded_broker())
        folder = Path(running.enter_context(TemporaryDirectory(prefix="playground-")))
        with Steps(console).step("replay", "producing recorded change events") as note:
            topics = []
            for recording, names in {**RECORDINGS, **MORE}.items():
                source = cut(
                    DATA / f"{recording}.jsonl.gz", folder / f"{recording}.jsonl.gz", topics=names, first=FIRST
                )
                topics += list(replay(servers, source, topics=names, as_sent=as_contracts_name_it))
            note(", ".join(sorted(topics)))
        ENVIRONMENT.parent.mkdir(exist_ok=True)
        ENVIRONMENT.write_text(
            f'export LAKEHOUSE_BOOTSTRAP_SERVERS={servers}\nexport PATH="{Path(sys.executable).parent}:$PATH"\n',
            encoding="utf-8",
        )
        running.callback(ENVIRONMENT.unlink, missing_ok=True)
        console.print(f"A broker runs at {servers} until Ctrl-C. In another terminal: source {ENVIRONMENT}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            console.print("Stopping.")
    return 0


def as_contracts_name_it(record: Recorded) -> Recorded:
    """The record as it would have come from the database that the packaged contracts name."""
    if record.value is None:
        return record
    # As text: the numbers of the row stay as they were recorded. Inside a string JSON would escape these quotes.
    return replace(record, value=str(record.value).replace(*RENAMED))


if __name__ == "__main__":
    sys.exit(main())
