"""Delta's jars: fetched by Ivy from wherever the user says, and given to Java only if they have the expected bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from strobe.errors import UserError
from strobe.spark import jars
from strobe.spark.jars import Jar, fetched
from strobe.spark.java import find_java_home

CONTENT = b"not really a jar"
JAR = Jar(hashlib.sha256(CONTENT).hexdigest(), "org.example", "delta-spark_x", version("delta-spark"))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A mirror with one jar, and empty caches."""
    place = tmp_path / "mirror" / "org" / "example" / JAR.artifact / JAR.version
    place.mkdir(parents=True)
    (place / JAR.name).write_bytes(CONTENT)
    pom = f"<groupId>{JAR.group}</groupId><artifactId>{JAR.artifact}</artifactId><version>{JAR.version}</version>"
    more = "<dependencies><dependency><groupId>a</groupId><artifactId>b</artifactId><version>1</version></dependency>"
    text = f"<project><modelVersion>4.0.0</modelVersion>{pom}{more}</dependencies></project>"
    (place / f"{JAR.artifact}-{JAR.version}.pom").write_text(text)
    monkeypatch.setattr(jars, "pinned", lambda: (JAR,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield {"spark.jars.repositories": f"{(tmp_path / 'mirror').as_uri()}/", "spark.jars.ivy": str(tmp_path / "ivy")}


def test_a_jar_comes_from_a_mirror_once(settings: dict[str, str], tmp_path: Path) -> None:
    """What it asks for itself is not fetched; afterwards the mirror is not needed, unless the file was changed."""
    (file,) = fetched(settings, find_java_home())
    assert file == tmp_path / "cache" / "strobe" / "jars" / JAR.name
    assert file.read_bytes() == CONTENT
    assert [f.name for f in file.parent.iterdir()] == [JAR.name]
    assert fetched({}, Path("/no/java")) == [file]
    file.write_bytes(b"exchanged")
    assert fetched(settings, find_java_home())[0].read_bytes() == CONTENT


def test_a_jar_with_other_bytes_is_refused(settings: dict[str, str], tmp_path: Path) -> None:
    """The message has both hashes, and nothing is kept that Java could be given."""
    place = tmp_path / "mirror" / "org" / "example" / JAR.artifact / JAR.version / JAR.name
    place.write_bytes(b"exchanged")
    with pytest.raises(UserError, match=f"SHA-256 is {hashlib.sha256(b'exchanged').hexdigest()}, not {JAR.sha256}"):
        fetched(settings, find_java_home())
    assert list((tmp_path / "cache" / "strobe" / "jars").iterdir()) == []


def test_settings_of_ivy_say_where_jars_are(settings: dict[str, str], tmp_path: Path) -> None:
    """They replace Maven Central altogether."""
    resolver = f'<ibiblio name="all" m2compatible="true" root="{settings.pop("spark.jars.repositories")}"/>'
    file = tmp_path / "settings.xml"
    text = f'<settings defaultResolver="all"/><resolvers>{resolver}</resolvers>'
    file.write_text(f"<ivysettings>{text}</ivysettings>")
    assert fetched({**settings, "spark.jars.ivySettings": str(file)}, find_java_home())[0].read_bytes() == CONTENT
    file.write_text("<ivysettings><settings defaultResolver='none'/></ivysettings>")
    (tmp_path / "cache" / "strobe" / "jars" / JAR.name).unlink()
    elsewhere = {"spark.jars.ivySettings": str(file), "spark.jars.ivy": str(tmp_path / "empty")}
    with pytest.raises(UserError, match="could not be fetched") as caught:
        fetched(elsewhere, find_java_home())
    assert "spark.jars.ivySettings" in caught.value.fix


def test_a_folder_that_others_can_change_is_refused(settings: dict[str, str], tmp_path: Path) -> None:
    """Somebody could exchange a jar after it was checked."""
    folder = tmp_path / "cache" / "strobe" / "jars"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(UserError, match="other users may enter"):
        fetched(settings, find_java_home())


def test_another_delta_is_refused(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jars would be unknown."""
    monkeypatch.setattr(jars, "version", lambda _: "9.9.9")
    with pytest.raises(UserError, match=r"the jars of Delta 9\.9\.9 are not known"):
        fetched(settings, find_java_home())
