-- The first schema of a PostgreSQL store.
--
-- `live` holds only jobs that have not ended, and its indexes are partial: what waits for something
-- else costs a claim nothing. A job that ends moves to `history`, which is cut into days, so that what
-- is old goes by dropping a table. Instants are seconds since 1970 as the server's clock says.
--
-- A claim changes no column that an index knows, and every page has room for it: so the row stays where
-- it is, and no index is written to. The price: a job that runs still stands in the claim index, where
-- claimers pass it over, and what runs is found through `claim`.
--
-- Everything is written as in the schema `penstock`; another name is put in its place when it is run.

CREATE TABLE penstock.migration (version integer PRIMARY KEY, at double precision NOT NULL);

-- The order of both tables is the same, so that a row moves as it is. What has a fixed width comes
-- first, what can be large after it; last what only a live job has.
CREATE TABLE penstock.live (
  entry          bigint           NOT NULL,                 -- its first ticket
  seq            bigint           NOT NULL,
  place          double precision NOT NULL DEFAULT 0,
  priority       bigint           NOT NULL,
  enqueued_at    double precision NOT NULL,
  run_at         double precision,
  expires_at     double precision,
  hold_until     double precision,
  claimed_at     double precision,
  finished_at    double precision,
  progress       double precision,
  attempt        integer          NOT NULL DEFAULT 0,
  failures       integer          NOT NULL DEFAULT 0,
  crashes        integer          NOT NULL DEFAULT 0,
  rescues        integer          NOT NULL DEFAULT 0,
  signed_attempt integer,                                   -- the last attempt that was settled but not
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
  errors         text COLLATE "C",                          -- JSON array, one object per bad attempt
  payload        bytea            NOT NULL,
  result         bytea,
  in_line        boolean          NOT NULL DEFAULT true,    -- not scheduled; a claim leaves it as it is
  was_claimed    boolean          NOT NULL DEFAULT false,   -- before it waited again
  claim          bigint,                                    -- while it runs: its number
  waits_until    double precision,                          -- while it waits: when it expires
  cancels        text COLLATE "C",                          -- while it runs: who is to cancel it
  CONSTRAINT live_id PRIMARY KEY (id),
  -- What is in no index that fits its state would never be found. The view of all jobs leaves out the
  -- table where a state cannot be.
  CONSTRAINT live_state CHECK (
    state IN ('scheduled', 'ready', 'running') AND in_line = (state <> 'scheduled')
    AND waits_until IS NOT DISTINCT FROM CASE WHEN state <> 'running' THEN expires_at END)
) WITH (
  -- A claim of all jobs of a page fits on it; each grows by the name of its worker.
  fillfactor = 40,
  -- Rows live for seconds: the dead ones have to go at once, whatever the size of the table.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.2
);

-- Law 7: only what could start now stands in the claim index, and what has.
CREATE INDEX live_claim     ON penstock.live (queue, priority, place, seq)
       WHERE in_line AND hold IS NULL;
-- Due jobs, over all queues for promotion, and by queue for "when is my next one due".
CREATE INDEX live_due       ON penstock.live (run_at, seq)         WHERE NOT in_line;
CREATE INDEX live_due_in    ON penstock.live (queue, run_at)       WHERE NOT in_line;
CREATE INDEX live_held      ON penstock.live (hold, queue, seq)    WHERE hold IS NOT NULL;
CREATE INDEX live_unhold    ON penstock.live (hold_until, seq)     WHERE hold_until IS NOT NULL;
CREATE INDEX live_unhold_in ON penstock.live (queue, hold_until)   WHERE hold_until IS NOT NULL;
CREATE INDEX live_expiry    ON penstock.live (waits_until, seq)    WHERE waits_until IS NOT NULL;
-- What was claimed before and waits again: in an ordered queue no other job passes it.
CREATE INDEX live_open      ON penstock.live (queue, priority, place, seq) WHERE was_claimed;
-- Every turn of a worker asks for this one, and it is nearly always empty.
CREATE INDEX live_cancels   ON penstock.live (cancels, id)         WHERE cancels IS NOT NULL;

-- Where in a line the jobs stand that one turn gave to a worker: every job that runs is within the claim
-- that it has the number of. How many still run is counted in the step that ends an attempt; with the
-- last one the claim goes.
CREATE TABLE penstock.claim (
  number     bigint           NOT NULL,
  priority   bigint           NOT NULL,
  from_place double precision NOT NULL,
  from_seq   bigint           NOT NULL,
  to_place   double precision NOT NULL,
  to_seq     bigint           NOT NULL,
  jobs       bigint           NOT NULL,
  queue      text COLLATE "C" NOT NULL,
  worker     text COLLATE "C" NOT NULL,
  CONSTRAINT claim_number PRIMARY KEY (number, queue, priority)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claim_worker ON penstock.claim (worker);
CREATE INDEX claim_queue  ON penstock.claim (queue);
CREATE SEQUENCE penstock.claims AS bigint;

-- Finished jobs by the day they ended (UTC). There is no default partition: a missing day is made when
-- it is missed, and a row in a default one would have to be moved out first.
CREATE TABLE penstock.history (LIKE penstock.live INCLUDING DEFAULTS) PARTITION BY RANGE (finished_at);
ALTER TABLE penstock.history ALTER COLUMN finished_at SET NOT NULL;
ALTER TABLE penstock.history ALTER COLUMN in_line     DROP NOT NULL, ALTER COLUMN in_line     DROP DEFAULT,
                             ALTER COLUMN was_claimed DROP NOT NULL, ALTER COLUMN was_claimed DROP DEFAULT;
CREATE INDEX history_id       ON penstock.history (id);
CREATE INDEX history_entry    ON penstock.history (entry);
CREATE INDEX history_finished ON penstock.history USING brin (finished_at) WITH (pages_per_range = 32);
CREATE INDEX history_failed   ON penstock.history (queue, finished_at) WHERE state = 'failed';

-- Ids that must not be used twice (law 6).
CREATE TABLE penstock.ledger (id text COLLATE "C" PRIMARY KEY, until double precision NOT NULL);
CREATE INDEX ledger_until ON penstock.ledger (until);

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
  fair     boolean NOT NULL
);

-- The virtual time of a fair queue, and where each key's next job stands.
CREATE TABLE penstock.lane (
  queue text COLLATE "C", priority bigint, virtual_time double precision NOT NULL,
  PRIMARY KEY (queue, priority)
);
CREATE TABLE penstock.spot (
  queue text COLLATE "C", priority bigint, key text COLLATE "C", next_place double precision NOT NULL,
  PRIMARY KEY (queue, priority, key)
);

-- A row is a lease; beat is a counter, not a time (law 4).
CREATE TABLE penstock.worker (
  id        text COLLATE "C" PRIMARY KEY,
  beat      bigint NOT NULL,
  joined_at double precision NOT NULL,
  info      text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Until when, and for how long it was given: more than that cannot be left unless the clock went back.
CREATE TABLE penstock.term (
  one    boolean PRIMARY KEY DEFAULT true CHECK (one),
  holder text COLLATE "C" NOT NULL,
  epoch  bigint NOT NULL,
  until  double precision NOT NULL,
  ttl    double precision NOT NULL
) WITH (fillfactor = 50);
INSERT INTO penstock.term (holder, epoch, until, ttl) VALUES ('', 0, 0, 0);

CREATE TABLE penstock.cell (name text COLLATE "C" PRIMARY KEY, value bytea, version bigint NOT NULL);

-- Processes that sleep and want to be woken (law 11): one that is about to sleep says so, then looks once
-- more. Lost in a crash of the server, which wakes them all anyway.
CREATE UNLOGGED TABLE penstock.sleeper (
  id    text COLLATE "C" PRIMARY KEY,
  kind  text COLLATE "C" NOT NULL,                          -- 'work', 'done', 'orders', 'news' or 'any'
  until double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE SEQUENCE penstock.ticket AS bigint;

-- Grows when a job that keeps an old ticket becomes ready: claimers who remember where the line begins
-- look from its start again.
CREATE SEQUENCE penstock.lowered AS bigint;
