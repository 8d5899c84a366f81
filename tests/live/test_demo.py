"""The demo, shortened, as `strobe demo` runs it."""

from __future__ import annotations

import io
import re
import tempfile
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
def test_the_demo(spark: SparkSession, tmp_path: Path) -> None:
    """Strobe passes through no wrong state, the naive maintainer does, the audit agrees, nothing is left running."""
    before = set(threading.enumerate())
    folders = set(Path(tempfile.gettempdir()).glob("strobe-demo-*"))
    shown = io.StringIO()
    code = demo.run(8, tmp_path / "demo", Console(file=shown, width=150))
    text = shown.getvalue()
    assert code == 0, text
    for view in ("open_orders", "paid_orders"):
        strobe, naive = re.findall(r"([\d,]+) states, ([\d,]+) wrong", next(x for x in text.splitlines() if view in x))
        assert strobe[1] == "0" and int(strobe[0].replace(",", "")) > 5
        assert naive[0] == strobe[0]
    assert re.search(r"[1-9][\d,]* wrong", text)
    assert "The naive" in text and "valid" in text
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not left & {"coordinator", "committer", "caretaker", "archive-sales", "archive-billing"}
    assert set(Path(tempfile.gettempdir()).glob("strobe-demo-*")) <= folders


def test_the_demo_keeps_to_an_empty_folder(tmp_path: Path) -> None:
    """A folder with something in it is refused and left alone."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        demo.run(1, tmp_path, Console(file=io.StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
