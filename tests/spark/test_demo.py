"""The demo, shortened, as `strobe demo` runs it."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from strobe.demo import demo
from strobe.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.live
@pytest.mark.timeout(900)  # a minute where nothing else runs
def test_the_demo(spark: SparkSession, tmp_path: Path, own_tmp: Path) -> None:
    """Strobe passes through no wrong state, the naive maintainer does, the audit agrees, nothing is left running."""
    before = set(threading.enumerate())
    for seconds in (8, 90):  # the longer one only where a machine is so slow that little happens in the other
        shown = io.StringIO()
        code = demo.run(seconds, tmp_path / f"demo{seconds}", Console(file=shown, width=150))
        text = shown.getvalue()
        assert code == 0, text
        counts = [re.findall(r"([\d,]+) states, ([\d,]+) wrong", line) for line in text.splitlines()]
        strobe, naive = zip(*filter(None, counts), strict=True)
        assert len(strobe) == 2 and [wrong for _, wrong in strobe] == ["0", "0"]
        assert [states for states, _ in naive] == [states for states, _ in strobe]
        enough = min(int(states.replace(",", "")) for states, _ in strobe) > 5
        if enough and any(wrong != "0" for _, wrong in naive):
            break
    else:
        pytest.fail(text)
    assert "The naive" in text and "valid" in text
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not left & {"coordinator", "committer", "maintenance", "archive-sales", "archive-billing"}
    assert not list(own_tmp.glob("strobe-demo-*"))


def test_the_demo_keeps_to_an_empty_folder(tmp_path: Path) -> None:
    """A folder with something in it is refused and left alone."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        demo.run(1, tmp_path, Console(file=io.StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
