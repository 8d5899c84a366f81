"""Keeps Spark to this user: its ports ask for a secret, its web pages are on loopback, its files are closed to others.

Spark itself makes up the secret where all of it is in one process (`local[…]`), and on YARN and Kubernetes. It never
stands among the settings then. A cluster of its own (`spark://…`) has to be given one by whoever runs it.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping

from strobe.data.private import own_folder
from strobe.data.scratch import user_folder
from strobe.errors import UserError
from strobe.redaction import redact

UMASK = "spark.hadoop.fs.permissions.umask-mode"
"""Decides the modes of whatever Hadoop, Spark and Delta write; and the umask of Spark's processes on this machine."""

INSECURE = "insecure"
"""Stands beside the settings of Spark in strobe.yml where a cluster without a secret is to be used all the same."""

REDACTED = "spark.redaction.regex"
_USUALLY_REDACTED = "(?i)secret|password|token|access[.]?key"
"""Spark's own default."""

_AUTHENTICATE, _SECRET = "spark.authenticate", "spark.authenticate.secret"
_ENCRYPTED = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")
_LOOPBACK = "127.0.0.1"


def authenticated(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with which Spark lets nobody in who does not know its secret. `UserError` for a cluster that would
    let anybody in, or send what it reads over the network in the clear."""
    found = {name: value for name, value in settings.items() if name != INSECURE}
    master = found.get("spark.master", "local[*]")
    if master.startswith("local"):
        found[_AUTHENTICATE] = "true"
        if master.startswith("local-cluster"):
            found.setdefault(_SECRET, secrets.token_hex(32))
        return found
    if settings.get(INSECURE) == "true":
        return found
    lacking = [] if _on(found, _AUTHENTICATE) else ["authentication"]
    lacking += [] if any(_on(found, name) for name in _ENCRYPTED) else ["encryption"]
    if lacking:
        raise UserError(
            f"Spark at {master} would be used without {' and '.join(lacking)}",
            where="strobe.yml: spark",
            fix=f"Set {_AUTHENTICATE} and {_ENCRYPTED[0]} to true, here and in the cluster; or write "
            f"`{INSECURE}: true` beside the settings, if nobody else can reach its network.",
        )
    return found


def redacted(settings: Mapping[str, str]) -> str:
    """Which settings Spark's web pages and log of events show without their values: also those that hold a secret, by
    whatever name."""
    confidential = [name for name, value in settings.items() if redact(value) != value]
    names = {re.escape(found) for name in confidential for found in (name, name.removeprefix("spark.hadoop."))}
    return "|".join([settings.get(REDACTED, _USUALLY_REDACTED), *(f"^{name}$" for name in sorted(names))])


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Spark is started on this machine, beside what this process has."""
    found = {}
    if "spark.local.dir" not in settings and "SPARK_LOCAL_DIRS" not in os.environ:
        found["SPARK_LOCAL_DIRS"] = str(own_folder(user_folder() / "spark"))
    local = settings["spark.master"].startswith("local")
    if local or _on(settings, "spark.ui.enabled"):
        found["SPARK_LOCAL_IP"] = _LOOPBACK  # where the web pages are; there is no setting for it
    if not local and "SPARK_LOCAL_IP" in found and "SPARK_LOCAL_HOSTNAME" not in os.environ:
        found["SPARK_LOCAL_HOSTNAME"] = settings.get("spark.driver.host") or _this_machine()
    return found


def _on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").strip().lower() == "true"


def _this_machine() -> str:
    """Under which address executors reach this machine: what Spark would have found out by itself."""
    return os.environ.get("SPARK_LOCAL_IP") or socket.getfqdn()
