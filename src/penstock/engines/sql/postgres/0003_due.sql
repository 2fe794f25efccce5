-- What falls due: jobs that expire, are promoted, or get their place in a fair queue.

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
    SELECT entry, seq, place, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_, progress, keep,
           revision + 1, claim, attempt, failures, crashes, rescues, signed_claim, started, at_most_once, id, task, queue,
           'cancelled', worker, enqueued_by, NULL, NULL, key, unique_key, unique_until, name,
           correlation_id, signed_by, NULL, 'expired', note, tags, meta, errors, payload, NULL, checkpoint
      FROM gone
    RETURNING unique_key, id
  )
  SELECT count(*), array_agg(unique_key) FILTER (WHERE unique_key IS NOT NULL),
         array_agg(id) FILTER (WHERE unique_key IS NOT NULL)
    INTO rows_, keys_, owners_ FROM ended;
  PERFORM penstock.give_back(keys_, owners_, now_);
  RETURN rows_;
END $$;

-- Promote what is due, in the order of its instants: scheduled jobs get new tickets, jobs whose hold is
-- over keep theirs. Returns how many.
CREATE FUNCTION penstock.promote(now_ double precision, limit_ bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  tids_    tid[];
  tickets_ bigint[];
  rows_    bigint;
  unheld_  bigint;
BEGIN
  SELECT array_agg(due.tid), array_agg(due.ticket) INTO tids_, tickets_ FROM (
    SELECT job.ctid AS tid,
           CASE WHEN job.state = 'scheduled' THEN nextval('penstock.ticket') END AS ticket
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
  UPDATE penstock.live AS job
     SET state = 'ready', seq = due.ticket, place = 0, revision = job.revision + 1,
         hold = CASE WHEN queue.fair THEN 'unplaced' END,
         hold_cause = CASE WHEN queue.fair THEN job.queue END
    FROM unnest(tids_, tickets_) AS due (tid, ticket) CROSS JOIN LATERAL (
           SELECT coalesce((SELECT decided.fair FROM penstock.queue AS decided
                             WHERE decided.name = (SELECT its.queue FROM penstock.live AS its
                                                    WHERE its.ctid = due.tid)), false)) AS queue (fair)
   WHERE job.ctid = due.tid AND due.ticket IS NOT NULL;
  GET DIAGNOSTICS rows_ = ROW_COUNT;
  IF rows_ < cardinality(tids_) THEN
    WITH lifted AS (
      UPDATE penstock.live AS job
         SET hold = NULL, hold_cause = NULL, hold_until = NULL, revision = job.revision + 1
        FROM unnest(tids_, tickets_) AS due (tid, ticket)
       WHERE job.ctid = due.tid AND due.ticket IS NULL
      RETURNING job.queue
    ), told AS (
      INSERT INTO penstock.lowered (queue) SELECT DISTINCT queue FROM lifted)
    SELECT count(*) INTO unheld_ FROM lifted;
    rows_ := rows_ + unheld_;
  END IF;
  RETURN rows_;
END $$;

-- Give every unplaced job of a fair queue its place, in order of arrival (law 8; core.fairness says how).
-- The caller has the queue's lock. Returns how many.
CREATE FUNCTION penstock.place(queue_ text, limit_ bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  job      record;
  weights_ json;
  place_   double precision;
  rows_    bigint := 0;
BEGIN
  FOR job IN
    SELECT id, priority, coalesce(key, '') AS key FROM penstock.live
     WHERE hold = 'unplaced' AND queue = queue_ ORDER BY seq LIMIT limit_ FOR UPDATE SKIP LOCKED
  LOOP
    IF rows_ = 0 THEN
      SELECT settings::json -> 'weights' INTO weights_ FROM penstock.queue WHERE name = queue_;
    END IF;
    place_ := greatest(
      coalesce((SELECT virtual_time FROM penstock.lane
                 WHERE queue = queue_ AND priority = job.priority), 0),
      (SELECT next_place FROM penstock.spot
        WHERE queue = queue_ AND priority = job.priority AND key = job.key));
    UPDATE penstock.live SET place = place_, hold = NULL, hold_cause = NULL, hold_until = NULL,
                             revision = revision + 1
     WHERE id = job.id;
    INSERT INTO penstock.spot (queue, priority, key, next_place)
    VALUES (queue_, job.priority, job.key,
            place_ + 1.0 / coalesce((weights_ ->> job.key)::double precision, 1.0))
    ON CONFLICT (queue, priority, key) DO UPDATE SET next_place = excluded.next_place;
    rows_ := rows_ + 1;
  END LOOP;
  RETURN rows_;
END $$;

-- Place what waits in all fair queues. One that is locked has a placer. Returns how many.
CREATE FUNCTION penstock.place_all(limit_ bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off AS $$
DECLARE
  name_ text;
  rows_ bigint := 0;
BEGIN
  FOR name_ IN SELECT name FROM penstock.queue WHERE fair ORDER BY name LOOP
    IF EXISTS (SELECT FROM penstock.live WHERE hold = 'unplaced' AND queue = name_)
       AND penstock.try_queue(name_) THEN
      rows_ := rows_ + penstock.place(name_, limit_);
    END IF;
  END LOOP;
  RETURN rows_;
END $$;
