#!/usr/bin/env bash
# Builds the documentation site from docs/ into site/; every warning is an error. `make docs` calls it.
#
# Its packages are the group `docs` of pyproject.toml, in an environment of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache="${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orders-lakehouse}"
uv="$cache/uv-$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.txt)/bin/uv"

[ -x "$uv" ] || {
    echo "uv is missing. Run \`make setup\`." >&2
    exit 6
}
# The system's certificates and Python, as in tools/setup.sh.
export UV_PROJECT_ENVIRONMENT=tools/docs_site/.venv UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never
"$uv" sync --frozen --only-group docs --no-progress --quiet
rm -rf site
# -a -E, every page from the start: of a page that it has read before, Sphinx does not warn again.
"$UV_PROJECT_ENVIRONMENT/bin/python" -m sphinx -W -q -a -E -d build/docs -b html -c tools/docs_site docs site
echo "The site is in site/index.html."
