"""Fingerprints of PostgreSQL's tables: what each is at a moment, in generations. `definition` compares two.

A fingerprint holds the rows of the catalog on which a table's rows or their way into the log depend, each with the id
of the transaction that wrote it. Two looks that find the same rows prove that nobody wrote them meanwhile.

What such a row does not show is noticed where it does harm, and so counts as harmless here:

* A column had another name for a while, or the replica identity was weaker: the log describes a table as it was when a
  row was written (`transaction_builder`), and an answer names the table and the columns that it was read from
  (`reader`).
* A table was rewritten after a snapshot was taken, which may then find it empty: the reader compares the table's file.
* A partition came and went: the log names the partition of each row, which has to be there still.

A change may be in the log and not yet visible. The row that it replaced carries the id of its transaction as `xmax`. A
partition that comes replaces no row; its transaction holds locks until it is visible, and these are read *before* the
catalog. In both cases the fingerprint is left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from strobe.sources.postgres.catalog import PgTable
from strobe.sources.postgres.connection import SHOWN, Connection, ConnectionSettings

_TREE = """
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT DISTINCT ON (w.relation) w.relation, c.oid AS root
    FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS w (relation, nsp, rel, place)
    JOIN pg_namespace n ON n.nspname = w.nsp JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.rel
    ORDER BY w.relation, w.place
), below AS (
    SELECT relation, root AS id FROM wanted
    UNION SELECT b.relation, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.id
)
"""
_COMING = """
, parents AS MATERIALIZED (
    SELECT b.relation, b.id FROM below b, LATERAL (SELECT * FROM pg_class WHERE oid = b.id OFFSET 0) c
    WHERE c.relhassubclass
), held AS MATERIALIZED (
    SELECT virtualtransaction AS holder, locktype, relation AS id, mode FROM pg_locks
    WHERE EXISTS (SELECT FROM parents) AND granted AND (locktype = 'transactionid' OR locktype = 'relation'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode IN ('ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
)
SELECT DISTINCT p.relation FROM parents p JOIN held h ON h.id = p.id AND h.locktype = 'relation'
WHERE EXISTS (SELECT FROM held x WHERE x.holder = h.holder AND x.locktype = 'transactionid')
  AND EXISTS (SELECT FROM held x
              WHERE x.holder = h.holder AND x.locktype = 'relation' AND x.mode = 'AccessExclusiveLock'
              AND NOT EXISTS (SELECT FROM below b WHERE b.relation = p.relation AND b.id = x.id))
"""
"""Relations that may be getting a partition or a child: a transaction that has written something holds a lock on a
parent, and an exclusive one on a table that is not below it. VACUUM, ANALYZE, CREATE INDEX and writers hold no such
pair."""

_ROWS = """
, above AS (
    SELECT relation, root AS id FROM wanted
    UNION SELECT a.relation, i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.id
), columns AS MATERIALIZED (
    SELECT w.relation, a.*, a.xmin AS made, a.xmax AS going
    FROM wanted w JOIN pg_attribute a ON a.attrelid = w.root AND a.attnum > 0
), types AS (
    SELECT relation, atttypid AS id FROM columns WHERE atttypid >= 16384
    UNION SELECT y.relation, v.id
    FROM types y, LATERAL (SELECT * FROM pg_type WHERE oid = y.id OFFSET 0) t,
        unnest(ARRAY[t.typbasetype, t.typelem]) v (id)
    WHERE v.id >= 16384
), publication AS MATERIALIZED (
    SELECT p.*, p.xmin AS made, p.xmax AS going FROM pg_publication p WHERE pubname = %s
), facts (relation, kind, going, fact) AS (
    SELECT relation, 'root', '0'::xid, jsonb_build_array(root::int8, row_security_active(root)) FROM wanted
  UNION ALL
    SELECT b.relation, 'table', c.xmax, jsonb_build_array(c.oid::int8, c.relname, c.relkind, c.relpersistence,
        c.relreplident, c.relam::int8, c.relfilenode::int8, c.xmin::text)
    FROM below b, LATERAL (SELECT *, xmin, xmax FROM pg_class WHERE oid = b.id OFFSET 0) c
  UNION ALL
    SELECT b.relation, 'link', i.xmax, jsonb_build_array(i.inhrelid::int8, i.inhparent::int8, i.inhdetachpending,
        i.xmin::text, i.xmax = 0 AND coalesce((
            SELECT bool_and(a.cmin = s.cmin AND a.xmax = 0 AND i.cmin::text::int8 > s.cmin::text::int8)
            FROM pg_attribute s JOIN pg_attribute a ON a.attrelid = s.attrelid AND a.attnum > 0 AND a.xmin = s.xmin
            WHERE s.attrelid = i.inhrelid AND s.attnum = -1 AND s.xmin = i.xmin
              AND a.attinhcount > 0 AND NOT a.atthasdef), false))
    FROM below b JOIN pg_inherits i ON i.inhparent = b.id
  UNION ALL
    SELECT a.relation, 'above', i.xmax, jsonb_build_array(i.inhrelid::int8, i.inhparent::int8, i.xmin::text)
    FROM above a JOIN pg_inherits i ON i.inhrelid = a.id
  UNION ALL
    SELECT relation, 'column', going, jsonb_build_array(attnum, attname, attisdropped, atttypid::int8, atttypmod,
        attcollation::int8, attgenerated, made::text)
    FROM columns
  UNION ALL
    SELECT y.relation, 'type', t.xmax, jsonb_build_array(t.oid::int8, n.nspname || '.' || t.typname, t.typtype,
        t.typbasetype::int8, t.typtypmod, t.typelem::int8)
    FROM types y, LATERAL (SELECT *, xmax FROM pg_type WHERE oid = y.id OFFSET 0) t
    JOIN pg_namespace n ON n.oid = t.typnamespace
  UNION ALL
    SELECT y.relation, 'label', e.xmax, jsonb_build_array(e.oid::int8, e.enumtypid::int8, e.enumlabel, e.xmin::text)
    FROM types y JOIN pg_enum e ON e.enumtypid = y.id
  UNION ALL
    SELECT w.relation, 'key', k.xmax, jsonb_build_array(k.oid::int8, k.conkey, k.condeferrable)
    FROM wanted w JOIN pg_constraint k ON k.conrelid = w.root AND k.contype = 'p'
  UNION ALL
    SELECT w.relation, 'identity', x.xmax, jsonb_build_array(x.indexrelid::int8, x.indkey::text, x.indisvalid)
    FROM wanted w JOIN pg_index x ON x.indrelid = w.root AND x.indisreplident
  UNION ALL
    SELECT w.relation, 'publication', p.going, jsonb_build_array(p.oid::int8, p.puballtables, p.pubinsert, p.pubupdate,
        p.pubdelete, p.pubtruncate, p.pubviaroot, p.made::text)
    FROM wanted w, publication p
  UNION ALL
    SELECT a.relation, 'entry', r.xmax, jsonb_build_array(r.prrelid::int8, r.oid::int8, {narrowed}, r.xmin::text)
    FROM above a JOIN pg_publication_rel r ON r.prrelid = a.id JOIN publication p ON p.oid = r.prpubid
  {schemas}
), unsettled AS (
    SELECT x.going FROM (
        SELECT f.going, n.next + ((f.going::text::int8 - n.next + 2147483648) & 4294967295) - 2147483648 AS whole
        FROM (SELECT DISTINCT going FROM facts WHERE going <> 0) f,
             (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next) n
    ) x
    WHERE CASE pg_xact_status(x.whole::text::xid8) WHEN 'in progress' THEN true
          WHEN 'committed' THEN x.whole::text::xid8 >= pg_snapshot_xmin(pg_current_snapshot()) ELSE false END
)
SELECT relation, bool_or(moving), jsonb_object_agg(kind, found)::text FROM (
    SELECT relation, kind, bool_or(going IN (SELECT going FROM unsettled)) AS moving,
        jsonb_agg(fact ORDER BY fact) AS found
    FROM facts GROUP BY relation, kind
) k GROUP BY relation
"""
"""What is known of each relation. OFFSET 0 keeps each look-up an index scan, however many tables there are. `going` is
the transaction that replaces a row. One that is older than every transaction that this snapshot has not seen only
locked it."""

_SCHEMAS = """
  UNION ALL
    SELECT w.relation, 'schema', s.xmax, jsonb_build_array(s.oid::int8, s.xmin::text)
    FROM wanted w JOIN pg_class c ON c.oid = w.root
    JOIN pg_publication_namespace s ON s.pnnspid = c.relnamespace JOIN publication p ON p.oid = s.pnpubid
"""
NARROWED = 150000
"""The version from which on a publication can leave out rows and columns, and hold whole schemas."""


def read_fingerprints(
    connection: Connection,
    settings: ConnectionSettings,
    relations: Collection[str],
    tables: Mapping[str, PgTable],
    partitions: Mapping[str, Collection[int]],
    left: Collection[int] = (),
) -> dict[str, str]:
    """What these relations are now; empty where there is none of that name. One of which a change is under way is left
    out. It says too what is not so any more: of `tables` as they are read in this process, and of `partitions` through
    which rows came, and of those that have `left`, as the log says."""
    if not relations:
        return {}
    newer = connection.info.server_version >= NARROWED
    narrowed = "r.prqual IS NOT NULL OR r.prattrs IS NOT NULL" if newer else "false"
    facts = _TREE + _ROWS.replace("{narrowed}", narrowed).replace("{schemas}", _SCHEMAS if newer else "")
    named = [(r, *place) for r in relations for place in _places(settings.schema, r)]
    wanted = [[row[part] for row in named] for part in range(3)]
    with connection.pipeline():
        coming = connection.execute(_TREE + _COMING, wanted, prepare=True)
        shown = connection.execute(SHOWN, prepare=True)
        found = connection.execute(facts, [*wanted, settings.name], prepare=True)
        settings.check_session(shown.fetchall()[0])
        unsettled = {relation for (relation,) in coming.fetchall()}
        known = {str(relation): (moving, str(text)) for relation, moving, text in found.fetchall()}
    prints = {relation: known.get(relation, (False, "")) for relation in relations}
    settled = {r: text for r, (moving, text) in prints.items() if not moving and r not in unsettled}
    return {
        r: _completed(text, tables.get(r), partitions.get(r, ()), left) if text else "" for r, text in settled.items()
    }


def _completed(text: str, table: PgTable | None, partitions: Collection[int], left: Collection[int]) -> str:
    facts = json.loads(text)
    gone = set(partitions) - {row[0] for row in facts["table"]}
    if gone:
        facts["gone"] = sorted(gone)
    if left and (back := sorted({row[0] for row in facts["table"]} & set(left))):
        facts["back"] = back
    numbers = {row[1]: row[0] for row in facts.get("column", ()) if facts["root"][0][0] == (table and table.id)}
    if table and (mistaken := [c.name for c in table.columns if numbers.get(c.name) != c.number]):
        facts["mistaken"] = mistaken
    return json.dumps(facts, separators=(",", ":"))


def _places(schema: str, relation: str) -> list[tuple[str, str]]:
    """The schemas and names that a relation's name may stand for, the source's own schema first."""
    parts = relation.split(".")
    splits = [(".".join(parts[:n]), ".".join(parts[n:])) for n in range(1, len(parts))]
    return [(schema, relation), *splits]
