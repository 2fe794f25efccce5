-- How jobs that are no plain successes are written back: any number at once, as records of what can change in a
-- job's life. The caller has locked them. What a record does not say, the row does.
--
-- Rows are found by their places (ctid), without any index, as in an exchange.

-- Where the rows of these records are.
CREATE FUNCTION penstock.places_of(records_ json) RETURNS tid[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN penstock.places(ARRAY(SELECT id FROM json_populate_recordset(NULL::penstock.live, records_)));
END $$;

-- Note the key lines of jobs that are about to change: a ready one may leave its line, and one that runs no more makes
-- room for its key.
CREATE FUNCTION penstock.note_changes(tids_ tid[]) RETURNS void LANGUAGE plpgsql
SET enable_indexscan = off AS $$
BEGIN
  INSERT INTO penstock.note (queue, priority, key)
  SELECT DISTINCT job.queue, job.priority, job.line
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
   WHERE job.line IS NOT NULL AND job.state || '' <> 'running'
  UNION ALL
  SELECT DISTINCT job.queue, NULL::bigint, job.key
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
    JOIN penstock.queue AS queue ON queue.name = job.queue AND queue.per_key IS NOT NULL
   WHERE job.key <> '' AND job.state || '' = 'running';
END $$;

-- Live jobs that stay live.
CREATE FUNCTION penstock.save_all(records_ json) RETURNS void LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  tids_ tid[] := penstock.places_of(records_);
BEGIN
  PERFORM penstock.note_changes(tids_);
  WITH saved AS (UPDATE penstock.live AS job
     SET state = new.state, queue = new.queue, priority = new.priority, revision = job.revision + 1,
         hold = new.hold, hold_cause = new.hold_cause, hold_until = new.hold_until,
         seq = new.seq, run_at = new.run_at, expires_at = new.expires_at,
         claim = new.claim, attempt = new.attempt, failures = new.failures, crashes = new.crashes, rescues = new.rescues,
         worker = new.worker, started = new.started, cancel_reason = new.cancel_reason,
         claimed_at = new.claimed_at, reason = new.reason, progress = new.progress, note = new.note,
         errors = new.errors, checkpoint = new.checkpoint, signed_claim = new.signed_claim, signed_by = new.signed_by,
         line = CASE WHEN new.state = 'ready' AND new.hold IS NULL THEN penstock.line_of(new.queue, job.key)
                     ELSE job.line END
    FROM ROWS FROM (json_populate_recordset(NULL::penstock.live, records_), unnest(tids_)) AS new
   WHERE job.ctid = new.unnest
  RETURNING job.queue, job.priority, job.line, job.seq, job.state, job.hold)
  INSERT INTO penstock.note (queue, priority, key, seq)
  SELECT queue, priority, line, min(seq) FROM saved
   WHERE line IS NOT NULL AND state = 'ready' AND hold IS NULL GROUP BY queue, priority, line;
END $$;

-- Live jobs that have ended: they enter the history of the day.
CREATE FUNCTION penstock.end_all(records_ json) RETURNS void LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  tids_ tid[] := penstock.places_of(records_);
BEGIN
  PERFORM penstock.note_changes(tids_);
  WITH gone AS (
    DELETE FROM penstock.live AS job
     USING ROWS FROM (json_populate_recordset(NULL::penstock.live, records_), unnest(tids_)) AS new
     WHERE job.ctid = new.unnest
    RETURNING
      job.entry, new.seq, new.priority, job.enqueued_at, new.run_at, new.expires_at, new.hold_until,
      new.claimed_at, new.finished_at, new.progress, job.keep, job.revision + 1, new.claim, new.attempt, new.failures, new.crashes,
      new.rescues, new.signed_claim, new.started, job.at_most_once, job.id, job.task, new.queue, new.state,
      new.worker, job.enqueued_by, new.hold, new.hold_cause, job.key, job.unique_key, job.unique_until, job.name,
      job.correlation_id, new.signed_by, new.cancel_reason, new.reason, new.note, job.tags, job.meta, new.errors,
      job.payload, new.result, new.checkpoint, job.line, job.keep_failed
  )
  INSERT INTO penstock.history SELECT * FROM gone;
END $$;

-- The way back, of jobs that may be forgotten at these instants: the day of each is known, so one partition is
-- searched.
-- Returns the ids of those that were there.
CREATE FUNCTION penstock.revive_all(records_ json, ends_ double precision[]) RETURNS SETOF text LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  new     record;
  number_ bigint := 0;
BEGIN
  FOR new IN SELECT * FROM json_populate_recordset(NULL::penstock.live, records_) LOOP
    number_ := number_ + 1;
    RETURN QUERY
    WITH gone AS (
      DELETE FROM penstock.history AS job
       WHERE job.finished_at + CASE job.state WHEN 'failed' THEN job.keep_failed ELSE job.keep END = ends_[number_]
         AND job.id = new.id
      RETURNING
        job.entry, new.seq, new.priority, job.enqueued_at, new.run_at, new.expires_at, new.hold_until,
        new.claimed_at, new.finished_at, new.progress, job.keep, job.revision + 1, new.claim, new.attempt, new.failures, new.crashes,
        new.rescues, new.signed_claim, new.started, job.at_most_once, job.id, job.task, new.queue, new.state,
        new.worker, job.enqueued_by, new.hold, new.hold_cause, job.key, job.unique_key, job.unique_until, job.name,
        job.correlation_id, new.signed_by, new.cancel_reason, new.reason, new.note, job.tags, job.meta, new.errors,
        job.payload, new.result, new.checkpoint, penstock.line_of(new.queue, job.key), job.keep_failed
    ), revived AS (INSERT INTO penstock.live AS job SELECT * FROM gone RETURNING job.*), noted AS (
      INSERT INTO penstock.note (queue, priority, key, seq)
      SELECT queue, priority, line, seq FROM revived WHERE line IS NOT NULL)
    SELECT revived.id FROM revived;
  END LOOP;
END $$;
