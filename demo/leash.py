"""Become another command, one that Linux kills as soon as the process that started it is gone, however it ended.

    python leash.py PARENT_PID COMMAND ...

A program of its own, since running Python between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    """Does not return, unless the parent is gone already. On other systems than Linux there is no leash."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606  # no shell is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
