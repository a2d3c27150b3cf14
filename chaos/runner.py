"""The `lakehouse` command again and again in one process, so that Spark starts once: python -m chaos.runner

A line of standard input is a JSON list of arguments. The answer is a line of JSON on standard output: its exit code,
 what it wrote to standard output, and to standard error.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from cli.main import main as command


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                command(json.loads(line))
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
        sys.stdout.write(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
