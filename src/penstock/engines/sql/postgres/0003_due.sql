-- What falls due: jobs that expire or are promoted.

-- End what has waited past its time. Returns how many.
CREATE FUNCTION penstock.expire(now_ double precision, limit_ bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
  keys_   text[];
  owners_ text[];
  rows_   bigint;
BEGIN
  WITH old AS MATERIALIZED (
    SELECT ctid AS tid FROM penstock.live
     WHERE expires_at IS NOT NULL AND expires_at <= now_ AND state <> 'running'
     ORDER BY expires_at, seq LIMIT limit_ FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM penstock.live AS job USING old WHERE job.ctid = old.tid RETURNING job.*
  ), ended AS (
    INSERT INTO penstock.history
    SELECT entry, seq, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_, progress, keep,
           revision + 1, claim, attempt, failures, crashes, rescues, signed_claim, started, at_most_once, id, task, queue,
           'cancelled', worker, enqueued_by, NULL, NULL, key, unique_key, unique_until, name,
           correlation_id, signed_by, NULL, 'expired', note, tags, meta, errors, payload, NULL, checkpoint, line, keep_failed
      FROM gone
    RETURNING unique_key, id
  ), noted AS (
    INSERT INTO penstock.note (queue, priority, key)
    SELECT DISTINCT queue, priority, line FROM gone
     WHERE line IS NOT NULL AND state = 'ready' AND hold IS NULL)
  SELECT count(*), array_agg(unique_key) FILTER (WHERE unique_key IS NOT NULL),
         array_agg(id) FILTER (WHERE unique_key IS NOT NULL)
    INTO rows_, keys_, owners_ FROM ended;
  PERFORM penstock.give_back(keys_, owners_, now_);
  RETURN rows_;
END $$;

-- Promote what is due, in the order of its instants, each with a new ticket: scheduled jobs, and jobs whose hold is
-- over. Returns how many.
CREATE FUNCTION penstock.promote(now_ double precision, limit_ bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  tids_    tid[];
  tickets_ bigint[];
  rows_    bigint;
BEGIN
  SELECT array_agg(due.tid), array_agg(due.ticket) INTO tids_, tickets_ FROM (
    SELECT job.ctid AS tid, nextval('penstock.ticket') AS ticket
      FROM (SELECT both_.tid FROM (
              (SELECT ctid AS tid, run_at AS at, seq FROM penstock.live
                WHERE state = 'scheduled' AND run_at <= now_ ORDER BY run_at, seq LIMIT limit_)
              UNION ALL
              (SELECT ctid, hold_until, seq FROM penstock.live
                WHERE hold_until IS NOT NULL AND hold_until <= now_ ORDER BY hold_until, seq LIMIT limit_)
            ) AS both_ ORDER BY both_.at, both_.seq LIMIT limit_) AS head
      JOIN penstock.live AS job ON job.ctid = head.tid
       AND (job.state = 'scheduled' AND job.run_at <= now_ OR job.hold_until <= now_)
       FOR UPDATE OF job SKIP LOCKED) AS due;
  IF tids_ IS NULL THEN
    RETURN 0;
  END IF;
  WITH ready AS (
    UPDATE penstock.live AS job
       SET state = 'ready', seq = due.ticket, revision = job.revision + 1, hold = NULL, hold_cause = NULL,
           hold_until = NULL, line = penstock.line_of(job.queue, job.key)
      FROM unnest(tids_, tickets_) AS due (tid, ticket)
     WHERE job.ctid = due.tid
    RETURNING job.queue, job.priority, job.line, job.seq
  ), noted AS (
    INSERT INTO penstock.note (queue, priority, key, seq)
    SELECT queue, priority, line, min(seq) FROM ready WHERE line IS NOT NULL GROUP BY queue, priority, line)
  SELECT count(*) INTO rows_ FROM ready;
  RETURN rows_;
END $$;
