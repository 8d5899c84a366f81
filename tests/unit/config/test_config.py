"""Reading a project: what is understood, and that every mistake is one clear message with its line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from strobe.config import model as config_model
from strobe.config.load import load_project
from strobe.config.model import FilesSource, MariadbSource, Project, SqliteSource
from strobe.errors import UserError
from strobe.planning.source_set import SourceSet
from strobe.redaction import redact

MINIMAL = """\
version: 1
project: shop
sources:
  depot: {type: sqlite, path: depot.db}
views:
  stock:
    sql: SELECT s.id FROM depot.stock s
"""

COMPLETE = """\
version: 1
project: shopdesk
warehouse: ./lake/house
retention: 12h
spark:
  spark.master: local[2]
  spark.ui.enabled: true
  spark.sql.shuffle.partitions: 010
evaluate: driver
sources:
  depot: {type: sqlite, path: depot.db}
  catalog: {type: files, path: drops/products.csv, relation: products, key: [sku], columns: {sku: string}}
  events: {type: files, path: /data/events, format: jsonl, relation: events, key: [day, id]}
views:
  stock:
    sql: |
      SELECT s.id
      FROM depot.stock s
    consistency: complete
    algorithm: sweep
    freshness: 500ms
  filed:
    file: sql/filed.sql
  tuned:
    consistency: weak
"""


def test_how_much_log_a_slot_may_keep(project: Path) -> None:
    """Sizes are PostgreSQL's, by powers of 1024."""
    asked = MINIMAL.replace(
        SOURCE, "  depot: {type: postgres, dsn: host=h, slot: {warn: 512MB, limit: 2GB, beyond: rebuild}}"
    )
    slot = load(project, asked).sources["depot"].slot  # type: ignore[union-attr]
    assert (slot.warn, slot.limit, slot.beyond) == (512 * 2**20, 2 * 2**30, "rebuild")
    silent = MINIMAL.replace(SOURCE, "  depot: {type: postgres, dsn: host=h}")
    slot = load(project, silent).sources["depot"].slot  # type: ignore[union-attr]
    assert (slot.warn, slot.limit, slot.beyond) == (2**30, None, "stop")
    for wrong in ("2", "2 GB", "2gb", "-1GB"):
        assert "slot.limit must be a size" in refused(project, asked.replace("2GB", wrong)).message
    assert "warn, limit, beyond" in refused(project, asked.replace("limit:", "limits:")).fix


def load(project: Path, text: str) -> Project:
    (project / "strobe.yml").write_text(text, encoding="utf-8")
    return load_project(project)


def refused(project: Path, text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        load(project, text)
    assert caught.value.exit_code == 2
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def write_sql(project: Path, name: str, text: str = "SELECT 1 AS one FROM depot.stock") -> None:
    file = project / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_everything_the_contract_offers(project: Path) -> None:
    """Every key of the public contract is read, with paths made absolute and durations as time spans."""
    for name in ("sql/filed.sql", "views/tuned.sql", "views/found.sql", "views/.hidden.sql"):
        write_sql(project, name, f"SELECT s.id FROM depot.stock s -- {name}")
    found = load(project, COMPLETE)
    assert (found.directory, found.name, found.evaluate) == (project.resolve(), "shopdesk", "driver")
    assert found.warehouse == project.resolve() / "lake" / "house"
    assert found.retention == timedelta(hours=12)
    assert found.spark == {
        "spark.master": "local[2]",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "010",
    }
    assert found.sources["depot"] == SqliteSource(type="sqlite", path=str(project.resolve() / "depot.db"))
    catalog, events = found.sources["catalog"], found.sources["events"]
    assert isinstance(catalog, FilesSource) and isinstance(events, FilesSource)
    assert (catalog.format, catalog.key, catalog.columns) == ("csv", ["sku"], {"sku": "string"})
    assert (events.format, events.path, events.columns) == ("jsonl", "/data/events", None)
    assert list(found.views) == ["stock", "filed", "tuned", "found"]
    stock = found.views["stock"]
    assert stock.sql == "SELECT s.id\nFROM depot.stock s\n"
    assert (stock.consistency, stock.algorithm, stock.freshness) == ("complete", "sweep", timedelta(milliseconds=500))
    origins = {name: view.origin for name, view in found.views.items()}
    assert origins == {
        "stock": "strobe.yml",
        "filed": "sql/filed.sql",
        "tuned": "views/tuned.sql",
        "found": "views/found.sql",
    }
    assert all(view.sql.rstrip().endswith(view.origin) for view in found.views.values() if view.file)
    assert found.views["tuned"].consistency == "weak"


def test_defaults(project: Path) -> None:
    """What is left out has the documented default."""
    found = load(project, MINIMAL)
    assert (found.warehouse, found.retention) == (project.resolve() / "warehouse", timedelta(days=7))
    assert (found.evaluate, found.spark) == ("auto", {})
    stock = found.views["stock"]
    assert (stock.consistency, stock.algorithm, stock.freshness) == ("strong", "auto", timedelta(seconds=1))


def test_views_only_in_files(project: Path) -> None:
    """A project may keep all its views in files and say nothing about them in strobe.yml."""
    write_sql(project, "views/stock.sql")
    for views in ("", "views:\n", "views: {}\n"):
        found = load(project, MINIMAL.partition("views:")[0] + views)
        assert list(found.views) == ["stock"]


def test_a_file_named_by_another_view_is_no_view_itself(project: Path) -> None:
    """views/raw.sql that strobe.yml uses as the view `stock` is not also the view `raw`."""
    write_sql(project, "views/raw.sql")
    found = load(project, MINIMAL.replace("sql: SELECT s.id FROM depot.stock s", "file: ./views/raw.sql"))
    assert list(found.views) == ["stock"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", timedelta(days=7)),
        ("12h", timedelta(hours=12)),
        ("5m", timedelta(minutes=5)),
        ("5s", timedelta(seconds=5)),
        ("500ms", timedelta(milliseconds=500)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    """Durations are a whole number and a unit."""
    assert config_model.parse_duration(text) == expected


SOURCE = "  depot: {type: sqlite, path: depot.db}"
FILES = "  drops: {type: files, path: a.csv, relation: r, key: [id]}"
VIEW = "    sql: SELECT s.id FROM depot.stock s"

MISTAKES = [
    # (what is replaced in MINIMAL, by what, the line, words of the message, words of the fix)
    ("version: 1\n", "", 1, "version is missing", "Add version"),
    ("version: 1", "version: 2", 1, "version cannot be 2", "Possible here: 1"),
    ("version: 1", "version: one", 1, 'version cannot be "one"', "1"),
    ("project: shop\n", "", 1, "project is missing", "Add project"),
    ("project: shop", "project: Shop-Desk", 2, "Shop-Desk is not a name", "lower-case"),
    ("project: shop", "project: 7", 2, "project must be text, not 7", "quotes"),
    ("project: shop", "project: 2024-01-02", 2, "project must be text", "quotes"),
    ("project: shop", "project: 2024-13-45", 2, "2024-13-45 is not a valid value", "quotes"),
    ("project: shop", "project: !!python/name:os.system x", 2, "not valid YAML", "syntax"),
    ("project: shop", "projct: shop", 2, "projct is not a known key", "Did you mean project?"),
    ("project: shop", "project: shop\nproject: shop", 3, "project is there twice, first on line 2", "Keep one"),
    ("project: shop", "project: shop\n7: x", 3, "key is not text", "quotes"),
    ("project: shop", "project: shop\n[a]: x", 3, "key is not text", "quotes"),
    ("project: shop", "project: shop\nretention: 7", 3, "retention must be a duration", "Change retention"),
    ("project: shop", "project: shop\nretention: 7 days", 3, "retention must be a duration", "Change retention"),
    ("project: shop", "project: shop\nretention: 999999999999d", 3, "retention must be a duration", "retention"),
    ("project: shop", "project: shop\nretention: -1d", 3, "retention must be a duration", "retention"),
    ("project: shop", "project: shop\nretention: 0d", 3, "longer than nothing", "7d"),
    ("project: shop", "project: shop\npublish: soon", 3, "publish must be a duration", "Change publish"),
    ("project: shop", "project: shop\nevaluate: sparc", 3, 'evaluate cannot be "sparc"', "Did you mean spark?"),
    ("project: shop", "project: shop\nwarehouse: s3a://bucket/x", 3, "local or mounted", "warehouse"),
    ("project: shop", "project: shop\nwarehouse: ''", 3, "warehouse is empty", "Fill it in"),
    ("project: shop", "project: shop\nwarehouse:", 3, "warehouse must be text, not empty", "quotes"),
    ("project: shop", "project: shop\nspark: fast", 3, "spark must be keys and values", "Write keys"),
    ("project: shop", "project: shop\nspark: {spark.x: [1]}", 3, "spark.spark.x must be text, not a list", "quotes"),
    ("project: shop", "project: shop\nspark: {master: x}", 3, "master is not a Spark setting", "begin with"),
    (
        "project: shop",
        "project: shop\nspark: {spark.sql.session.timeZone: CET}",
        3,
        "always runs Spark in UTC",
        "from_utc_timestamp",
    ),
    ("sources:\n" + SOURCE, "", 1, "sources is missing", "Add sources"),
    ("sources:\n" + SOURCE, "sources: {}", 3, "sources is empty", "Fill it in"),
    ("sources:\n" + SOURCE, "sources:", 3, "sources must be keys and values, not empty", "Write"),
    ("sources:\n" + SOURCE, "sources: [depot]", 3, "sources must be keys and values, not a list", "Write"),
    (SOURCE, "  depot:", 4, "sources.depot must be keys and values, not empty", "Write"),
    (SOURCE, "  depot: depot.db", 4, "sources.depot must be keys and values", "Write"),
    (SOURCE, "  depot: {path: x}", 4, "sources.depot.type is missing", "Add type"),
    (SOURCE, "  depot: {type: sqlight, path: x}", 4, 'sources.depot.type cannot be "sqlight"', "Did you mean sqlite?"),
    (SOURCE, "  depot: {type: postgres}", 4, "sources.depot.dsn is missing", "Add dsn"),
    (SOURCE, "  depot: {type: postgres, dsn: postgresql://u:pw1@h/d}", 4, "the dsn holds a password", "${DEPOT_DSN}"),
    (SOURCE, "  depot: {type: postgres, dsn: host=h password='p w'}", 4, "the dsn holds a password", "${DEPOT_DSN}"),
    (SOURCE, "  depot: {type: postgres, dsn: x, shema: y}", 4, "sources.depot.shema is not a known key", "schema?"),
    (
        SOURCE,
        "  depot: {type: postgres, dsn: x, limits: {connection: 1}}",
        4,
        "limits.connection is not a known key",
        "connections",
    ),
    (SOURCE, "  depot: {type: mariadb}", 4, "sources.depot.dsn is missing", "Add dsn"),
    (SOURCE, "  depot: {type: mariadb, dsn: mysql://u:pw1@h/d}", 4, "the dsn holds a password", "${DEPOT_DSN}"),
    (
        SOURCE,
        "  depot: {type: mariadb, dsn: x, limits: {conections: 2}}",
        4,
        "limits.conections is not a",
        "connections?",
    ),
    (SOURCE, "  depot: {type: sqlite}", 4, "sources.depot.path is missing", "Add path"),
    (SOURCE, "  depot:\n    type: sqlite\n    pth: x", 6, "sources.depot.pth is not a known key", "Did you mean path?"),
    (SOURCE, "  depot:\n    type: sqlite\n    path: x\n    pfad: y", 7, "sources.depot.pfad is not a known", "path"),
    (SOURCE, "  Depot: {type: sqlite, path: x}", 4, "Depot is not a name", "lower-case"),
    (SOURCE, "  views: {type: sqlite, path: x}", 4, "views is reserved", "another name"),
    (SOURCE, FILES.replace("a.csv", "a.txt"), 4, "which format", "Add format: csv"),
    (SOURCE, FILES.replace("a.csv", "a.txt, format: xml"), 4, 'format cannot be "xml"', "csv, jsonl, parquet"),
    (SOURCE, FILES.replace(", key: [id]", ""), 4, "sources.drops.key is missing", "Add key"),
    (SOURCE, FILES.replace("[id]", "[]"), 4, "sources.drops.key is empty", "Fill it in"),
    (SOURCE, FILES.replace("[id]", "id"), 4, "sources.drops.key must be a list", "Write a list"),
    (SOURCE, FILES.replace("[id]", "[id, id]"), 4, "key names a column twice", "once"),
    (SOURCE, FILES.replace("[id]", "[1]"), 4, "sources.drops.key.0 must be text, not 1", "quotes"),
    (SOURCE, FILES.replace("relation: r, ", ""), 4, "sources.drops.relation is missing", "Add relation"),
    (SOURCE, FILES.replace("[id]", "[id], columns: [id]"), 4, "columns must be keys and values", "Write"),
    ("  stock:\n" + VIEW, "", 5, "the project has no views", "Add a view"),
    ("views:\n  stock:\n" + VIEW, "views: {}", 5, "the project has no views", "Add a view"),
    ("views:\n  stock:\n" + VIEW, "", 1, "the project has no views", "Add a view"),
    (VIEW, "", 6, "view stock has no SQL", "views/stock.sql"),
    (VIEW, "    sql: ''", 7, "views.stock.sql is empty", "Fill it in"),
    (VIEW, "    sql: '  '", 6, "the SQL of view stock is empty", "SELECT"),
    (VIEW, "    sql: [SELECT]", 7, "views.stock.sql must be text, not a list", "quotes"),
    (VIEW, VIEW + "\n    file: x.sql", 6, "has both sql and file", "Keep one"),
    (VIEW, "    file: missing.sql", 6, "missing.sql cannot be read: No such file", "holds SQL"),
    (VIEW, VIEW + "\n    consistency: strng", 8, 'consistency cannot be "strng"', "Did you mean strong?"),
    (VIEW, VIEW + "\n    consistancy: weak", 8, "consistancy is not a known key", "Did you mean consistency?"),
    (VIEW, VIEW + "\n    freshness: soon", 8, "views.stock.freshness must be a duration", "Change"),
    (VIEW, VIEW + "\n    algorithm: 3", 8, "views.stock.algorithm must be text", "quotes"),
    ("  stock:", "  Stock:", 6, "Stock is not a name", "lower-case"),
    ("  stock:\n", "  stock:\n    sql: SELECT 1\n", 8, "sql is there twice, first on line 7", "Keep one"),
    (VIEW, VIEW + "\n  stock:\n" + VIEW, 8, "stock is there twice, first on line 6", "Keep one"),
    ("project: shop", "project: [shop", 3, "not valid YAML", "syntax"),
    ("project: shop", "project: *nobody", 2, "not valid YAML", "syntax"),
    ("project: shop", "project: &loop [*loop]", 2, "an alias stands inside", "Write the value out"),
    ("project: shop", "project: shop\n---\nproject: b", 3, "not valid YAML", "syntax"),
    ("project: shop", "\tproject: shop", 2, "not valid YAML", "syntax"),
]


@pytest.mark.parametrize(("old", "new", "line", "message", "fix"), MISTAKES, ids=[m[3] for m in MISTAKES])
def test_mistakes(project: Path, old: str, new: str, line: int, message: str, fix: str) -> None:
    """Each mistake in strobe.yml is one message with the line it is on and what to write instead."""
    assert old in MINIMAL
    error = refused(project, MINIMAL.replace(old, new, 1))
    assert message in error.message
    assert fix in error.fix
    assert error.where == f"strobe.yml: line {line}"


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "hello\n", "null\n"])
def test_a_file_that_says_nothing(project: Path, text: str) -> None:
    """An empty file, or one without keys and values, is refused with a hint where to begin."""
    assert "version: 1" in refused(project, text).fix


def test_no_project_here(project: Path) -> None:
    """A folder without strobe.yml is told apart from a broken one."""
    with pytest.raises(UserError, match=r"there is no strobe\.yml") as caught:
        load_project(project)
    assert "strobe init" in caught.value.fix
    with pytest.raises(UserError, match=r"there is no strobe\.yml"):
        load_project(project / "nowhere")


def test_unreadable_files(project: Path) -> None:
    """A strobe.yml that is a folder, or is not text, is refused by name."""
    (project / "strobe.yml").write_bytes(b"project: \xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        load_project(project)
    (project / "strobe.yml").unlink()
    (project / "strobe.yml").mkdir()
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_project(project)


def test_control_characters(project: Path) -> None:
    """Characters that YAML does not allow are a syntax error, not a crash."""
    assert "not valid YAML" in refused(project, MINIMAL + "\x00").message


def test_one_view_defined_twice(project: Path) -> None:
    """SQL in strobe.yml and in the view's own file is a clash; naming that very file is none."""
    write_sql(project, "views/stock.sql")
    assert "defined here and in views/stock.sql" in refused(project, MINIMAL).message
    write_sql(project, "views/other.sql")
    elsewhere = MINIMAL.replace("sql: SELECT s.id FROM depot.stock s", "file: views/other.sql")
    assert "defined here and in views/stock.sql" in refused(project, elsewhere).message
    itself = MINIMAL.replace("sql: SELECT s.id FROM depot.stock s", "file: views/stock.sql")
    assert list(load(project, itself).views) == ["stock", "other"]


@pytest.mark.parametrize(("name", "text"), [("views/Bad-Name.sql", "SELECT 1"), ("views/empty.sql", " \n")])
def test_bad_view_files(project: Path, name: str, text: str) -> None:
    """A file in views/ whose name no view can have, or which is empty, is refused by its path."""
    write_sql(project, name, text)
    assert refused(project, MINIMAL).where == name


def test_a_view_file_that_is_not_text(project: Path) -> None:
    """Bytes that are not UTF-8 are refused, not decoded somehow."""
    (project / "views").mkdir()
    (project / "views" / "blob.sql").write_bytes(b"SELECT '\xff'")
    assert "not UTF-8" in refused(project, MINIMAL).message


def private(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def test_secrets_come_in_and_never_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${ENV}` and `${file:…}` are replaced in sources and Spark settings, and are blotted out of any text."""
    monkeypatch.setenv("DEPOT_FILE", "topsecret.db")
    monkeypatch.setenv("CORES", "2")
    private(project / "key.txt", "hunter2hunter2\n")
    text = MINIMAL.replace("depot.db", '"${DEPOT_FILE}"').replace(
        "sources:", "spark: {spark.hadoop.key: 'k-${file:key.txt}', spark.master: 'local[${CORES}]'}\nsources:"
    )
    found = load(project, text)
    assert found.spark == {"spark.hadoop.key": "k-hunter2hunter2", "spark.master": "local[2]"}
    assert found.sources["depot"].path == str(project.resolve() / "topsecret.db")
    assert redact("no topsecret.db and k-hunter2hunter2 in 2") == "no *** and k-*** in 2"
    assert "secret.db" not in repr(found) and "hunter" not in repr(found)


def test_an_address_is_a_secret_and_so_is_its_password(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is spelt: in the address, where signs are escaped, and as the server knows it."""
    monkeypatch.setenv("DEPOT_PASSWORD", "s3cret%2Fword")
    private(project / "dsn", "mysql://strobe:0ther%3Aword@host/shop\n")
    whole = '  depot: {type: mariadb, dsn: "${file:dsn}", limits: {connections: 2, statement_timeout: 1m}}'
    part = '  other: {type: mariadb, dsn: "mysql://strobe:${DEPOT_PASSWORD}@host/shop"}'
    found = load(project, MINIMAL.replace(SOURCE, f"{whole}\n{part}"))
    depot, other = found.sources["depot"], found.sources["other"]
    assert (depot.limits.connections, depot.limits.statement_timeout.total_seconds()) == (2, 60)  # type: ignore[union-attr]
    assert (other.limits.connections, other.limits.statement_timeout.total_seconds()) == (4, 5)  # type: ignore[union-attr]
    shown = f"{found!r} {depot!r} " + redact("s3cret/word s3cret%2Fword 0ther:word mysql://strobe:0ther%3Aword@h")
    assert "s3cret" not in shown and "0ther" not in shown


def test_mysql_is_the_same_type_as_mariadb(project: Path) -> None:
    """A password in its dsn is refused too, and a misspelt key has a suggestion."""
    found = load(project, MINIMAL.replace(SOURCE, "  depot: {type: mysql, dsn: mysql://u@h/d}")).sources["depot"]
    assert isinstance(found, MariadbSource)
    for source, message in (
        ("  depot: {type: mysql, dsn: mysql://u:pw1@h/d}", "holds a password"),
        ("  depot: {type: mysql, dsn: mysql://u@h/d, xa_prefx: x}", "xa_prefx is not a known key"),
    ):
        with pytest.raises(UserError, match=message):
            load(project, MINIMAL.replace(SOURCE, source))


def test_secrets_are_only_for_sources_and_spark(project: Path) -> None:
    """Elsewhere, in a view's SQL above all, `${…}` is text like any other."""
    text = MINIMAL.replace("SELECT s.id", "SELECT '${HOME}' AS h")
    assert "${HOME}" in load(project, text).views["stock"].sql


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${STROBE_NO_SUCH}", "environment variable STROBE_NO_SUCH is not set"),
        ("x-${STROBE_NO_SUCH}-y", "environment variable STROBE_NO_SUCH is not set"),
        ("${file:secrets/none}", "secret file secrets/none cannot be read: No such file"),
        ("${file:}", "secret file"),
        ("${}", "names nothing"),
        ("${not a name}", "names nothing"),
    ],
)
def test_missing_secrets(project: Path, reference: str, message: str) -> None:
    """A secret that is not there is named, with the line that asks for it, to whoever opens the sources."""
    loaded = load(project, MINIMAL.replace("depot.db", f'"{reference}"'))
    with pytest.raises(UserError) as refused:
        SourceSet.open(loaded)
    assert message in refused.value.message
    assert refused.value.where == "strobe.yml: line 4"


def test_all_that_is_missing_is_said_at_once(project: Path) -> None:
    """Each with its line, and what to do once; Spark's settings are missing to whoever starts Spark."""
    text = MINIMAL.replace("depot.db", '"${FIRST_DSN}/${file:second}"') + "spark: {spark.x: '${THIRD}'}\n"
    loaded = load(project, text)
    with pytest.raises(UserError) as refused:
        SourceSet.open(loaded)
    assert refused.value.message.startswith(
        "2 values are missing: line 4: the environment variable FIRST_DSN is not set"
    )
    assert "line 4: the secret file second cannot be read" in refused.value.message
    assert "Set FIRST_DSN before you start Strobe." in refused.value.fix
    with pytest.raises(UserError, match="THIRD is not set"):
        _ = loaded.spark


def test_errors_quote_the_file_and_not_the_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value that came from the environment is shown as `${…}`."""
    monkeypatch.setenv("KIND", "hunter2hunter2")
    error = refused(project, MINIMAL.replace("type: sqlite", 'type: "${KIND}"'))
    assert "${KIND}" in error.message
    assert "hunter" not in str(error)


def test_the_first_mistake_is_reported(project: Path) -> None:
    """Of several mistakes the first in the file is named, so that they are mended from the top."""
    text = MINIMAL.replace("project: shop", "project: Shop") + "    freshness: x\n"
    assert refused(project, text).where == "strobe.yml: line 2"


def test_the_schema_that_ships_is_up_to_date() -> None:
    """strobe.schema.json is what `python -m strobe.config` prints."""
    shipped = Path(config_model.__file__).parent.with_name("strobe.schema.json")
    assert shipped.read_text(encoding="utf-8") == config_model.schema_text()
