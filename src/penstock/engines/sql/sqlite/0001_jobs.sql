-- The first schema of an embedded store.
--
-- One table holds a job from its entry to its pruning: finishing a job rewrites its row instead of
-- moving it, and every index is partial, so that a finished job costs the hot paths nothing.

CREATE TABLE job (
  entry          INTEGER PRIMARY KEY,                -- its first ticket, so none is used twice
  id             TEXT    NOT NULL UNIQUE,
  task           TEXT    NOT NULL,
  queue          TEXT    NOT NULL,
  priority       INTEGER NOT NULL,
  state          TEXT    NOT NULL,
  enqueued_at    REAL    NOT NULL,
  enqueued_by    TEXT    NOT NULL DEFAULT '',
  hold           TEXT,
  hold_cause     TEXT,
  hold_until     REAL,
  line           TEXT,                               -- its key line ('': no key), if it could start in
                                                     -- a queue whose keys take turns; else of no meaning
  seq            INTEGER NOT NULL,
  run_at         REAL,
  expires_at     REAL,
  claim          INTEGER NOT NULL DEFAULT 0,
  attempt        INTEGER NOT NULL DEFAULT 0,
  failures       INTEGER NOT NULL DEFAULT 0,
  crashes        INTEGER NOT NULL DEFAULT 0,
  rescues        INTEGER NOT NULL DEFAULT 0,
  worker         TEXT,
  started        INTEGER NOT NULL DEFAULT 0,
  cancel_reason  TEXT,
  key            TEXT,
  unique_key     TEXT,
  unique_until   TEXT    NOT NULL DEFAULT 'done',
  at_most_once   INTEGER NOT NULL DEFAULT 0,
  name           TEXT,
  tags           TEXT,                               -- JSON array
  correlation_id TEXT,
  claimed_at     REAL,
  finished_at    REAL,
  reason         TEXT,
  progress       REAL,
  note           TEXT,
  signed_claim   INTEGER,                            -- the last claim that was settled but not
  signed_by      TEXT,                               -- final, and by which worker (law 2)
  revision       INTEGER NOT NULL DEFAULT 0,         -- grows with every change but a start and progress
  keep           REAL    NOT NULL DEFAULT 604800,    -- seconds after its end,
  keep_failed    REAL    NOT NULL DEFAULT 2592000,   -- or if it has failed
  meta           TEXT,                               -- JSON object
  -- What can be large comes last: reading a column that stands behind it would read all of it.
  payload        BLOB    NOT NULL,
  result         BLOB,
  errors         TEXT,                               -- JSON array, one object per bad attempt
  checkpoint     BLOB
);

-- Law 7: only what could start now stands in the claim index, and a second time in its key line.
CREATE INDEX job_claim    ON job (queue, priority, seq)        WHERE state = 'ready' AND hold IS NULL;
CREATE INDEX job_line     ON job (queue, priority, line, seq)
       WHERE state = 'ready' AND hold IS NULL AND line IS NOT NULL;
-- Due jobs, over all queues for promotion, and by queue for "when is my next one due".
CREATE INDEX job_due      ON job (run_at, seq)                 WHERE state = 'scheduled';
CREATE INDEX job_due_in   ON job (queue, run_at)               WHERE state = 'scheduled';
-- By entry within each kind, as pages go.
CREATE INDEX job_held     ON job (hold)                        WHERE hold IS NOT NULL;
CREATE INDEX job_unhold   ON job (hold_until, seq)             WHERE hold_until IS NOT NULL;
CREATE INDEX job_unhold_in ON job (queue, hold_until)          WHERE hold_until IS NOT NULL;
CREATE INDEX job_expiry   ON job (expires_at, seq)
       WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'ready');
-- What was claimed before and waits again: in an ordered queue no other job passes it. The state is asked
-- first, because every claim and every settlement asks.
CREATE INDEX job_open     ON job (queue, state, priority, seq)
       WHERE state IN ('scheduled', 'ready') AND claimed_at IS NOT NULL;
CREATE INDEX job_running  ON job (worker, queue)               WHERE state = 'running';
CREATE INDEX job_finished ON job (finished_at)                 WHERE finished_at IS NOT NULL;
CREATE INDEX job_forget   ON job (finished_at + iif(state = 'failed', keep_failed, keep), entry)
       WHERE finished_at IS NOT NULL;

-- Ids that must not be used twice (law 6).
CREATE TABLE ledger (id TEXT PRIMARY KEY, until REAL NOT NULL, task TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX ledger_until ON ledger (until);

-- Who has a unique key: while held by its job's life, and until its window ends (law 13).
CREATE TABLE unique_key (
  key   TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  until REAL NOT NULL,
  held  INTEGER NOT NULL
) WITHOUT ROWID;

-- `moving` says how far claims have seen to the jobs and lines of a queue since what was decided about its
-- keys has changed, as JSON; NULL: to all of them.
CREATE TABLE queue (name TEXT PRIMARY KEY, settings TEXT NOT NULL, moving TEXT) WITHOUT ROWID;

-- The lines of the keys in queues where these take turns (see core.fairness). An active line is found by its
-- order, an idle one by its place; each stands in one of the two indexes.
CREATE TABLE key_line (
  queue    TEXT,
  key      TEXT,                                     -- '': no key
  priority INTEGER,
  place    INTEGER NOT NULL,
  turn     INTEGER NOT NULL,                         -- the ticket of its first job when it became active
  active   INTEGER NOT NULL,
  PRIMARY KEY (queue, key, priority)
) WITHOUT ROWID;
CREATE INDEX key_line_active ON key_line (queue, priority, place, turn, key) WHERE active;
CREATE INDEX key_line_idle   ON key_line (queue, priority, place, key)       WHERE NOT active;

-- Key lines that may have become active, or idle: the next claim of their queue looks at them.
CREATE TABLE note (
  queue TEXT, priority INTEGER, key TEXT, PRIMARY KEY (queue, priority, key)
) WITHOUT ROWID;

-- A row is a lease; beat is a counter, not a time (law 4).
CREATE TABLE worker (
  id TEXT PRIMARY KEY, beat INTEGER NOT NULL, joined_at REAL NOT NULL, info TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE ticket (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT INTO ticket VALUES (1, 0);

-- Until when, and for how long it was given: more than that cannot be left unless the clock went back.
CREATE TABLE cell (
  name TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL, until REAL, ttl REAL
) WITHOUT ROWID;
