#!/usr/bin/env bash
# Fetches a MySQL server for the tests into the user's cache, where no MySQL is installed.
#
# Debian's stable releases have MariaDB only. The packages of unstable are fetched with apt's own checks of signatures,
# with lists of their own, and unpacked into a folder together with all libraries that they need; nothing is installed.
# The server is then started by the folder's own loader: FOLDER/run mysqld …
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/strobe/mysql"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
archive=http://deb.debian.org/debian

[ -x "$folder/run" ] && exit 0
if mysqld --version 2>/dev/null | grep -qiv mariadb; then exit 0; fi

fail() {
  echo "The tests need a MySQL server, and it could not be fetched: $1" >&2
  echo "Install MySQL 8 or newer so that mysqld is in the PATH, or try again." >&2
  exit 1
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "there is no apt here."
[ -r "$keys" ] || fail "$keys is missing (Debian's package debian-archive-keyring)."

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/new/root"
echo "deb [signed-by=$keys] $archive sid main" >"$work/sources.list"
cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "";
END
apt() { local command=$1; shift; "apt-$command" -q -c "$work/apt.conf" "$@"; }

apt get update >"$work/log" 2>&1 && ! grep -q '^[WE]:' "$work/log" || fail "$(tail -n 3 "$work/log")"
wanted=$(apt cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
  --no-enhances mysql-server-core | grep -E '^[a-z]' | grep -v perl | sort -u) || fail "sid has no mysql-server-core."
# shellcheck disable=SC2086  # one word for each package
(cd "$work/debs" && apt get download $wanted) >"$work/log" 2>&1 || fail "$(tail -n 3 "$work/log")"
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/new/root"; done

cat >"$work/new/run" <<'END'
#!/bin/sh
# Starts a program of this folder with the folder's own libraries.
root="$(dirname "$(readlink -f "$0")")/root"
program="$1"; shift
loader="$(ls "$root"/usr/lib*/ld-linux-* | head -n 1)"
libraries="$(echo "$root"/usr/lib/*-linux-gnu)"
exec "$loader" --library-path "$libraries" "$root/usr/sbin/$program" --no-defaults "--basedir=$root/usr" \
  "--lc-messages-dir=$root/usr/share/mysql" "--plugin-dir=$root/usr/lib/mysql/plugin" "$@"
END
chmod +x "$work/new/run"
"$work/new/run" mysqld --version >"$work/log" 2>&1 || fail "it does not start: $(tail -n 3 "$work/log")"
rm -rf "$folder"
mv "$work/new" "$folder"
