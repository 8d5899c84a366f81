#!/usr/bin/env bash
# Installs the database servers that tests start on loopback, from Debian's packages, where they are missing.
set -euo pipefail

packages=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || packages+=(postgresql)
command -v mariadbd >/dev/null || packages+=(mariadb-server)
[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "The tests need ${packages[*]}: install what your system calls these." >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
