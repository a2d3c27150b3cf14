"""Become another command, one that Linux kills as soon as the process that started it is gone, however it ended.

    python leash.py PARENT_PID[:USER] COMMAND ...

With USER, as that user: only root may ask for it. A program of its own, since running Python between fork and exec is
not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, user: str, command: list[str]) -> None:
    """Does not return, unless the parent is gone already. On other systems than Linux there is no leash."""
    if user:
        account = pwd.getpwnam(user)
        os.initgroups(user, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    # After the user: Linux forgets it when the user changes.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606  # no shell is the point


if __name__ == "__main__":
    parent, _, user = sys.argv[1].partition(":")
    main(int(parent), user, sys.argv[2:])
