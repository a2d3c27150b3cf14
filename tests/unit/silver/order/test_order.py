"""The order is plain Python: it is read, tested and explained where no Spark is."""

from __future__ import annotations

import subprocess
import sys


def test_the_order_loads_without_spark() -> None:
    code = (
        "import sys; import silver.fold.fold, silver.order.history, silver.order.state;"
        "heavy = ','.join(m for m in ('pyspark', 'delta', 'pyarrow', 'great_expectations') if m in sys.modules);"
        "sys.exit(heavy or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
