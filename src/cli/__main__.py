"""`python -m cli`, and the file that spark-submit runs: `lakehouse`, in the Java that spark-submit has started."""

from __future__ import annotations

import sys
from pathlib import Path

# A file that is run by its path finds the modules beside it by their bare names, before all others.
if sys.path[0] == str(Path(__file__).parent):
    del sys.path[0]

from cli.main import main

if __name__ == "__main__":
    main()
