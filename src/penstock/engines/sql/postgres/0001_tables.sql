-- The first schema of a PostgreSQL store.
--
-- `live` holds only jobs that have not ended, and its indexes are partial: what waits for something
-- else costs a claim nothing. A job that ends moves to `history`, which is cut into days, so that what
-- is old goes by dropping a table. Instants are seconds since 1970 as the server's clock says.
--
-- Everything is written as in the schema `penstock`; another name is put in its place when it is run.

CREATE TABLE penstock.migration (version integer PRIMARY KEY, at double precision NOT NULL);

-- The order of both tables is the same, so that a row moves as it is. What has a fixed width comes
-- first, what can be large after it.
CREATE TABLE penstock.live (
  entry          bigint           NOT NULL,                 -- its first ticket
  seq            bigint           NOT NULL,
  priority       bigint           NOT NULL,
  enqueued_at    double precision NOT NULL,
  run_at         double precision,
  expires_at     double precision,
  hold_until     double precision,
  claimed_at     double precision,
  finished_at    double precision,
  progress       double precision,
  keep           double precision NOT NULL DEFAULT 604800,  -- seconds after its end
  revision       bigint           NOT NULL DEFAULT 0,       -- grows with every change but `started` and progress
  claim          integer          NOT NULL DEFAULT 0,       -- hand-outs: the fence
  attempt        integer          NOT NULL DEFAULT 0,
  failures       integer          NOT NULL DEFAULT 0,
  crashes        integer          NOT NULL DEFAULT 0,
  rescues        integer          NOT NULL DEFAULT 0,
  signed_claim   integer,                                   -- the last claim that was settled but not
  started        boolean          NOT NULL DEFAULT false,   -- final, and by whom: signed_by (law 2)
  at_most_once   boolean          NOT NULL DEFAULT false,
  id             text COLLATE "C" NOT NULL,
  task           text COLLATE "C" NOT NULL,
  queue          text COLLATE "C" NOT NULL,
  state          text COLLATE "C" NOT NULL,
  worker         text COLLATE "C",
  enqueued_by    text COLLATE "C" NOT NULL DEFAULT '',
  hold           text COLLATE "C",
  hold_cause     text COLLATE "C",
  key            text COLLATE "C",
  unique_key     text COLLATE "C",
  unique_until   text COLLATE "C",                          -- null: 'done'
  name           text COLLATE "C",
  correlation_id text COLLATE "C",
  signed_by      text COLLATE "C",
  cancel_reason  text COLLATE "C",
  reason         text COLLATE "C",
  note           text COLLATE "C",
  tags           text COLLATE "C",                          -- JSON array
  meta           text COLLATE "C",                          -- JSON object
  errors         text COLLATE "C",                          -- JSON array, one object per bad attempt
  payload        bytea            NOT NULL,
  result         bytea,
  checkpoint     bytea,
  line           text COLLATE "C",                          -- the key in a queue whose keys take turns, else null
  keep_failed    double precision NOT NULL DEFAULT 2592000, -- instead of `keep`, if it has failed
  CONSTRAINT live_id PRIMARY KEY (id),
  -- What is in no index that fits its state would never be found. The view of all jobs leaves out the
  -- table where a state cannot be.
  CONSTRAINT live_state CHECK (
    state IN ('scheduled', 'ready') OR (state = 'running' AND worker IS NOT NULL)),
  -- Both stand in one entry of `live_line`: what is too long for it would stop the claim that gives it its line.
  CONSTRAINT live_names CHECK (octet_length(queue) <= 1000 AND octet_length(key) <= 1000)
) WITH (
  -- Room for the starts and the progress of some jobs of a page: those are in no index, so the row stays on it.
  fillfactor = 90,
  -- Rows live for seconds: the dead ones have to go at once, whatever the size of the table.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.2
);

-- Law 7: only what could start now stands in the claim index.
CREATE INDEX live_claim     ON penstock.live (queue, priority, seq)
       WHERE state = 'ready' AND hold IS NULL;
-- The same by key, of queues whose keys take turns.
CREATE INDEX live_line      ON penstock.live (queue, priority, line, seq)
       WHERE state = 'ready' AND hold IS NULL AND line IS NOT NULL;
-- Due jobs, over all queues for promotion, and by queue for "when is my next one due".
CREATE INDEX live_due       ON penstock.live (run_at, seq)         WHERE state = 'scheduled';
CREATE INDEX live_due_in    ON penstock.live (queue, run_at)       WHERE state = 'scheduled';
CREATE INDEX live_held      ON penstock.live (hold, queue, seq)    WHERE hold IS NOT NULL;
CREATE INDEX live_unhold    ON penstock.live (hold_until, seq)     WHERE hold_until IS NOT NULL;
CREATE INDEX live_unhold_in ON penstock.live (queue, hold_until)   WHERE hold_until IS NOT NULL;
CREATE INDEX live_expiry    ON penstock.live (expires_at, seq)
       WHERE expires_at IS NOT NULL AND state <> 'running';
-- What was claimed before and waits again: in an ordered queue no other job passes it.
CREATE INDEX live_open      ON penstock.live (queue, priority, seq)
       WHERE claimed_at IS NOT NULL AND state <> 'running';
-- What runs, by queue for limits, and within that by worker.
CREATE INDEX live_running   ON penstock.live (queue, worker)       WHERE state = 'running';
-- Every turn of a worker asks for this one, and it is nearly always empty.
CREATE INDEX live_cancels   ON penstock.live (worker, id)          WHERE cancel_reason IS NOT NULL;

-- Finished jobs by the day (UTC) on which they may be forgotten, so that whole days go however long each job is
-- kept. There is no default partition: a missing day is made when it is missed, and a row in a default one
-- would have to be moved out first.
CREATE TABLE penstock.history (LIKE penstock.live INCLUDING DEFAULTS)
       PARTITION BY RANGE ((finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END));
ALTER TABLE penstock.history ALTER COLUMN finished_at SET NOT NULL;
CREATE INDEX history_id       ON penstock.history (id);
CREATE INDEX history_entry    ON penstock.history (entry);
CREATE INDEX history_forget   ON penstock.history
 USING brin ((finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END)) WITH (pages_per_range = 32);
-- What ended lately may lie in any day, and a screen asks for it each second: BRIN would have to read what is not
-- summarized yet, of all days.
CREATE INDEX history_finished ON penstock.history (finished_at);
CREATE INDEX history_failed   ON penstock.history (queue, finished_at) WHERE state = 'failed';

-- Ids that must not be used twice (law 6).
CREATE TABLE penstock.ledger (
  id    text COLLATE "C" PRIMARY KEY,
  until double precision NOT NULL,
  task  text COLLATE "C" NOT NULL
);
-- Written in the order of time: a btree costs a quarter of what an own id does.
CREATE INDEX ledger_until ON penstock.ledger USING brin (until) WITH (pages_per_range = 16);

-- Who has a unique key: while held by its job's life, and until its window ends (law 13).
CREATE TABLE penstock.unique_key (
  key   text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  until double precision NOT NULL,
  held  boolean NOT NULL
);
CREATE INDEX unique_key_until ON penstock.unique_key (until) WHERE NOT held;

-- What was decided about a queue, as it was said; the columns beside it are what claims ask for.
CREATE TABLE penstock.queue (
  name     text COLLATE "C" PRIMARY KEY,
  settings text    NOT NULL,
  paused   boolean NOT NULL,
  most     bigint,                                          -- attempts that may run at once
  ordered  boolean NOT NULL,
  keyed    boolean NOT NULL,                                -- its keys take turns
  per_key  bigint,                                          -- attempts of one key that may run at once
  weights  json    NOT NULL,
  -- Since it was decided, claims have looked at its ready jobs up to this priority and ticket; null: at all.
  moved_to  bigint[],
  notes_all  boolean NOT NULL DEFAULT true,                 -- these claims have its lines looked at
  known_from xid8,                                          -- transactions from here on know of it; null: no claim has seen it
  moves_all  boolean                                        -- this round leaves none out; null: it has not begun
);

-- The key lines of queues whose keys take turns (core.fairness), written by the holder of the queue's lock alone.
-- Places only grow, and no index is unique: each is read from its newest end, or from a place that the claimer
-- knows, so that what a pinned transaction keeps from being vacuumed is not walked.
CREATE TABLE penstock.key_line (
  queue    text COLLATE "C" NOT NULL,
  priority bigint           NOT NULL,
  key      text COLLATE "C" NOT NULL,
  place    bigint           NOT NULL,
  turn     bigint           NOT NULL,                       -- the ticket of its first job when it became active
  from_seq bigint           NOT NULL,                       -- its jobs have later tickets
  active   boolean          NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_line_place ON penstock.key_line (queue, active, priority, place, turn, key);
CREATE INDEX key_line_key   ON penstock.key_line (queue, key, priority, place);

-- Key lines to be looked at by the next claim of their queue. Rows are only added by all but the holder of its
-- lock, so that no step waits for another. Without a priority, all lines of the key are meant.
CREATE TABLE penstock.note (
  queue    text COLLATE "C" NOT NULL,
  number   bigint           GENERATED ALWAYS AS IDENTITY,
  priority bigint,
  key      text COLLATE "C" NOT NULL,
  seq      bigint                                           -- a job of this ticket has come into the line
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX note_number ON penstock.note (queue, number);

-- A row is a lease; beat is a counter, not a time (law 4).
CREATE TABLE penstock.worker (
  id        text COLLATE "C" PRIMARY KEY,
  beat      bigint NOT NULL,
  joined_at double precision NOT NULL,
  info      text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Small named values. Until when, and for how long it was given: more than that cannot be left unless the clock
-- went back. The leader's term is one of them, written every few seconds.
CREATE TABLE penstock.cell (
  name    text COLLATE "C" PRIMARY KEY,
  value   bytea,
  version bigint NOT NULL,
  until   double precision,
  ttl     double precision
) WITH (fillfactor = 50);

-- Processes that sleep and want to be woken (law 11): one that is about to sleep says so, then looks once
-- more. Lost in a crash of the server, which wakes them all anyway.
CREATE UNLOGGED TABLE penstock.sleeper (
  id    text COLLATE "C" PRIMARY KEY,
  kind  text COLLATE "C" NOT NULL,                          -- 'work', 'done', 'control', 'changed' or 'other'
  until double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE SEQUENCE penstock.ticket AS bigint;

-- A job of this queue became ready with an old ticket, a minute ago at most: claimers that remember where the
-- line begins look from its start again. Rows are only added, so that no step waits for another.
CREATE TABLE penstock.lowered (
  queue  text COLLATE "C" NOT NULL,
  number bigint           GENERATED ALWAYS AS IDENTITY,
  at     double precision NOT NULL DEFAULT extract(epoch FROM clock_timestamp())
);
CREATE INDEX lowered_queue ON penstock.lowered (queue, number);
