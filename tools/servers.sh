#!/usr/bin/env bash
# Installs the database servers that tests start on loopback, from Debian's packages, where they are missing; two
# versions of MySQL, which Debian's stable releases do not have, are unpacked into the user's cache.
set -euo pipefail

packages=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || packages+=(postgresql)
command -v mariadbd >/dev/null || packages+=(mariadb-server)
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "The tests need ${packages[*]}: install what your system calls these." >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
fi

"$(dirname "$0")/mysql.sh" || echo "Tests that need MySQL will be skipped." >&2
"$(dirname "$0")/mysql8.sh" || echo "Tests that need MySQL 8.0 will be skipped." >&2
