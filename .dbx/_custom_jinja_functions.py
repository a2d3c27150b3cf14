"""What conf/deployment.yml.j2 knows as `custom`. dbx loads this file by its path; the functions are in tools/dbx."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.dbx.workflows import deployment

__all__ = ["deployment"]
