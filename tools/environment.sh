#!/usr/bin/env bash
# Installs the packages of a tool into an environment of its own, FOLDER/.venv, as FOLDER/uv.lock pins them.
#
#   tools/environment.sh tools/dbx
#
# For tools whose packages do not go with the pipeline's. `make dbx-check` and `make bundle-check` call it, after
# tools/setup.sh, which installs uv.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orders-lakehouse}"
uv="$cache/uv-$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.txt)/bin/uv"

[ -x "$uv" ] || {
    echo "uv is missing. Run \`make setup\`." >&2
    exit 6
}
# The system's certificates and Python, as in tools/setup.sh.
UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never "$uv" sync --project "$1" --frozen --no-progress || {
    echo "$1 is not installed. Which Python it needs is in $1/pyproject.toml; what else is wrong, uv says above." >&2
    exit 6
}
