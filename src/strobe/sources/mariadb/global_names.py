"""Names of global transactions in a column: the application writes a row with one into a table of its own choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from strobe.algebra.bag import Row
from strobe.errors import UserError
from strobe.sources.base import Finding
from strobe.sources.mariadb.binlog.rows import RowPlan, TableMap, Undescribed, kind_of
from strobe.sources.mariadb.catalog import MariadbTable
from strobe.sources.mariadb.connection import ConnectionSettings, quote


@dataclass(frozen=True)
class GlobalNames:
    """Each new value of this column names a global transaction, which the transaction that wrote it is a part of."""

    table: str
    column: str

    @classmethod
    def parse(cls, text: str, where: str) -> GlobalNames:
        table, _, column = text.rpartition(".")
        if not table or not column:
            raise UserError(f"global_transactions is {text!r}", where=where, fix="Write it as `table.column`.")
        return cls(table, column)

    def plan(self, settings: ConnectionSettings, table_map: TableMap, charsets: Mapping[int, str]) -> RowPlan:
        """How to read the column of a row in the log."""
        try:
            logged = table_map.columns()
        except Undescribed as problem:
            raise settings.lost(f"table {self.table}: its rows in the binlog cannot be read: {problem}") from None
        for column in logged:
            kind = kind_of(column, charsets) if column.name == self.column else None
            if kind is not None and kind.type == "string":
                return RowPlan(logged, [self.column], [kind])
        raise settings.lost(
            f"table {self.table} has no column {self.column} of text any more, which global_transactions names"
        )

    def given(self, images: Iterable[tuple[int, Row, int]]) -> Iterator[str]:
        """The values that are new."""
        old: list[str] = []
        for sign, (text,), _ in images:
            if sign < 0:
                old = [text]
            elif text is not None and [text] != old:
                yield text

    def check(self, settings: ConnectionSettings, tables: dict[str, MariadbTable]) -> Iterator[Finding]:
        found = tables[self.table].kinds.get(self.column) if self.table in tables else None
        if found is None or found.type != "string":
            message = f"there is no column {self.column} of text in table {self.table}, or no right to read it"
            declared = f"id BIGINT AUTO_INCREMENT PRIMARY KEY, {quote(self.column)} VARCHAR(500)"
            fix = f"CREATE TABLE {quote(settings.database)}.{quote(self.table)} ({declared});"
            yield Finding("error", f"{settings.where}, global_transactions", message, fix)
