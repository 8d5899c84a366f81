"""What keeps other users out of Spark, as far as it is seen in how Spark is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strobe import redaction
from strobe.errors import UserError
from strobe.spark import session
from strobe.spark.isolation import environment, redacted

CLUSTER = {"spark.master": "spark://head:7077"}
SAFE = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


def test_on_one_machine_a_secret_is_always_asked_for() -> None:
    """Whatever the settings say; Spark makes it up, so that it never stands among them."""
    for more in ({}, {"spark.authenticate": "false"}, {"insecure": "true"}):
        found = session.configuration({"spark.master": "local[2]", **more})
        assert found["spark.authenticate"] == "true"
        assert "spark.authenticate.secret" not in found and "insecure" not in found


def test_processes_on_one_machine_share_a_random_secret() -> None:
    master = {"spark.master": "local-cluster[1,1,1024]"}
    first, second = (session.configuration(master)["spark.authenticate.secret"] for _ in range(2))
    assert first != second and len(first) >= 32


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head"])
@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({}, "authentication and encryption"),
        ({"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}, "authentication and encryption"),
        ({"spark.authenticate": "true"}, "encryption"),
        ({"spark.network.crypto.enabled": "true"}, "authentication"),
    ],
)
def test_a_cluster_that_lets_anybody_in_is_refused(master: str, settings: dict[str, str], lacking: str) -> None:
    """Unless strobe.yml says that this is meant."""
    unsafe = {"spark.master": master, **settings}
    with pytest.raises(UserError, match=f"would be used without {lacking}\n.*insecure: true") as refused:
        session.configuration(unsafe)
    assert refused.value.exit_code == 2
    assert session.configuration({**unsafe, "insecure": "true"})["spark.master"] == master
    assert session.configuration({**unsafe, **SAFE})["spark.master"] == master


@pytest.mark.parametrize(
    ("settings", "address", "name"),
    [
        ({"spark.master": "local[2]"}, "127.0.0.1", None),
        (CLUSTER, None, None),
        ({**CLUSTER, "spark.ui.enabled": "true", "spark.driver.host": "worker-7"}, "127.0.0.1", "worker-7"),
    ],
)
def test_web_pages_are_on_loopback(
    settings: dict[str, str], address: str | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors of a cluster reach the driver all the same."""
    for variable in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(variable, raising=False)
    found = environment(settings)
    assert (found.get("SPARK_LOCAL_IP"), found.get("SPARK_LOCAL_HOSTNAME")) == (address, name)


def test_settings_with_secrets_are_redacted_by_their_names() -> None:
    """Java's regular expressions, as Spark takes them, are Python's here."""
    redaction.learn(["an account"])
    given = {"spark.hadoop.fs.lake.account": "an account", "spark.plain": "of an account", "spark.plainer": "x"}
    for settings, usual in (({}, "spark.my.Password"), ({"spark.redaction.regex": "mine"}, "spark.mine")):
        pattern = re.compile(redacted({**settings, **given}))
        for name in ("spark.hadoop.fs.lake.account", "fs.lake.account", "spark.plain", usual):
            assert pattern.search(name)
        assert not pattern.search("spark.plainer")
    redaction.forget()


def test_what_spark_needs_for_a_while_is_in_this_users_folder(own_tmp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    found = session.configuration({})
    options = found["spark.driver.extraJavaOptions"]
    (folder,) = own_tmp.iterdir()
    assert f"-Djava.io.tmpdir={folder}/java" in options
    assert environment(found)["SPARK_LOCAL_DIRS"] == f"{folder}/spark"
    assert "SPARK_LOCAL_DIRS" not in environment({**found, "spark.local.dir": "/elsewhere"})
