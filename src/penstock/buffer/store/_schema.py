"""Tables of the SQLite store, and how an older file becomes one of today.

Columns beside `body` repeat what a query selects, groups or sorts by; the record itself is the body. Every row is checked against its body when
it is read, so a column can be wrong but not believed. The number of the schema is SQLite's `user_version`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from penstock.errors import SchemaError

SCHEMA = 6
APPLICATION_ID = 0x50454E53
"""Marks the file as ours ("PENS")."""

# One index on groups serves the live ones, the tallies and the cursors of `load`, none of which then touches a body. It changes when a group
# changes state and not with every member, because what grows meanwhile is only filled in at the end (`ready_tokens`, `lost_longest`, `filled`).
# A group that a read took keeps its body; `spent` says under which lease and when, with a checksum of its own (see `_rows.py`).
# Members repeat environment and purpose of their group for the same reason: ten million of them are counted without a join. One that a rollout has
# filled stays as it was, pending: how many of them are `filled` is counted at their groups.
_TABLES = """
CREATE TABLE groups (
    run TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, environment TEXT NOT NULL, purpose TEXT NOT NULL, reason TEXT,
    source TEXT, cursor INTEGER, ord INTEGER NOT NULL, ready_ord INTEGER, ready_tokens INTEGER, lost_longest INTEGER, filled INTEGER,
    to_archive INTEGER, spent BLOB, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (run, id)
);
CREATE TABLE members (
    run TEXT NOT NULL, group_id TEXT NOT NULL, member INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT,
    checksum INTEGER NOT NULL, body BLOB NOT NULL, environment TEXT NOT NULL, purpose TEXT NOT NULL,
    PRIMARY KEY (run, group_id, member)
) WITHOUT ROWID;
CREATE INDEX members_by_state ON members (run, state, environment, purpose, reason);
CREATE TABLE rollouts (
    run TEXT NOT NULL, uid TEXT NOT NULL, group_id TEXT NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (run, uid)
);
CREATE INDEX rollouts_by_group ON rollouts (run, group_id);
CREATE TABLE annotations (
    run TEXT NOT NULL, group_id TEXT NOT NULL, rollout_uid TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    checksum INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run, group_id, rollout_uid, name, step)
) WITHOUT ROWID;
CREATE TABLE facts (
    run TEXT NOT NULL, kind TEXT NOT NULL, key NOT NULL, live INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run, kind, key)
) WITHOUT ROWID;
CREATE TABLE payloads (
    run TEXT NOT NULL, uid TEXT NOT NULL, content_type TEXT NOT NULL, digest TEXT NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    encoding TEXT NOT NULL DEFAULT 'plain',
    UNIQUE (run, uid)
);
CREATE TABLE journal (
    run TEXT NOT NULL, episode TEXT NOT NULL, idx INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (run, episode, idx)
);
CREATE TABLE probes (id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
INSERT INTO probes VALUES (0, 0);
"""

_GROUPS_BY_STATE = """
CREATE INDEX groups_by_state ON groups (
    run, state, environment, purpose, reason, source, cursor, ord, ready_ord, ready_tokens, lost_longest, filled
);
"""

# Holds only groups that have ended and whose bytes are still here, so that a write to any other one does not touch it.
_TO_ARCHIVE = "CREATE INDEX groups_to_archive ON groups (run, ord) WHERE to_archive = 1;"

# Facts and bytes have the same number. The index serves the look at a group and, by its last two columns, the tallies.
_ITEMS = """
CREATE TABLE items (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, uid TEXT NOT NULL, group_id TEXT NOT NULL, environment TEXT NOT NULL, failure TEXT,
    checksum INTEGER NOT NULL, facts BLOB NOT NULL,
    UNIQUE (run, uid)
);
CREATE INDEX items_by_group ON items (run, group_id, environment, failure);
CREATE TABLE item_bodies (number INTEGER PRIMARY KEY, encoding TEXT NOT NULL, body BLOB NOT NULL);
"""

_QUARANTINE = """
CREATE TABLE quarantine (
    kind TEXT NOT NULL, run TEXT NOT NULL, key TEXT NOT NULL, sentence TEXT NOT NULL, body BLOB,
    PRIMARY KEY (kind, run, key)
);
"""

MIGRATIONS = {
    # Schema 1 kept payloads only as they came, and had nowhere to set a damaged record aside.
    1: "ALTER TABLE payloads ADD COLUMN encoding TEXT NOT NULL DEFAULT 'plain';" + _QUARANTINE,
    # Schema 2 kept the bytes of ended groups for ever.
    2: """
    ALTER TABLE groups ADD COLUMN to_archive INTEGER;
    UPDATE groups SET to_archive = 1 WHERE state IN ('spent', 'dropped') OR (state = 'ready' AND purpose != 'train');
    """
    + _TO_ARCHIVE,
    # Schema 3 kept an item that arrived as a slot, a rollout and a payload. Those it has stay where they are.
    3: _ITEMS,
    # Schema 4 wrote every group that was read once more, whole.
    4: "ALTER TABLE groups ADD COLUMN spent BLOB;",
    # Schema 5 wrote every member that was filled once more. Those it has stay as they are.
    5: "ALTER TABLE groups ADD COLUMN filled INTEGER; DROP INDEX groups_by_state;" + _GROUPS_BY_STATE,
}
"""Statements that turn a file of schema n into one of schema n + 1."""


def check(connection: sqlite3.Connection, path: Path) -> int:
    """Schema of an open file, 0 for an empty one. Raises `SchemaError` for a foreign or newer one, with the way out."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        return 0
    if application != APPLICATION_ID or version < 1:
        raise SchemaError(f"{path} is a SQLite file of something else, not a penstock store; give another path")
    if version > SCHEMA:
        raise SchemaError(f"{path} has schema {version}, this penstock reads up to {SCHEMA}; update penstock, or give another path")
    return int(version)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of an empty file, or bring an older one to today's schema: in one transaction, so that a crash leaves it as it was."""
    version = check(connection, path)
    if version == SCHEMA:
        return
    if version == 0:
        script = f"PRAGMA application_id = {APPLICATION_ID};" + _TABLES + _GROUPS_BY_STATE + _TO_ARCHIVE + _QUARANTINE + _ITEMS
    else:
        script = "".join(MIGRATIONS[step] for step in range(version, SCHEMA))
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {SCHEMA}; COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
