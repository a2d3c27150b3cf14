"""What a process does before a signal ends it: a scheduler that moves it elsewhere sends TERM, a person Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# So long what is to be done may take. Kubernetes kills a process 30 s after TERM, systemd after 90.
MAX_SECONDS = 15.0


class Ending:
    """See `ending`, which makes it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._before: dict[int, signal._HANDLER] = {}
        self._is_deferred = False
        self._came: int | None = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A first signal that comes inside the block counts as one that comes at its end."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._came is not None:
                self._end(self._came)

    def _install(self) -> None:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # ignored under nohup; None: set by C, not ours to replace
                self._before[number] = handler
                signal.signal(number, self._handle)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._is_deferred and self._came is None:
            self._came = number
            return
        self._end(number, is_second=self._came is not None)

    def _end(self, number: int, *, is_second: bool = False) -> None:
        is_default = self._before.get(number) is signal.SIG_DFL
        self._restore()  # another signal finds what was there before, and ends the process at once
        if not is_second:
            # In a thread of its own: this one was interrupted in the middle of something, of a call to Java for one.
            acting = threading.Thread(target=self._act, name="ending", daemon=True)
            acting.start()
            acting.join(MAX_SECONDS)
        os.kill(os.getpid(), number)
        if is_default:
            os._exit(128 + number)  # the first process of a container survives a signal that it does not handle


@contextmanager
def ending(act: Callable[[], None]) -> Iterator[Ending]:
    """Inside the block, a signal that ends the process (SIGNALS) first has `act` done, for at most MAX_SECONDS.

    Then it does what it would have done before the block; a second signal does so at once. `act` runs beside the main
    thread, which waits for it. Outside of the main thread, where Python handles no signals, nothing is changed.
    """
    ending_ = Ending(act)
    if threading.current_thread() is threading.main_thread():
        ending_._install()
    try:
        yield ending_
    finally:
        ending_._restore()
