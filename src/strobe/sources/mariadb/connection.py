"""Which MariaDB or MySQL server: its address, connections to it, and its errors in Strobe's words.

A password never leaves this module but on the wire: addresses are shown without it, and the server's own messages do
not hold it.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT
from pymysql.converters import encoders
from pymysql.cursors import Cursor, SSCursor

from strobe.errors import AccessRefused, RelationLost, SourceLost, SourceUnavailable, UserError
from strobe.sources.base import Finding
from strobe.sources.hosts import is_local
from strobe.sources.mariadb.limits import Limits, Timing
from strobe.sources.mariadb.session import Session

FORMS = {b"mysql_native_password", b"caching_sha2_password", b"sha256_password", b"client_ed25519"}
"""In which a server may ask for the password; not in the clear, by a dialog, or by the old hash of 64 bits."""
PROVE = "A server on another machine has to prove its name by TLS, with a certificate of an authority that the system"
LESS = "less has to be written in dsn, as ssl_verify_identity=off or ssl=off."
OPTIONS = {"ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity", "unix_socket"}
_TIMEOUT = {1969, 3024}
_REFUSED = {1045, 1698}
_DENIED = {1044, 1142, 1143, 1227, 1370}
_MISSING = {1049, 1051, 1054, 1146}


@dataclass(frozen=True)
class Address:
    """A `mysql://` address, taken apart. Its representation shows no secret."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False, default="")
    options: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def parse(cls, dsn: str, where: str) -> Address:
        example = "mysql://user:password@host:3306/database"
        try:
            parts = urlsplit(dsn.strip())
            port = parts.port or 3306
        except ValueError:
            raise UserError("dsn is not an address", where=where, fix=f"Write it as {example}.") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme not in ("mysql", "mariadb") or not (parts.hostname or options.get("unix_socket")):
            raise UserError(
                "dsn is not the address of a MariaDB or MySQL server", where=where, fix=f"Write it as {example}."
            )
        database = unquote(parts.path.lstrip("/"))
        if not database or not parts.username:
            raise UserError("dsn names no user or no database", where=where, fix=f"Write it as {example}.")
        for option in options:
            if option not in OPTIONS:
                fix = f"Possible are {', '.join(sorted(OPTIONS))}."
                raise UserError(f"dsn has an unknown option {option}", where=where, fix=fix)
        user, password = unquote(parts.username), unquote(parts.password or "")
        return cls(parts.hostname or "localhost", port, user, database, password, options)

    def tls(self) -> ssl.SSLContext | None:
        """Away from this machine, or asked for by any of the ssl options; the certificate and its name are verified
        unless told not."""
        options = self.options
        asked = any(name.startswith("ssl") for name in options)
        if not (asked or not self.local) or _off(options.get("ssl", "on")):
            return None
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        context.check_hostname = not _off(options.get("ssl_verify_identity", "on"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
        return context

    @property
    def local(self) -> bool:
        """Whether the server is on this machine."""
        return "unix_socket" in self.options or is_local(self.host)

    def warnings(self, where: str) -> Iterator[Finding]:
        """What the address leaves open to others."""
        if self.local:
            return
        if _off(self.options.get("ssl", "on")):
            what = "ssl=off: the connection is open, and whoever answers may be another server"
            yield Finding("warning", where, what, "Take ssl out of dsn, and set up TLS at the server.")
        elif _off(self.options.get("ssl_verify_identity", "on")):
            what = "ssl_verify_identity=off: whoever answers may be any server with a certificate of the same authority"
            yield Finding("warning", where, what, "Take it out of dsn, and give the server a certificate for its name.")


def _off(text: str) -> bool:
    return text.lower() in ("0", "off", "false", "no")


class Unsafe(Exception):
    """Whoever answers asks for what an impostor would ask for."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class Connection(pymysql.connections.Connection):  # type: ignore[misc]  # the driver has no types
    """Gives the password away in no form that serves somebody else, whatever the server asks for."""

    def __init__(self, local: bool, **named: Any) -> None:
        self._local = local
        self._key: bytes | None = None
        super().__init__(**named)

    def _request_authentication(self) -> None:
        """Before anything is sent."""
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            raise Unsafe("the server does not offer TLS", f"{PROVE} or ssl_ca names; {LESS}")
        super()._request_authentication()

    def _process_auth(self, plugin_name: bytes, *more: Any) -> Any:
        """The server wants the password in another form than it said at first."""
        if plugin_name not in FORMS:
            name = plugin_name.decode("ascii", "replace")[:50]
            fix = f"Let this user have one of {', '.join(sorted(form.decode() for form in FORMS))}."
            raise Unsafe(f"the server asks for the password by {name}, which could give it to an impostor", fix)
        return super()._process_auth(plugin_name, *more)

    @property
    def server_public_key(self) -> bytes | None:
        """Which the password would be encrypted for: where no TLS has shown who sent it, only on this machine."""
        return self._key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key and not self._local:
            raise Unsafe("the server asks for the password by a key of its own, which anybody could send", "Use TLS.")
        self._key = key


@dataclass(frozen=True)
class ConnectionSettings:
    """Which database, and how hard it may be pressed."""

    source: str
    address: Address
    connections: int = 4
    statement_timeout: float = 5.0
    xa_prefix: str | None = None
    """Of the identifiers of XA transactions that name global ones; without it none does."""
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)

    @property
    def where(self) -> str:
        return f"source {self.source}"

    @property
    def database(self) -> str:
        return self.address.database

    def connect(self) -> Any:
        """A new connection in which every value comes as text or bytes, undecoded."""
        address = self.address
        try:
            tls = address.tls()
        except OSError as error:
            fix = "Mend the ssl options of dsn."
            raise UserError(f"the TLS files cannot be used: {error}", where=self.where, fix=fix) from error
        with self.errors():
            connection = Connection(
                address.local,
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                unix_socket=address.options.get("unix_socket"),
                charset="utf8mb4",
                conv=dict(encoders),
                autocommit=True,
                connect_timeout=self.timing.connect,
                read_timeout=self.statement_timeout + self.timing.answer,
                write_timeout=self.statement_timeout + self.timing.answer,
                ssl=tls,
                ssl_disabled=tls is None,
                client_flag=CLIENT.MULTI_STATEMENTS,  # MySQL's snapshots are placed in one round trip
            )
            self._begin(connection)
        return connection

    def _begin(self, connection: Any) -> None:
        session = Session.of(connection, self.database, self.statement_timeout)
        try:
            rows(connection, session.setting())
            session.verify(rows(connection, session.question())[0], self.where)
        except BaseException:
            connection._force_close()
            raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The driver's errors as Strobe's."""
        try:
            yield
        except Unsafe as error:
            raise AccessRefused(str(error), where=self.where, fix=error.fix) from error
        except pymysql.err.Error as error:
            raise self.translate(error) from error
        except (OSError, EOFError) as error:
            raise SourceUnavailable(f"the connection failed: {error}", where=self.where) from error
        except RuntimeError as error:
            if "LOAD_LOCAL" in str(error):
                raise SourceUnavailable("the server asked for a file of this machine", where=self.where) from error
            if "cryptography" not in str(error):
                raise
            raise UserError(
                "this user's password (caching_sha2_password) must not go over an open connection",
                where=self.where,
                fix="Use TLS (`?ssl=on` in dsn), or install the Python package `cryptography`.",
            ) from error

    def translate(self, error: pymysql.err.Error) -> Exception:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        if code in _TIMEOUT:
            return SourceUnavailable(
                f"a question took longer than {self.statement_timeout:g} s",
                where=self.where,
                fix="Create an index for the join (see `strobe check`), or raise limits.statement_timeout.",
            )
        if code == 1193:  # unknown system variable
            fix = "Strobe needs MariaDB 10.6, MySQL 8.0, or newer."
            return UserError(f"this server is not one that Strobe knows: {text}", where=self.where, fix=fix)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return AccessRefused(text, where=self.where, fix=f"{PROVE} or ssl_ca names; {LESS}")
        if code in _REFUSED:
            fix = "Put the right user and password where dsn takes them from, and start again."
            return AccessRefused(text, where=self.where, fix=fix)
        if code in _DENIED:
            fix = "Grant the rights that docs/sources/mariadb.md lists; see `strobe check`."
            return UserError(text, where=self.where, fix=fix)
        if code in _MISSING:
            return UserError(text, where=self.where, fix="See `strobe check`.")
        return SourceUnavailable(text, where=self.where)

    def lost(self, message: str) -> SourceLost:
        fix = "Rebuild the views that use this source: `strobe rebuild VIEW`."
        return SourceLost(message, source=self.source, where=self.where, fix=fix)

    def table_lost(self, message: str, table: str, fix: str = "") -> RelationLost:
        """Views that use this table can no longer be kept; others can."""
        where = f"{self.where}, table {table}"
        fix = fix or "Rebuild the views that use it, changed if need be: `strobe rebuild VIEW`."
        return RelationLost(message, source=self.source, relations=[table], where=where, fix=fix)


class Pool:
    """A few connections that questions share, each used by one at a time."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.made = 0
        """How many there were so far: a new one may lead to another server. What is asked of a server afterwards is
        asked of that one, or of its successor."""
        self._free = threading.BoundedSemaphore(settings.connections)
        self._idle: list[tuple[float, Any]] = []
        self._lock = threading.Lock()

    def take(self, wait: float | None = None) -> Any:
        if not self._free.acquire(timeout=self.settings.timing.free_connection if wait is None else wait):
            raise SourceUnavailable(
                f"all {self.settings.connections} connections are in use", where=self.settings.where, fix="Try again."
            )
        try:
            with self._lock:
                while self._idle:
                    since, connection = self._idle.pop()
                    if time.monotonic() - since < self.settings.timing.idle and _alive(connection):
                        return connection
                    _drop(connection)
            connection = self.settings.connect()
            with self._lock:
                self.made += 1
            return connection
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: Any, sound: bool) -> None:
        with self._lock:
            if sound:
                self._idle.append((time.monotonic(), connection))
            else:
                _drop(connection)
        self._free.release()

    @contextmanager
    def session(self, wait: float | None = None) -> Iterator[Any]:
        """A connection for one task, whose errors are Strobe's."""
        connection = self.take(wait)
        sound = False
        try:
            with self.settings.errors():
                yield connection
            sound = True
        finally:
            self.give_back(connection, sound)

    def close(self) -> None:
        with self._lock:
            for _, connection in self._idle:
                _drop(connection)
            self._idle.clear()


def _alive(connection: Any) -> bool:
    """Whether the server still answers: one that was restarted has ended the connection."""
    try:
        connection.ping(reconnect=False)
    except (pymysql.err.Error, OSError):
        return False
    return True


def _drop(connection: Any) -> None:
    connection._force_close()  # without a farewell: nobody may be there to hear it


def rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor(Cursor) as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def several(connection: Any, *statements: str) -> list[list[tuple[Any, ...]]]:
    """What several statements give that the server executes one right after the other."""
    with connection.cursor(Cursor) as cursor:
        cursor.execute("; ".join(statements))
        found = [list(cursor.fetchall())]
        while cursor.nextset():
            found.append(list(cursor.fetchall()))
        return found


def grantee(connection: Any) -> tuple[str, str]:
    """The user of a connection, and how GRANT names it."""
    ((user,),) = rows(connection, "SELECT CURRENT_USER()")
    name, _, host = user.rpartition("@")
    return user, f"{connection.escape(name)}@{connection.escape(host)}"


def streamed(connection: Any, sql: str, size: int = 1000) -> Iterator[tuple[Any, ...]]:
    """Rows as they come, never all at once in memory."""
    cursor, whole = connection.cursor(SSCursor), False
    try:
        cursor.execute(sql)
        while found := cursor.fetchmany(size):
            yield from found
        whole = True
        cursor.close()
    finally:
        if not whole:
            _abandon(connection, cursor)


def _abandon(connection: Any, cursor: Any) -> None:
    """End a connection in the middle of an answer: the driver would otherwise read all the rest of it."""
    if cursor._result is not None:
        cursor._result.unbuffered_active = False
    connection._result = cursor._result = cursor.connection = None
    connection._force_close()


def quote(*names: str) -> str:
    """An identifier in backticks: MariaDB's own rule, which the driver has no function for."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
