#!/usr/bin/env bash
# Sets this folder up: a pinned uv, the locked packages in .venv, and Java 17. `make setup` calls it.
#
# Asks for nothing but python3 with venv. What is in the caches already is not downloaded again: a second folder
# needs no network. uv is kept beside the jars, in $LAKEHOUSE_CACHE or orders-lakehouse of the user's cache directory.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${LAKEHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orders-lakehouse}"
uv_version="$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.txt)"
uv_home="$cache/uv-$uv_version"

stop() {
    echo "$1" >&2
    exit 6
}

# bin/uv is the last thing that pip writes: where it is, the installation was finished.
install_uv() {
    [ -x "$uv_home/bin/uv" ] && return
    python3 -c 'import ensurepip' 2>/dev/null ||
        stop "python3 with venv is missing. Install it (Debian: apt-get install python3 python3-venv)."
    echo "Installing uv $uv_version into $uv_home."
    python3 -m venv --clear "$uv_home"
    "$uv_home/bin/python" -m pip install --quiet --disable-pip-version-check \
        --require-hashes --only-binary=:all: --no-deps -r tools/uv.txt
}

# The system's certificates, so that it works behind a proxy that has its own; and never a Python from elsewhere.
sync_packages() {
    UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never "$uv_home/bin/uv" sync --frozen --no-progress
}

# The same Java that Spark takes: of JAVA_HOME if that is set, else the first on PATH.
java_is_there() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])'
}

# Debian's own package, where we may install it; everywhere else it is said what to install.
install_java() {
    local as_root=()
    command -v apt-get >/dev/null || return 0
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 0
        as_root=(sudo -n)
    fi
    echo "Installing Java 17 (openjdk-17-jre-headless)."
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null
}

install_uv
sync_packages
java_is_there || install_java
java_is_there ||
    stop "Java 17 is missing. Install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one."
