"""Applications that write orders and outbox events to both databases, by a seed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from demo.stack.database import Database

STATUSES = ("pending", "completed", "cancelled", "shipped")
# Of orders that have events in the outbox alone.
FIRST_OUTBOX_ORDER = 1_000_000
CONNECTION_SECONDS = 90.0
# In a text column of every order, and in every payload: nothing but tables may have it.
CANARY = "canary-5b1e"


@dataclass
class Writer:
    """The application of one database. Every transaction is of this seed; what the database has is the truth."""

    database: Database
    seed: int
    transactions: int = 40
    pause_seconds: float = 0.02

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # a test's, not a secret
        self.orders: list[int] = []
        self.next_order = 1
        self.next_event = 0
        self.events_of: list[int] = []

    def look(self) -> None:
        """Which orders there are now."""
        self.orders = [row["order_id"] for row in self.database.rows("SELECT order_id FROM orders ORDER BY order_id")]
        self.next_order = max([self.next_order, *(number + 1 for number in self.orders if number < FIRST_OUTBOX_ORDER)])

    def run(self) -> None:
        """All transactions, one after the other. What a crash of the database breaks off is not written again."""
        for _ in range(self.transactions):
            statements = list(self._transaction())
            try:
                with self.database.session(autocommit=False) as cursor:
                    for statement in statements:
                        cursor.execute(statement)
            except Exception:  # each driver has its own: the server is away, or ended in the middle
                if not self._wait():
                    raise
            time.sleep(self.pause_seconds)

    def _wait(self) -> bool:
        deadline = time.monotonic() + CONNECTION_SECONDS
        while time.monotonic() < deadline:
            try:
                self.look()
            except Exception:  # as above
                time.sleep(0.2)
            else:
                return True
        return False

    def _transaction(self) -> Iterator[str]:
        for _ in range(self.random.randint(1, 4)):
            yield from self.random.choice((self._insert, self._insert, self._update, self._update, self._delete))()
        if self.random.random() < 0.4:
            yield self._event()
        if self.random.random() < 0.05:
            yield from self._change_key()

    def _insert(self) -> Iterator[str]:
        numbers = range(self.next_order, self.next_order + self.random.randint(1, 5))
        self.next_order = numbers.stop
        self.orders += numbers
        rows = [
            f"({number}, {number % 97}, {self.random.choice(('NULL', '7'))}, '{self.random.choice(STATUSES)}',"
            f" {self.random.randint(0, 99999)}.{self.random.randint(0, 99):02},"
            f" '2026-0{number % 9 + 1}-11 12:00:00.{number % 999999:06}', NULL, '{CANARY} {number}')"
            for number in numbers
        ]
        yield (
            "INSERT INTO orders (order_id, customer_id, product_id, status, total_amount, created_at, updated_at, note)"
            f" VALUES {', '.join(rows)}"
        )

    def _update(self) -> Iterator[str]:
        if self.orders:
            number = self.random.choice(self.orders)
            yield (
                f"UPDATE orders SET status = '{self.random.choice(STATUSES)}', total_amount = total_amount + 0.01,"
                f" updated_at = '2026-11-0{self.random.randint(1, 9)} 01:02:03.000004' WHERE order_id = {number}"
            )

    def _delete(self) -> Iterator[str]:
        if len(self.orders) > 20:
            number = self.orders.pop(self.random.randrange(len(self.orders)))
            yield f"DELETE FROM orders WHERE order_id = {number}"

    def _change_key(self) -> Iterator[str]:
        if self.orders:
            number, new = self.random.choice(self.orders), self.next_order
            self.next_order += 1
            self.orders[self.orders.index(number)] = new
            yield f"UPDATE orders SET order_id = {new} WHERE order_id = {number}"

    def _event(self) -> str:
        self.next_event += 1
        if self.events_of and self.random.random() < 0.3:
            order = self.random.choice(self.events_of)
        else:
            order = FIRST_OUTBOX_ORDER + self.next_event
            self.events_of.append(order)
        payload = {
            "order_id": order,
            "customer_id": order % 97,
            "product_id": 7,
            "note": f"{CANARY} {self.next_event}",
            "amount": f"{self.random.randint(0, 999)}.{self.random.randint(0, 99):02}",
            "status": self.random.choice(STATUSES),
            "created_at": "2026-05-01T12:00:00",
        }
        return (
            "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload)"
            f" VALUES ('orders', '{order}', 'OrderChanged', '{json.dumps(payload)}')"
        )


@contextmanager
def writing(writers: Sequence[Writer]) -> Iterator[None]:
    """Inside the block all of them write; at its end they have written all of their transactions.

    Raises what ended one of them.
    """
    failures: list[BaseException] = []

    def run(writer: Writer) -> None:
        try:
            writer.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(writer,), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(CONNECTION_SECONDS)
        if failures:
            raise failures[0]
