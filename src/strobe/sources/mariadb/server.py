"""What the readers and the stream of one source share: connections, the tables as last read, and what is known of the
log."""

from __future__ import annotations

from strobe.messages import Position
from strobe.sources.mariadb.catalog import Catalog
from strobe.sources.mariadb.connection import Connections, Place
from strobe.sources.mariadb.position import Log


class Shared:
    """What the readers and the stream of one source have in common."""

    def __init__(self, place: Place, log: Log | None = None) -> None:
        self.place = place
        self.connections = Connections(place)
        self.catalog = Catalog(self.connections)
        self.log = log or Log(place)
        self.charsets: dict[int, str] = {}

    def position(self, file: str, offset: int) -> Position:
        return self.log.at(file, self.connections.made, offset)
