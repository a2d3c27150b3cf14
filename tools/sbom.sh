#!/usr/bin/env bash
# Writes dist/sbom.json: the bill of materials (CycloneDX 1.5) of what the wheel and a local Spark need. `make sbom` calls it.
#
# The packages are those of uv.lock with their hashes, the jars those of src/lakehouse/spark/jars.yaml with theirs.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orders-lakehouse}"
uv="$cache/uv-$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.txt)/bin/uv"

[ -x "$uv" ] || {
    echo "uv is missing. Run \`make setup\`." >&2
    exit 6
}
mkdir -p dist
"$uv" export --frozen --offline --no-default-groups --all-extras --format cyclonedx1.5 --quiet | .venv/bin/python -m tools.sbom >dist/sbom.json
echo "The bill of materials is in dist/sbom.json."
