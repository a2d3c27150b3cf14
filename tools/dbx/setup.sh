#!/usr/bin/env bash
# Installs dbx into tools/dbx/.venv, as uv.lock beside this file pins it. `make dbx-setup` calls it, after
# tools/setup.sh, which installs uv.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache="${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orders-lakehouse}"
uv="$cache/uv-$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.txt)/bin/uv"

[ -x "$uv" ] || {
    echo "uv is missing. Run \`make setup\`." >&2
    exit 6
}
# The system's certificates and Python, as in tools/setup.sh.
UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never "$uv" sync --project tools/dbx --frozen --no-progress || {
    echo "dbx is not installed. It needs Python 3.10 or 3.11; what else is wrong, uv says above." >&2
    exit 6
}
