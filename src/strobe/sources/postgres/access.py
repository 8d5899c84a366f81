"""To which servers a PostgreSQL password and the data may go, and in which form.

libpq by itself encrypts where the server wants to, verifies nothing, and sends the password in whatever form the server
asks for: one that answers in place of the right one has it. So a dsn that says nothing else means:

* The password proves itself and is never sent: `require_auth=scram-sha-256`. A server on this machine may also ask for
  nothing (`none`: trust and peer), as may one that was shown a client's certificate.
* Away from this machine the server has proven its name: `sslmode=verify-full`, by the authorities of the system where
  no others are named.

Less has to be written in the dsn, where `strobe check` warns of it; `PGSSLMODE` and `PGREQUIREAUTH` in the environment
change nothing about it. Every host of a dsn counts. Whatever decides where a connection goes counts, too: `PGHOST`
and `PGHOSTADDR`, as libpq takes them; what a service file says is not looked into, and taken to be another machine.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from psycopg import pq

from strobe.sources.base import Finding
from strobe.sources.hosts import is_local

OLDEST_LIBPQ = 160000
"""The first that can be told how a password may be sent."""
SCRAM, NONE = "scram-sha-256", "none"
TRUSTED_FORMS = {SCRAM, NONE, "gss", "sspi"}
"""In which an impostor learns nothing that is a password."""
OWN_AUTHORITIES = Path("~/.postgresql/root.crt")
"""Those that libpq trusts where no others are named."""

UNPROVEN = ("does not support SSL", "certificate", "host name must be specified for a verified")
"""In libpq's words: the server has not proven its name. A connection that was lost is something else."""

Parameters = Mapping[str, str]


def too_old() -> bool:
    """Whether libpq cannot be told how a password may be sent."""
    return pq.version() < OLDEST_LIBPQ


def stays_here(given: Parameters) -> bool:
    """Whether all servers that these parameters of a dsn lead to are on this machine."""
    if given.get("service") or os.environ.get("PGSERVICE"):
        return False
    places = _effective(given, "hostaddr") or _effective(given, "host")
    return all(is_local(place.strip()) for place in places.split(",") if place.strip())


def _effective(given: Parameters, name: str) -> str:
    return given.get(name, os.environ.get(f"PG{name.upper()}", ""))


def defaults(given: Parameters) -> dict[str, str]:
    """What the parameters of a dsn leave open and Strobe does not."""
    found = {"require_auth": ",".join(_forms(given)), "gssencmode": "disable"}
    if not stays_here(given):
        found["sslmode"] = "verify-full"
    if (given.get("sslmode") or found.get("sslmode")) == "verify-full" and not _names_authorities(given):
        found["sslrootcert"] = ssl.get_default_verify_paths().cafile or "system"
    return {name: value for name, value in found.items() if name not in given}


def _forms(given: Parameters) -> list[str]:
    return [SCRAM, NONE] if stays_here(given) or given.get("sslcert") else [SCRAM]


def _names_authorities(given: Parameters) -> bool:
    named = "sslrootcert" in given or given.get("service") or os.environ.get("PGSERVICE")
    return bool(named or os.environ.get("PGSSLROOTCERT") or OWN_AUTHORITIES.expanduser().exists())


def warnings(given: Parameters, where: str) -> Iterator[Finding]:
    """What a dsn says that leaves the password or the data open to others."""
    away, mode = not stays_here(given), given.get("sslmode", "verify-full")
    verified = not away or mode == "verify-full"
    if not verified:
        what = {
            "require": "the connection is encrypted, but whoever answers may be another server",
            "verify-ca": "whoever answers may be any server with a certificate of the same authority",
        }.get(mode, "the connection may be open, and whoever answers may be another server")
        yield Finding("warning", where, f"sslmode={mode}: {what}", "Take sslmode out of dsn, or make it verify-full.")
    asked = given.get("require_auth")
    forms = TRUSTED_FORMS if asked is None else {form.strip() for form in asked.split(",")}
    if "password" in forms and away and verified:
        forms = forms - {"password"}  # inside TLS, to a server that has proven its name
    if not forms <= TRUSTED_FORMS:
        what = f"require_auth={asked}: whoever answers in place of the server can ask for the password"
        fix = "Take require_auth out of dsn, and let the server use scram-sha-256 (password_encryption, pg_hba.conf)."
        yield Finding("warning", where, what, fix)


def refused(text: str) -> str:
    """What to do if libpq would not go on with whoever answered, by its words for it; empty if it is something else."""
    if "authentication method requirement" in text:
        return (
            "Whoever answers does not let this user in by scram-sha-256. If it is your server, let it "
            "(password_encryption, pg_hba.conf, and set the password again); other ways have to be written in dsn, as "
            "require_auth=…: an impostor could ask for them too."
        )
    if any(words in text for words in UNPROVEN):
        return (
            "A server on another machine has to prove its name by TLS, with a certificate of an authority that the "
            "system or sslrootcert names; less has to be written in dsn, as sslmode=…"
        )
    return ""
