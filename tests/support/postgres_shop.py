"""A small project over a PostgreSQL database, whose coordinator runs in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from service_shop import Shop

from strobe.config.load import load_project
from strobe.planning.topology import assemble

TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, tags text[]);
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO orders VALUES (10, 1, NULL);
"""
PROJECT = """
version: 1
project: shop
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}"}
views:
  people: {sql: "SELECT id, name FROM sales.customers", freshness: 50ms}
  placed: {sql: "SELECT id, tags FROM sales.orders", freshness: 50ms}
  pairs: {sql: "SELECT o.id, c.id AS c, c.name FROM sales.orders o JOIN sales.customers c ON c.id = o.customer",
          freshness: 50ms}
"""


class PgShop(Shop):
    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        yml: str = PROJECT,
        tables: str = TABLES,
    ) -> None:
        self.server, self.database = server, server.database(tables)
        monkeypatch.setenv("SALES_DSN", server.dsn(self.database))
        super().__init__(folder, spark, yml)

    def prepare(self) -> None:
        topology = assemble(load_project(self.folder))
        for name, source in topology.sources.items():
            relations = [relation.name for relation in topology.relations(name)]
            if name == "sales":
                self.server.publish(self.database, source.prepare_script(relations))
            source.prepare(relations)
        topology.sources.close()

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.server.execute(self.database, statement)
