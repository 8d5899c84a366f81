"""Writes src/strobe/spark/jars.sha256: the jars that Delta needs and Spark does not bring, with their hashes.

    python tools/jars.py            # for the installed pyspark and delta-spark

Ivy resolves Delta's own description from Maven Central, in an empty cache; what Spark has in any version is left out.
Read the difference before you commit it: this is where trust in a jar begins.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pyspark

from strobe.spark.java import find_java_home

TARGET = Path(__file__).parent.parent / "src" / "strobe" / "spark" / "jars.sha256"
HEAD = "# The jars of Delta that Spark does not bring, by SHA-256. `python tools/jars.py` writes this file."


def main() -> int:
    spark = ".".join(version("pyspark").split(".")[:2])
    delta = ["io.delta", f"delta-spark_{spark}_2.13", version("delta-spark")]
    bundled = Path(pyspark.__file__).parent / "jars"
    brought = {without_version(jar.name) for jar in bundled.glob("*.jar")}
    with tempfile.TemporaryDirectory() as folder:
        pattern = "[organisation]/[artifact]/[revision].[ext]"
        command = [str(find_java_home() / "bin" / "java"), "-cp", str(next(bundled.glob("ivy-*.jar")))]
        command += ["org.apache.ivy.Main", "-warn", "-cache", f"{folder}/cache", "-dependency", *delta]
        command += ["-confs", "default", "-retrieve", f"{folder}/jars/{pattern}", "-types", "jar", "bundle"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        lines = []
        for jar in sorted(Path(folder, "jars").glob("*/*/*.jar")):
            group, artifact, revision = jar.parent.parent.name, jar.parent.name, jar.stem
            if artifact not in brought:
                lines.append(f"{sha256(jar.read_bytes()).hexdigest()}  {group}:{artifact}:{revision}\n")
    TARGET.write_text(f"{HEAD}\n\n{''.join(lines)}", encoding="ascii")
    print(f"{TARGET.name}: {len(lines)} jars")
    return 0


def without_version(name: str) -> str:
    return re.sub(r"-\d[^/]*\.jar$", "", name)


if __name__ == "__main__":
    sys.exit(main())
