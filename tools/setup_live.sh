#!/usr/bin/env bash
# Installs what the live stack takes from the system: PostgreSQL, MariaDB, libaio for MySQL, Chromium, and promtool, which
# checks the alerting rules. `make setup-live` calls it; `make chaos` with the argument libfaketime, for runs by another
# clock.
#
# Only programs: no server of the system's is made or started. MySQL itself, Kafka Connect and Debezium are pinned files.
set -euo pipefail

stop() {
    echo "$1" >&2
    exit 6
}

lacks() {
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql
    command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || echo mariadb-server-core
    command -v mariadb-install-db >/dev/null || echo mariadb-client-core
    compgen -G '/usr/lib/*/libaio.so.1' >/dev/null || compgen -G '/lib/*/libaio.so.1' >/dev/null || echo libaio1
    command -v chromium >/dev/null || echo chromium
    command -v promtool >/dev/null || echo prometheus
    [ "$1" != libfaketime ] || compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || echo libfaketime
}

mapfile -t missing < <(lacks "${1:-}")
[ "${#missing[@]}" -eq 0 ] && exit 0

advice="Install them (Debian: apt-get install --no-install-recommends ${missing[*]})."
command -v apt-get >/dev/null || stop "Missing: ${missing[*]}. $advice"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || stop "Missing: ${missing[*]}. $advice"
    as_root=(sudo -n)
fi
echo "Installing ${missing[*]}."
# Debian's package would make and start a cluster of its own.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    "${as_root[@]}" mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
# The same for a Prometheus: promtool is in its package.
if [[ " ${missing[*]} " == *" prometheus "* ]] && command -v systemctl >/dev/null; then
    "${as_root[@]}" systemctl mask --quiet prometheus.service
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
mapfile -t missing < <(lacks "${1:-}")
[ "${#missing[@]}" -eq 0 ] || stop "Still missing: ${missing[*]}. $advice"
