"""What a JVM prints comes into its log without secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from strobe.redaction import learn
from strobe.spark.output import RedactedLog

CHILD = r"""
import os, sys
os.write(1, b"url postgresql://strobe:hunter%202@db/shop\nhunter 2\n\xff\x1b[31m\n")
os.write(2, b"x" * 2_000_000 + b" hunter 2 in a long line\nand hunt")
os.write(2, b"er 2 at the end")
"""


def test_what_a_process_prints_has_no_secrets_in_the_log(tmp_path: Path) -> None:
    """In any form, in pieces, at the end without a line's end; what is no text is escaped, and nothing is lost."""
    learn(["hunter 2"])
    path = tmp_path / "spark.log"
    path.write_text("before\n")
    path.chmod(0o600)
    log = RedactedLog(path)
    assert log.begin == len("before\n")
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=log.stream, stderr=log.stream)
    log.close()
    log.join(60)
    assert child.wait(60) == 0
    text = path.read_text()
    assert text.startswith("before\nurl postgresql://strobe:***@db/shop\n***\n\\udcff\\x1b[31m\nxxx")
    assert text.endswith("x *** in a long line\nand *** at the end") and "hunt" not in text
    assert text.count("x") > 2_000_000
