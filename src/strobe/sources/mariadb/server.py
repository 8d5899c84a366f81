"""What the readers and the stream of one source share: connections, the tables as last read, and what is known of the
log."""

from __future__ import annotations

from strobe.messages import Position
from strobe.sources.mariadb.catalog import Catalog
from strobe.sources.mariadb.connection import ConnectionSettings, Pool
from strobe.sources.mariadb.position import Log


class Server:
    """What the readers and the stream of one source have in common."""

    def __init__(self, settings: ConnectionSettings, log: Log | None = None) -> None:
        self.settings = settings
        self.connections = Pool(settings)
        self.catalog = Catalog(self.connections)
        self.log = log or Log(settings)
        self.charsets: dict[int, str] = {}

    def position(self, file: str, offset: int) -> Position:
        return self.log.at(file, self.connections.made, offset)
