"""The past of a PostgreSQL database, found in another way than Strobe's: nothing here is shared with it.

Triggers write each row that comes or goes into a journal, with its transaction's id. In which order the transactions
committed, and where in the server's log, says a temporary slot on the journal alone, read through SQL. The log has a
commit a moment before its rows can be seen; so a transaction is taken down when they are.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Any

import psycopg

from strobe.algebra.bag import Bag
from strobe.demo.recorder import Change, Recorder
from strobe.errors import BrokenInvariant

LAST_LOOK_SECONDS = 20.0

_JOURNAL = """
CREATE SCHEMA archive;
CREATE TABLE archive.journal (
    number bigserial PRIMARY KEY, xid xid NOT NULL DEFAULT pg_current_xact_id()::xid,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), relation text NOT NULL, old jsonb, new jsonb);
CREATE INDEX ON archive.journal USING hash (xid);
CREATE FUNCTION archive.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO archive.journal (relation, old, new) VALUES (TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW));
    RETURN NULL;
END $$;
CREATE PUBLICATION archive FOR TABLE archive.journal;
"""

_SLOT = "SELECT pg_create_logical_replication_slot('archive', 'pgoutput', temporary => true)"

_TABLES = """
SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position)
FROM information_schema.tables JOIN information_schema.columns USING (table_schema, table_name)
WHERE table_schema = 'public' AND table_type = 'BASE TABLE' GROUP BY table_name
"""

_COMMITS = """
SELECT xid::text, max(lsn)::text
FROM pg_logical_slot_get_binary_changes('archive', NULL, NULL, 'proto_version', '1', 'publication_names', 'archive')
GROUP BY xid HAVING bool_or(get_byte(data, 0) = ascii('I')) ORDER BY max(lsn)
"""
"""The transactions that inserted into the journal; the last of their records is the commit, told with its end."""

_ROWS = """
SELECT extract(epoch FROM at)::float8, relation, old, new FROM archive.journal
WHERE xid = %s::xid ORDER BY number
"""


class PostgresRecorder(Recorder):
    """Records the tables in the schema `public`: integers and text."""

    kind = "PostgreSQL"
    look_every = 0.2

    def __init__(self, source: str, dsn: str) -> None:
        super().__init__(source)
        self._dsn = dsn
        self._columns: dict[str, list[str]] = {}
        self.waiting: list[tuple[str, str]] = []
        """Transactions that have committed, but are not visible yet."""

    def _begin(self) -> None:
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        self._connection.execute(_JOURNAL)
        self._connection.execute(_SLOT)
        self._columns = dict(self._connection.execute(_TABLES).fetchall())
        with self._connection.transaction():
            for table in self._columns:
                self._connection.execute(
                    f'CREATE TRIGGER archive AFTER INSERT OR UPDATE OR DELETE ON "{table}"'
                    " FOR EACH ROW EXECUTE FUNCTION archive.note()"
                )
            # Nobody else can write to the tables from here to the end of the transaction.
            ((here,),) = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
            self.changes.append(Change(self.order(here), time.time()))
            for table, columns in self._columns.items():
                chosen = ", ".join(f'"{column}"' for column in columns)
                self._initial[table] = Bag.of(columns, self._connection.execute(f'SELECT {chosen} FROM "{table}"'))

    def _close(self) -> None:
        self._connection.close()

    def _look(self, *, last: bool) -> None:
        end = time.monotonic() + LAST_LOOK_SECONDS
        self.waiting += self._connection.execute(_COMMITS).fetchall()
        while self.waiting:
            xid, lsn = self.waiting[0]
            rows = self._connection.execute(_ROWS, (xid,)).fetchall()
            if rows:
                self._note(self.order(lsn), rows)
                del self.waiting[0]
            elif not last:
                return
            elif time.monotonic() > end:
                raise BrokenInvariant(f"transaction {xid} has committed, but cannot be seen", where=self._where)

    def _note(self, seq: int, rows: list[tuple[Any, ...]]) -> None:
        for at, table, *images in rows:
            for image, sign in zip(images, (-1, 1), strict=True):
                if image is not None:
                    values = tuple(image[column] for column in self._columns[table])
                    self.changes.append(Change(seq, at, table, sign, values))

    @property
    def _where(self) -> str:
        return f"source {self.source}"

    def order(self, position: str) -> int:
        """A position is a place in the log, and after a sign of its own what tells this log from another."""
        high, low = position.partition("@")[0].split("/")
        return int(high, 16) << 32 | int(low, 16)

    def _place(self, position: str) -> int:
        """A position may also be somewhere between two commits."""
        return bisect_right(self.changes, self.order(position), key=lambda change: change.seq) - 1

    def _verify(self, position: str) -> None:
        if self.order(position) < self.changes[0].seq:
            raise BrokenInvariant(f"{position} is before the recording", where=self._where)
