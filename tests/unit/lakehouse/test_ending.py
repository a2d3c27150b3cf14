"""What a process does before a signal ends it: each story is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lakehouse.process.ending import SIGNALS, ending

BEGINNING = """
import os, signal, sys, threading, time
from lakehouse.process import ending as endings
from lakehouse.process.ending import ending

def act():
    time.sleep({seconds})
    print("done", flush=True)

"""
WAITS = """
with ending(act):
    print("begun", flush=True)
    time.sleep(60)
"""


def story(script: str, *, seconds: float = 0.0) -> subprocess.Popen[str]:
    """The process, as soon as it has begun."""
    command = [sys.executable, "-c", BEGINNING.format(seconds=seconds) + script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_process_as_ever_after_what_was_to_be_done(number: signal.Signals) -> None:
    # As from a shell: Python would raise KeyboardInterrupt.
    process = story(f"signal.signal(signal.SIGINT, signal.SIG_DFL)\n{WAITS}", seconds=0.2)
    process.send_signal(number)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("done\n", -number)


def test_what_takes_too_long_is_not_waited_for() -> None:
    process = story(f"endings.MAX_SECONDS = 0.3\n{WAITS}", seconds=60)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("", -signal.SIGTERM)
    assert time.monotonic() - began < 10


def test_a_second_signal_ends_the_process_at_once() -> None:
    process = story(WAITS, seconds=60)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=10)
    assert (said, process.returncode) == ("", -signal.SIGTERM)


def test_what_must_not_be_cut_off_ends_before_a_first_signal_counts() -> None:
    script = """
with ending(act) as ends:
    with ends.deferred():
        print("begun", flush=True)
        time.sleep(1)
        print("whole", flush=True)
    print("too late", flush=True)
"""
    process = story(script)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("whole\ndone\n", -signal.SIGTERM)


def test_what_must_not_be_cut_off_is_cut_off_by_a_second_signal() -> None:
    script = """
with ending(act) as ends, ends.deferred():
    print("begun", flush=True)
    time.sleep(60)
"""
    process = story(script)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=10)
    assert (said, process.returncode) == ("", -signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_so() -> None:
    script = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with ending(act):
    print("begun", flush=True)
    time.sleep(1)
print("lived", flush=True)
"""
    process = story(script)
    process.send_signal(signal.SIGHUP)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("lived\n", 0)


def test_who_handled_the_signal_before_is_asked_afterwards() -> None:
    """As Python's own handler of Ctrl-C; and one block within another."""
    script = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with ending(lambda: print("outer", flush=True)), ending(act):
        print("begun", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = story(script)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert (said, process.returncode) == ("done\nouter\ninterrupted\n", 0)


def test_the_first_process_of_a_container_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """For that one the system's way is to ignore a signal."""
    done: list[str] = []
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with ending(lambda: done.append("done")):
            kill = os.kill
            monkeypatch.setattr(os, "kill", lambda _pid, number: done.append(f"signal {number}"))
            monkeypatch.setattr(os, "_exit", lambda code: done.append(f"exit {code}"))
            kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 10
            while len(done) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["done", "signal 15", "exit 143"]


def test_handlers_are_as_they_were_after_the_block_and_in_other_threads() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    within: list[bool] = []

    def look() -> None:
        with ending(lambda: None) as ends, ends.deferred():
            within.append([signal.getsignal(number) for number in SIGNALS] == before)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert within == [True, False]
    assert [signal.getsignal(number) for number in SIGNALS] == before
