"""Files of large answers go with the run that asked for them, without a JVM."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strobe.data.scratch import READS, Scratch
from strobe.messages import Query
from strobe.spark import answering
from strobe.spark.answering import LargeAnswers


def test_an_answer_that_comes_after_the_run_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it is not waited for at the end."""
    scratch = Scratch(tmp_path)
    anything: Any = None
    answers = LargeAnswers(lambda: anything, lambda _: anything, scratch)
    lease = scratch.lease(READS)

    def read(*_: object) -> Any:
        lease.folder.mkdir(parents=True)
        answers.close()
        return (), SimpleNamespace(lease=lease, seen=None)

    monkeypatch.setattr(answering.staging, "answer", read)
    source: Any = SimpleNamespace(name="shop", reader=lambda: None, elsewhere=lambda: nullcontext(lambda _: None))
    answers.answer(source, Query("v", 1, "shop", ()))
    assert not lease.folder.exists()
