-- title: the tables of the first release
-- compatible-with: 1

-- AUTOINCREMENT: an id is never used twice, so a late outcome cannot meet a stranger's row.
-- The defaults let a row be written by hand: kind, identity, data and data_hash are enough. A NULL
-- max_attempts says that group and policy are still to be taken from the kind of the node that claims the row.
-- STRICT (SQLite 3.37): a date written as text would stop each pass that reads it, so it is refused at the door.
CREATE TABLE callboard_task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    group_id BLOB,
    identity BLOB NOT NULL,
    data BLOB NOT NULL,
    data_hash BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER,
    created_at_ns INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000000),
    expires_at_ns INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440584.5) * 86400000 AS INTEGER) * 1000000),
    next_attempt_at_ns INTEGER NOT NULL DEFAULT 0,
    last_attempted_at_ns INTEGER,
    initial_backoff_ns INTEGER,
    backoff_factor REAL,
    max_backoff_ns INTEGER,
    requests INTEGER NOT NULL DEFAULT 1,
    outages INTEGER NOT NULL DEFAULT 0,
    pulled_in_ns INTEGER,
    token INTEGER NOT NULL DEFAULT 0,
    origin TEXT,
    last_error TEXT,
    -- 1: due, but behind earlier rows of its group; out of the due index so that no claim reads it in vain
    parked INTEGER NOT NULL DEFAULT 0,
    -- 1: was far from due when it was last written; which of the two indexes of identities it is in
    dormant INTEGER NOT NULL DEFAULT 0,
    -- the node that runs it
    owner INTEGER,
    -- the number of requests when it was cancelled while it ran; 0: it was not
    cancelled INTEGER NOT NULL DEFAULT 0,
    -- 1: its node's process ended while it was claimed, so it runs with nothing beside it; 2 more while it runs on
    -- although its engine was stopped in good order, so that the end of the process tells nothing against it
    alone INTEGER NOT NULL DEFAULT 0,
    -- how often in a row its node's process ended while it ran alone
    crashes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Identities are hashes, so each change to an index of them lands on a page of its own. With one index, a million
-- sleeping rows made every finished task write such a page (40 % of the drain rate); with two, due work stays in
-- the small one. The trigger makes them one constraint for rows that are written by hand.
CREATE UNIQUE INDEX callboard_task_identity ON callboard_task (identity) WHERE dormant = 0;
CREATE UNIQUE INDEX callboard_task_identity_dormant ON callboard_task (identity) WHERE dormant = 1;
CREATE TRIGGER callboard_task_identity_once BEFORE INSERT ON callboard_task
    WHEN EXISTS (SELECT 1 FROM callboard_task WHERE identity = NEW.identity AND dormant = 0)
        OR EXISTS (SELECT 1 FROM callboard_task WHERE identity = NEW.identity AND dormant = 1)
    BEGIN
        SELECT RAISE(ABORT, 'UNIQUE constraint failed: callboard_task.identity');
    END;

-- By kind first: a claim reads only the kinds it can run, however many rows of other kinds are due.
CREATE INDEX callboard_task_due ON callboard_task (kind, next_attempt_at_ns)
    WHERE state = 'pending' AND parked = 0 AND alone = 0;
CREATE INDEX callboard_task_alone ON callboard_task (next_attempt_at_ns) WHERE state = 'pending' AND alone = 1;
CREATE INDEX callboard_task_parked ON callboard_task (group_id, next_attempt_at_ns) WHERE parked = 1;
-- Which groups are occupied, and by whom.
CREATE INDEX callboard_task_running ON callboard_task (group_id, owner) WHERE state = 'running';
CREATE INDEX callboard_task_deferred ON callboard_task (kind, next_attempt_at_ns) WHERE state = 'deferred';
CREATE INDEX callboard_task_deferred_expiry ON callboard_task (expires_at_ns) WHERE state = 'deferred';
-- Only rows in backoff: what a clock that jumped back must look at.
CREATE INDEX callboard_task_backoff ON callboard_task (last_attempted_at_ns) WHERE last_error IS NOT NULL;
-- What no engine of this version writes, so it is empty and costs nothing; with it every row is in one of the indexes
-- above, in which listings look.
CREATE INDEX callboard_task_odd ON callboard_task (id)
    WHERE state NOT IN ('pending', 'running', 'deferred')
        OR state = 'pending' AND parked <> 1 AND alone <> 1 AND (parked <> 0 OR alone <> 0);

CREATE TABLE callboard_dead_task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    group_id BLOB,
    identity BLOB NOT NULL,
    data BLOB NOT NULL,
    data_hash BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER,
    created_at_ns INTEGER NOT NULL,
    expires_at_ns INTEGER NOT NULL,
    initial_backoff_ns INTEGER,
    backoff_factor REAL,
    max_backoff_ns INTEGER,
    origin TEXT,
    last_error TEXT,
    reason TEXT NOT NULL,
    died_at_ns INTEGER NOT NULL
) STRICT;

CREATE INDEX callboard_dead_task_died ON callboard_dead_task (died_at_ns);

CREATE TABLE callboard_group (
    group_id BLOB PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 0,
    own_inbox_id TEXT,
    consent TEXT NOT NULL DEFAULT 'unknown',
    active_at_ns INTEGER NOT NULL DEFAULT 0,
    is_leaving INTEGER NOT NULL DEFAULT 0,
    has_pending_leave_request INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID, STRICT;

CREATE INDEX callboard_group_pending ON callboard_group (group_id) WHERE has_pending_leave_request = 1;

CREATE TABLE callboard_group_member (
    group_id BLOB NOT NULL,
    inbox_id TEXT NOT NULL,
    is_super_admin INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, inbox_id)
) WITHOUT ROWID, STRICT;

CREATE INDEX callboard_group_member_inbox ON callboard_group_member (inbox_id);

CREATE TABLE callboard_pending_remove (
    group_id BLOB NOT NULL,
    inbox_id TEXT NOT NULL,
    message_id BLOB NOT NULL,
    requested_at_ns INTEGER NOT NULL,
    PRIMARY KEY (group_id, inbox_id)
) WITHOUT ROWID, STRICT;

CREATE TABLE callboard_node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    kinds TEXT NOT NULL,
    lease_ns INTEGER NOT NULL,
    started_at_ns INTEGER NOT NULL,
    heartbeat_at_ns INTEGER NOT NULL
) STRICT;

-- When the fleet did something that it does once: `reconcile`.
CREATE TABLE callboard_stamp (
    name TEXT PRIMARY KEY,
    at_ns INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
