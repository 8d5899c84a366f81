"""The variables of a session on which answers depend, set on every connection and then read back.

A server gives a new session the global values of all variables, and runs `init_connect` in it: either may cut answers
off, change how values are written, or lead to another database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from strobe.errors import UserError

Value = str | int | float

VARIABLES: Mapping[str, Value] = {
    "sql_mode": "STRICT_ALL_TABLES",
    "time_zone": "+00:00",
    "lc_time_names": "en_US",
    "div_precision_increment": 4,
    "sql_select_limit": 2**64 - 1,
    "max_join_size": 2**64 - 1,
    "sql_big_selects": 1,
    "sql_auto_is_null": 0,
    "autocommit": 1,
    "completion_type": "NO_CHAIN",
    "sql_safe_updates": 0,
    "sql_quote_show_create": 1,
    "group_concat_max_len": 2**20,
    "net_write_timeout": 600,
    "net_read_timeout": 600,
    **{f"character_set_{what}": "utf8mb4" for what in ("client", "connection", "results")},
}
"""What decoding relies on: answers that are whole, UTC, no padding of CHAR, backslash escapes, snapshots that stay. And
no transaction writes."""
MARIADB: Mapping[str, Value] = {"tx_isolation": "REPEATABLE-READ", "tx_read_only": 1, "old_mode": ""}
MYSQL: Mapping[str, Value] = {
    "transaction_isolation": "REPEATABLE-READ",
    "transaction_read_only": 1,
    "show_create_table_verbosity": 0,
    "use_secondary_engine": "OFF",
}


def is_mysql(connection: Any) -> bool:
    return "mariadb" not in connection.get_server_info().lower()


@dataclass(frozen=True)
class Session:
    """What a session has to be like."""

    database: str
    variables: Mapping[str, Value]

    @classmethod
    def of(cls, connection: Any, database: str, statement_timeout: float) -> Session:
        wait = {"lock_wait_timeout": max(1, int(statement_timeout))}
        if is_mysql(connection):
            return cls(database, {**VARIABLES, **MYSQL, **wait, "max_execution_time": round(statement_timeout * 1000)})
        return cls(database, {**VARIABLES, **MARIADB, **wait, "max_statement_time": round(statement_timeout, 3)})

    def setting(self) -> str:
        """The statement that makes it so."""
        values = {name: repr(value) for name, value in self.variables.items()}
        return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in values.items())

    def question(self) -> str:
        """Asks for a row that `verify` can judge."""
        return f"SELECT DATABASE(), {', '.join(f'@@SESSION.{name}' for name in self.variables)}"

    def verify(self, found: Sequence[Any], where: str) -> None:
        """Raise unless the session is as it has to be."""
        expected = {"database": self.database, **self.variables}
        for (name, wanted), value in zip(expected.items(), found, strict=True):
            if isinstance(wanted, str):
                same = str(value).lower() == wanted.lower()
            else:
                same = Decimal(str(value)) == Decimal(str(wanted))
            if not same:
                message = f"{name} is {value} in a session of Strobe, although it was set to {wanted}"
                fix = "Look for what changes it for every session: init_connect, a proxy, or a limit of this user."
                raise UserError(message, where=where, fix=fix)
