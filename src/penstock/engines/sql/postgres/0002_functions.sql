-- What the server does by itself, so that a turn of a worker is one round trip of several statements,
-- each seeing the one before (law 1): in a VOLATILE function every statement has its own snapshot.
--
-- No plan is left to luck: statistics of a table whose rows live for seconds are always wrong. So these
-- functions plan once, for any values, and only by index or by the place of a row (ctid); whoever finds
-- a row by its place checks that it is still the one that was meant. Lists come as one text each, which
-- costs a client next to nothing to write.

-- The instant that a test has set. Only the owner's word counts: who may enqueue and no more would set
-- it too, and be first in every line.
CREATE FUNCTION penstock.shifted_now() RETURNS double precision LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = 'penstock.live'::regclass),
                 'MEMBER') THEN
    RETURN current_setting('penstock_clock.now')::double precision;
  END IF;
  RETURN extract(epoch FROM clock_timestamp())::double precision;
END $$;

-- Law 12: time is read here and nowhere else. Tests set the parameter; nobody else has one.
CREATE FUNCTION penstock.now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN coalesce(pg_catalog.current_setting('penstock_clock.now', true), '') = ''
              THEN extract(epoch FROM pg_catalog.clock_timestamp())::double precision
              ELSE penstock.shifted_now() END
$$;

-- The lock of whoever counts and claims in a limited, ordered or fair queue, until the transaction ends.
CREATE FUNCTION penstock.try_queue(queue_ text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT pg_catalog.pg_try_advisory_xact_lock(
    pg_catalog.hashtext('penstock.queue'), pg_catalog.hashtext(queue_))
$$;

-- The same, with some patience: whoever has it ends within milliseconds. A lock that is waited for in
-- the usual way would end the whole turn when the wait is too long.
CREATE FUNCTION penstock.await_queue(queue_ text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  FOR try_ IN 1..50 LOOP
    IF penstock.try_queue(queue_) THEN
      RETURN true;
    END IF;
    PERFORM pg_sleep(0.002);
  END LOOP;
  RETURN false;
END $$;

-- --- in -------------------------------------------------------------------------------------------

-- Store jobs that have nothing but a task and a payload, all of one kind. An id that is known is an
-- error here: the whole batch goes the long way then. `since_` is when the first of the ids was made: no
-- job can have ended before that, so only the days after it are searched; null: nobody can have sent
-- these ids before.
CREATE FUNCTION penstock.put_plain(
  ids_ text, payloads_ text, task_ text, queue_ text, priority_ bigint, by_ text,
  since_ double precision) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '100ms' AS $$
DECLARE
  now_  double precision := penstock.now();
  list_ text[] := string_to_array(ids_, e'\x1f');
  hold_ text;
BEGIN
  IF EXISTS (SELECT FROM penstock.queue WHERE name = queue_ AND fair) THEN
    hold_ := 'unplaced';
  END IF;
  INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, enqueued_by, hold,
                             hold_cause, payload)
  SELECT job.ticket, job.ticket, priority_, now_, job.id, task_, queue_, 'ready', by_, hold_,
         CASE WHEN hold_ IS NOT NULL THEN queue_ END, convert_to(job.payload, 'UTF8')
    FROM (SELECT nextval('penstock.ticket') AS ticket, given.id, given.payload
            FROM unnest(list_, string_to_array(payloads_, e'\x1f')) AS given (id, payload)) AS job;
  -- Asked after the insert: whoever ends a job of this id at this moment has committed by now, or kept
  -- the insert waiting.
  IF since_ IS NOT NULL AND EXISTS (
       SELECT FROM penstock.history WHERE id = ANY (list_) AND finished_at >= least(since_, now_) - 86400)
  THEN
    RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'an id is known already';
  END IF;
END $$;

-- The same for one job whose id nobody can have sent before: there is next to nothing to plan, and to
-- settle how would cost more than to do it. If nobody else stores anything just now, `tell_`, whoever
-- sleeps is woken by the commit itself; true: somebody was. Whoever falls asleep at this moment is not
-- seen: if nobody was there, look again after the commit.
CREATE FUNCTION penstock.put_plain_one(
  id_ text, payload_ text, task_ text, queue_ text, priority_ bigint, by_ text, tell_ boolean)
RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
  ticket_ bigint  := nextval('penstock.ticket');
  fair_   boolean := (SELECT fair FROM penstock.queue WHERE name = queue_);  -- null: nothing was decided
  hold_   text    := CASE WHEN fair_ THEN 'unplaced' END;
BEGIN
  INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, enqueued_by, hold,
                             hold_cause, payload)
  VALUES (ticket_, ticket_, priority_, penstock.now(), id_, task_, queue_, 'ready', by_, hold_,
          CASE WHEN hold_ IS NOT NULL THEN queue_ END, convert_to(payload_, 'UTF8'));
  RETURN tell_ AND penstock.rouse('work', CASE WHEN fair_ IS NULL THEN queue_ END);
END $$;

-- Store jobs of any kind, from a JSON array of drafts; a receipt for each, in order. `tell_` says that
-- the transaction is somebody else's: then nobody can look after the commit who sleeps, and how long to
-- wait for an id or a key that another open transaction has is theirs to say. Ours waits for a moment,
-- and names the draft that has to be tried later by itself (law 10).
CREATE FUNCTION penstock.put(drafts_ text, tell_ boolean DEFAULT false)
RETURNS TABLE (id text, created boolean, because text) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
  now_    double precision := penstock.now();
  draft   record;
  run_at_ double precision;
  is_due  boolean;
  hold_   text;
  ticket_ bigint;
  owner_  text;
  index_  bigint := -1;
BEGIN
  IF NOT tell_ THEN
    PERFORM set_config('lock_timeout', '100ms', true);
  END IF;
  FOR draft IN
    SELECT * FROM json_to_recordset(drafts_::json) AS given (
      id text, task text, payload text, payload64 text, queue text, priority bigint,
      delay double precision, run_at double precision, expires_in double precision,
      remember double precision, since double precision, key text, "unique" text, unique_until text,
      unique_for double precision, at_most_once boolean, name text, tags json, correlation_id text,
      enqueued_by text)
  LOOP
    -- Whoever may enqueue may send anything. A row that a worker could not read would stop all that
    -- meet it.
    IF draft.unique_until NOT IN ('done', 'start')
       OR coalesce(draft.run_at, 0) + coalesce(draft.delay, 0) + coalesce(draft.expires_in, 0)
          + coalesce(draft.remember, 0) + coalesce(draft.unique_for, 0) NOT BETWEEN -1e300 AND 1e300
       OR (draft.tags IS NOT NULL AND (
             json_typeof(draft.tags) <> 'array'
             OR draft.tags::text::jsonb @? 'strict $[*] ? (@.type() != "string")')) THEN
      RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
        'job %L has a time that is not finite, or words that are none', draft.id);
    END IF;
    index_ := index_ + 1;
    -- An id counts before a unique key. Only looked at, not locked: what a foreign transaction found
    -- taken must not wait for its end.
    IF EXISTS (SELECT FROM penstock.live WHERE live.id = draft.id)
       OR (draft.remember > 0 AND EXISTS (
             SELECT FROM penstock.ledger WHERE ledger.id = draft.id AND ledger.until > now_))
       -- Who has its key already was stored before, and its window must go on as it is.
       OR (EXISTS (SELECT FROM penstock.unique_key AS mine
                    WHERE mine.key = draft.unique AND mine.owner = draft.id)
           AND EXISTS (SELECT FROM penstock.history WHERE history.id = draft.id
                          AND history.finished_at >= least(draft.since, now_) - 86400)) THEN
      RETURN QUERY VALUES (draft.id, false, 'id');
      CONTINUE;
    END IF;
    IF draft.unique IS NOT NULL THEN
      owner_ := penstock.take_key(draft.unique, draft.id, now_, now_ + coalesce(draft.unique_for, 0));
      IF owner_ IS NOT NULL THEN
        -- The id may be known, too: then it is what counts.
        IF EXISTS (SELECT FROM penstock.history WHERE history.id = draft.id
                      AND history.finished_at >= least(draft.since, now_) - 86400) THEN
          RETURN QUERY VALUES (draft.id, false, 'id');
        ELSE
          RETURN QUERY VALUES (owner_, false, 'unique');
        END IF;
        CONTINUE;
      END IF;
    END IF;
    run_at_ := coalesce(draft.run_at, now_ + coalesce(draft.delay, 0));
    is_due := run_at_ <= now_;
    hold_ := CASE WHEN is_due AND EXISTS (
               SELECT FROM penstock.queue WHERE queue.name = draft.queue AND queue.fair) THEN 'unplaced' END;
    ticket_ := nextval('penstock.ticket');
    INSERT INTO penstock.live AS job (
      entry, seq, priority, enqueued_at, run_at, expires_at, at_most_once, id, task, queue, state,
      enqueued_by, hold, hold_cause, key, unique_key, unique_until, name, correlation_id, tags, payload,
      in_line)
    VALUES (
      ticket_, ticket_, coalesce(draft.priority, 5), now_,
      CASE WHEN draft.run_at IS NOT NULL OR NOT is_due THEN run_at_ END, now_ + draft.expires_in,
      coalesce(draft.at_most_once, false), draft.id, draft.task, coalesce(draft.queue, 'default'),
      CASE WHEN is_due THEN 'ready' ELSE 'scheduled' END, coalesce(draft.enqueued_by, ''), hold_,
      CASE WHEN hold_ IS NOT NULL THEN draft.queue END, draft.key, draft.unique,
      nullif(draft.unique_until, 'done'), draft.name, draft.correlation_id, draft.tags::text,
      CASE WHEN draft.payload64 IS NOT NULL THEN decode(draft.payload64, 'base64')
           ELSE convert_to(coalesce(draft.payload, '{}'), 'UTF8') END,
      is_due)
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND OR EXISTS (
         SELECT FROM penstock.history WHERE history.id = draft.id
            AND history.finished_at >= least(draft.since, now_) - 86400) THEN
      IF FOUND THEN
        DELETE FROM penstock.live AS job WHERE job.entry = ticket_ AND job.id = draft.id;
      END IF;
      -- If the same draft was stored at this moment by another way, the key is that job's.
      DELETE FROM penstock.unique_key WHERE unique_key.key = draft.unique AND unique_key.owner = draft.id
         AND NOT EXISTS (SELECT FROM penstock.live AS job
                          WHERE job.id = draft.id AND job.unique_key = draft.unique);
      RETURN QUERY VALUES (draft.id, false, 'id');
      CONTINUE;
    END IF;
    IF draft.remember > 0 THEN
      INSERT INTO penstock.ledger (id, until) VALUES (draft.id, now_ + draft.remember)
      ON CONFLICT (id) DO UPDATE SET until = excluded.until;
    END IF;
    RETURN QUERY VALUES (draft.id, true, NULL);
  END LOOP;
  IF tell_ THEN
    PERFORM pg_notify('penstock.wake', 'work');
  END IF;
EXCEPTION WHEN lock_not_available THEN
  IF tell_ THEN
    RAISE;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'PS003', MESSAGE = 'an open transaction has this id or unique key',
    DETAIL = index_;
END $$;

-- --- unique keys (law 13) ---------------------------------------------------------------------------

-- Give a free key to a job; returns the other job that keeps it from it, if any. A key that is taken is
-- only read: a lock on it would keep its owner from ending. An update that finds it taken at the last
-- moment has locked it all the same, until it is undone.
CREATE FUNCTION penstock.take_key(
  key_ text, by_ text, now_ double precision, until_ double precision) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
  owner_ text;
BEGIN
  LOOP
    SELECT owner INTO owner_ FROM penstock.unique_key
     WHERE key = key_ AND owner <> by_ AND (held OR until > now_);
    IF FOUND THEN
      RETURN owner_;
    END IF;
    INSERT INTO penstock.unique_key (key, owner, until, held) VALUES (key_, by_, until_, true)
    ON CONFLICT (key) DO NOTHING;
    IF FOUND THEN
      RETURN NULL;
    END IF;
    BEGIN
      UPDATE penstock.unique_key SET owner = by_, until = until_, held = true
       WHERE key = key_ AND (owner = by_ OR NOT (held OR until > now_));
      IF FOUND THEN
        RETURN NULL;
      END IF;
      RAISE no_data_found;
    EXCEPTION WHEN no_data_found THEN
      NULL;
    END;
  END LOOP;
END $$;

-- Give a key back to a job that had it before, unless another one has it; its window goes on. That an
-- open transaction is about to take it is no reason to wait: the job's outcome comes again.
CREATE FUNCTION penstock.keep_key(
  key_ text, by_ text, now_ double precision, OUT owner_ text, OUT is_contested_ boolean)
LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
  is_contested_ := false;
  owner_ := penstock.take_key(key_, by_, now_, coalesce(
    (SELECT until FROM penstock.unique_key WHERE key = key_ AND owner = by_), now_));
EXCEPTION WHEN lock_not_available THEN
  is_contested_ := true;
END $$;

-- The life of these jobs needs their keys no longer; their windows may. A key that nobody holds may be
-- taken by an open transaction just now, whose end no job waits for: it is left alone.
CREATE FUNCTION penstock.give_back(keys_ text[], owners_ text[], now_ double precision)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
BEGIN
  IF keys_ IS NULL THEN
    RETURN;
  END IF;
  UPDATE penstock.unique_key AS mine SET held = false
    FROM (SELECT * FROM unnest(keys_, owners_) AS given (key, owner) ORDER BY given.key) AS given
   WHERE mine.key = given.key AND mine.owner = given.owner AND mine.held;
  DELETE FROM penstock.unique_key WHERE key = ANY (ARRAY(
    SELECT key FROM penstock.unique_key WHERE key = ANY (keys_) AND NOT held AND until <= now_
       FOR UPDATE SKIP LOCKED));
END $$;

-- --- what falls due ---------------------------------------------------------------------------------

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
     WHERE expires_at <= now_ AND expires_at IS NOT NULL AND state IN ('scheduled', 'ready')
     ORDER BY expires_at, seq LIMIT limit_ FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM penstock.live AS job USING old WHERE job.ctid = old.tid RETURNING job.*
  ), ended AS (
    INSERT INTO penstock.history
    SELECT entry, seq, place, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_, progress,
           attempt, failures, crashes, rescues, signed_attempt, started, at_most_once, id, task, queue,
           'cancelled', worker, enqueued_by, NULL, NULL, key, unique_key, unique_until, name,
           correlation_id, signed_by, NULL, 'expired', note, tags, errors, payload, NULL
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
                WHERE NOT in_line AND run_at <= now_ ORDER BY run_at, seq LIMIT limit_)
              UNION ALL
              (SELECT ctid, hold_until, seq FROM penstock.live
                WHERE hold_until IS NOT NULL AND hold_until <= now_ ORDER BY hold_until, seq LIMIT limit_)
            ) AS both_ ORDER BY both_.at, both_.seq LIMIT limit_) AS head
      JOIN penstock.live AS job ON job.ctid = head.tid
       AND (NOT job.in_line AND job.run_at <= now_ OR job.hold_until <= now_)
       FOR UPDATE OF job SKIP LOCKED) AS due;
  IF tids_ IS NULL THEN
    RETURN 0;
  END IF;
  UPDATE penstock.live AS job
     SET state = 'ready', in_line = true, seq = due.ticket, place = 0,
         hold = CASE WHEN queue.fair THEN 'unplaced' END,
         hold_cause = CASE WHEN queue.fair THEN job.queue END
    FROM unnest(tids_, tickets_) AS due (tid, ticket) CROSS JOIN LATERAL (
           SELECT coalesce((SELECT decided.fair FROM penstock.queue AS decided
                             WHERE decided.name = (SELECT its.queue FROM penstock.live AS its
                                                    WHERE its.ctid = due.tid)), false)) AS queue (fair)
   WHERE job.ctid = due.tid AND due.ticket IS NOT NULL;
  GET DIAGNOSTICS rows_ = ROW_COUNT;
  IF rows_ < cardinality(tids_) THEN
    UPDATE penstock.live AS job SET hold = NULL, hold_cause = NULL, hold_until = NULL
      FROM unnest(tids_, tickets_) AS due (tid, ticket)
     WHERE job.ctid = due.tid AND due.ticket IS NULL;
    GET DIAGNOSTICS unheld_ = ROW_COUNT;
    PERFORM nextval('penstock.lowered');
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
    UPDATE penstock.live SET place = place_, hold = NULL, hold_cause = NULL, hold_until = NULL
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
CREATE FUNCTION penstock.place_all(limit_ bigint, is_patient boolean) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off AS $$
DECLARE
  name_ text;
  rows_ bigint := 0;
BEGIN
  FOR name_ IN SELECT name FROM penstock.queue WHERE fair ORDER BY name LOOP
    IF EXISTS (SELECT FROM penstock.live WHERE hold = 'unplaced' AND queue = name_)
       AND (penstock.try_queue(name_) OR is_patient AND penstock.await_queue(name_)) THEN
      rows_ := rows_ + penstock.place(name_, limit_);
    END IF;
  END LOOP;
  RETURN rows_;
END $$;

-- --- what runs --------------------------------------------------------------------------------------

-- Write down where the jobs at these places stand, as one claim of a worker; returns its number. If they
-- are in the order of one line, its first and last say it all.
CREATE FUNCTION penstock.note_claim(worker_ text, tids_ tid[], is_line boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  number_ bigint := nextval('penstock.claims');
BEGIN
  IF is_line THEN
    INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
    SELECT number_, head.priority, head.place, head.seq, tail.place, tail.seq, cardinality(tids_), head.queue,
           worker_
      FROM penstock.live AS head, penstock.live AS tail
     WHERE head.ctid = tids_[1] AND tail.ctid = tids_[cardinality(tids_)] AND head.priority = tail.priority;
    IF FOUND THEN
      RETURN number_;
    END IF;
  END IF;
  INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
  SELECT number_, job.priority, min(job.place), min(job.seq), max(job.place), max(job.seq), count(*), job.queue,
         worker_
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
   GROUP BY job.queue, job.priority;
  RETURN number_;
END $$;

-- So many jobs of these claims have ceased to run. A claim that somebody else counts in just now is left
-- alone: nobody waits for that, and `mend` takes those away that are there for nothing.
CREATE FUNCTION penstock.uncount(numbers_ bigint[], queues_ text[], priorities_ bigint[], counts_ bigint[])
RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  claim_ record;
BEGIN
  FOR claim_ IN
    SELECT claim.ctid AS tid, claim.jobs - ended.jobs AS jobs
      FROM unnest(numbers_, queues_, priorities_, counts_) AS ended (number, queue, priority, jobs)
      JOIN penstock.claim AS claim ON claim.number = ended.number AND claim.queue = ended.queue
                                  AND claim.priority = ended.priority
       FOR UPDATE OF claim SKIP LOCKED
  LOOP
    IF claim_.jobs > 0 THEN
      UPDATE penstock.claim SET jobs = claim_.jobs WHERE ctid = claim_.tid;
    ELSE
      DELETE FROM penstock.claim WHERE ctid = claim_.tid;
    END IF;
  END LOOP;
END $$;

-- The same for one job, with the number that it had; null: it did not run.
CREATE FUNCTION penstock.uncount(number_ bigint, queue_ text, priority_ bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
  IF number_ IS NOT NULL THEN
    PERFORM penstock.uncount(ARRAY[number_], ARRAY[queue_], ARRAY[priority_], ARRAY[1]);
  END IF;
END $$;

-- The jobs of some claims that still run; each claim by its own range of the index. Only of a fair queue
-- the places differ. (A comparison of whole tickets would not end where the range does.)
CREATE FUNCTION penstock.running(claims_ penstock.claim[]) RETURNS SETOF penstock.live LANGUAGE plpgsql STABLE
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
  claim_ penstock.claim;
BEGIN
  FOREACH claim_ IN ARRAY claims_ LOOP
    IF claim_.from_place = claim_.to_place THEN
      RETURN QUERY
      SELECT * FROM penstock.live AS job
       WHERE job.queue = claim_.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim_.priority
         AND job.place = claim_.from_place AND job.seq BETWEEN claim_.from_seq AND claim_.to_seq
         AND job.claim = claim_.number AND job.worker = claim_.worker AND job.state = 'running';
    ELSE
      RETURN QUERY
      SELECT * FROM penstock.live AS job
       WHERE job.queue = claim_.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim_.priority
         AND job.place BETWEEN claim_.from_place AND claim_.to_place
         AND job.claim = claim_.number AND job.worker = claim_.worker AND job.state = 'running';
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION penstock.running() RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim))
$$;

CREATE FUNCTION penstock.running_in(queue_ text) RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim WHERE queue = queue_))
$$;

CREATE FUNCTION penstock.running_of(worker_ text) RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim WHERE worker = worker_))
$$;

-- Of claims that nobody has a lease for; a worker that nobody knows is found as well.
CREATE FUNCTION penstock.orphans() RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(
    SELECT claim FROM penstock.claim
     WHERE NOT EXISTS (SELECT FROM penstock.worker WHERE worker.id = claim.worker)))
$$;

-- --- claim ------------------------------------------------------------------------------------------

-- The job of an ordered queue that runs next, if this worker could have it: the one that is open and
-- waits, or the first in line; what it cannot have is not passed over. The caller has the queue's lock
-- and knows that none of its jobs runs.
CREATE FUNCTION penstock.next_ordered(
  queue_ text, slots_ bigint, avoid_ text[], least_ bigint, is_fair boolean, now_ double precision)
RETURNS TABLE (tid tid, priority bigint, at_most_once boolean, starts_unique boolean) LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  IF EXISTS (SELECT FROM penstock.live
              WHERE queue = queue_ AND was_claimed AND state IN ('scheduled', 'ready')
                AND (expires_at IS NULL OR expires_at > now_)) THEN
    RETURN QUERY
    SELECT job.ctid, job.priority, job.at_most_once, job.unique_until IS NOT NULL
      FROM penstock.live AS job
     WHERE queue = queue_ AND was_claimed AND state IN ('scheduled', 'ready')
       AND state = 'ready' AND priority <= least_
       AND (hold IS NULL OR (is_fair AND hold = 'unplaced'))
       AND task <> ALL (avoid_) AND (slots_ > 0 OR NOT at_most_once)
       AND (expires_at IS NULL OR expires_at > now_)
     ORDER BY priority, place, seq LIMIT 1 FOR UPDATE SKIP LOCKED;
  ELSE
    RETURN QUERY
    SELECT head.tid, head.priority, head.at_most_once, head.starts_unique FROM (
      SELECT job.ctid AS tid, job.priority, job.at_most_once, job.unique_until IS NOT NULL AS starts_unique,
             job.priority <= least_ AND job.task <> ALL (avoid_)
             AND (slots_ > 0 OR NOT job.at_most_once) AS fits
        FROM penstock.live AS job
       WHERE queue = queue_ AND in_line AND hold IS NULL AND state = 'ready'
         AND (expires_at IS NULL OR expires_at > now_)
       ORDER BY priority, place, seq LIMIT 1 FOR UPDATE SKIP LOCKED) AS head
     WHERE head.fits;
  END IF;
END $$;

-- The first jobs of one queue, by its own ranges of the claim index (law 9). A range begins after the
-- ticket where this claimer has found the line to begin, or at the start of it: dead entries in front of
-- it are not walked again. Tasks to avoid, jobs that run at most once and those that have expired are
-- filtered while walking; all are rare.
CREATE FUNCTION penstock.head(
  queue_ text, want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, now_ double precision,
  is_locking boolean, from_priority_ bigint[], from_place_ double precision[], from_seq_ bigint[],
  to_priority_ bigint[])
RETURNS TABLE (tid tid, priority bigint, at_most_once boolean, starts_unique boolean) LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  IF is_locking THEN
    RETURN QUERY
    SELECT head.* FROM unnest(from_priority_, from_place_, from_seq_, to_priority_)
                         AS part (from_priority, from_place, from_seq, to_priority)
     CROSS JOIN LATERAL (
      SELECT job.ctid, job.priority, job.at_most_once, job.unique_until IS NOT NULL
        FROM penstock.live AS job
       WHERE job.queue = queue_ AND job.in_line AND job.hold IS NULL AND job.state = 'ready'
         AND (job.priority, job.place, job.seq) > (part.from_priority, part.from_place, part.from_seq)
         AND job.priority <= least(part.to_priority, least_)
         AND job.task <> ALL (avoid_) AND (slots_ > 0 OR NOT job.at_most_once)
         AND (job.expires_at IS NULL OR job.expires_at > now_)
       ORDER BY job.priority, job.place, job.seq LIMIT want_ FOR UPDATE SKIP LOCKED) AS head
     LIMIT want_;
  ELSE
    RETURN QUERY
    SELECT head.* FROM unnest(from_priority_, from_place_, from_seq_, to_priority_)
                         AS part (from_priority, from_place, from_seq, to_priority)
     CROSS JOIN LATERAL (
      SELECT job.ctid, job.priority, job.at_most_once, job.unique_until IS NOT NULL
        FROM penstock.live AS job
       WHERE job.queue = queue_ AND job.in_line AND job.hold IS NULL AND job.state = 'ready'
         AND (job.priority, job.place, job.seq) > (part.from_priority, part.from_place, part.from_seq)
         AND job.priority <= least(part.to_priority, least_)
         AND job.task <> ALL (avoid_) AND (slots_ > 0 OR NOT job.at_most_once)
         AND (job.expires_at IS NULL OR job.expires_at > now_)
       ORDER BY job.priority, job.place, job.seq LIMIT want_) AS head
     LIMIT want_;
  END IF;
END $$;

-- Choose among several queues: priority first, among queues of one priority turns, within a queue its
-- own order (core.job.choose says the same). Returns the rows' places in the order of the claim, and
-- whether one of them gives its unique key back when it starts.
--
-- First nobody is locked: of every queue as many are looked at as are wanted in all. Those that somebody
-- else took meanwhile are replaced by locking as we look.
CREATE FUNCTION penstock.choose(
  queues_ text[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, now_ double precision,
  is_locking boolean, range_queue_ bigint[], from_priority_ bigint[], from_place_ double precision[],
  from_seq_ bigint[], to_priority_ bigint[],
  OUT tids_ tid[], OUT starts_unique_ boolean, OUT is_fair_ boolean, OUT passed_ boolean,
  OUT is_contended_ boolean) LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  decided  penstock.queue;
  room_    bigint;
  lines_   tid[] := '{}';
  at_      bigint[] := '{}';
  urgent_  bigint[] := '{}';
  once_    boolean[] := '{}';
  level_   bigint;
  turn_    bigint := 0;
  count_   bigint := cardinality(queues_);
  taken_   tid[];
  seen_    bigint;
  last_    bigint;
  frees_   boolean;
  heads_   tid[];
  levels_  bigint[];
  onces_   boolean[];
BEGIN
  tids_ := '{}'; starts_unique_ := false; is_fair_ := false; passed_ := false; is_contended_ := false;
  FOR number_ IN 1..count_ LOOP
    room_ := want_;
    SELECT * INTO decided FROM penstock.queue WHERE name = queues_[number_];
    IF FOUND THEN
      CONTINUE WHEN decided.paused;
      IF decided.most IS NOT NULL OR decided.ordered OR decided.fair THEN
        IF NOT penstock.await_queue(queues_[number_]) THEN
          is_contended_ := true;
          CONTINUE;
        END IF;
        -- Whoever had the lock may have decided otherwise.
        SELECT * INTO decided FROM penstock.queue WHERE name = queues_[number_];
        CONTINUE WHEN decided.paused;
        IF decided.most IS NOT NULL THEN
          room_ := least(want_, decided.most - (
            SELECT count(*) FROM penstock.running_in(queues_[number_])));
          CONTINUE WHEN room_ <= 0;
        END IF;
        is_fair_ := is_fair_ OR decided.fair;
      END IF;
    END IF;
    IF decided.ordered IS TRUE THEN
      SELECT array_agg(head.tid), array_agg(head.priority), array_agg(head.at_most_once),
             bool_or(head.starts_unique)
        INTO heads_, levels_, onces_, frees_
        FROM penstock.next_ordered(queues_[number_], slots_, avoid_, least_, decided.fair, now_) AS head;
    ELSE
      SELECT array_agg(head.tid), array_agg(head.priority), array_agg(head.at_most_once),
             bool_or(head.starts_unique)
        INTO heads_, levels_, onces_, frees_
        FROM penstock.head(
          queues_[number_], room_, slots_, avoid_, least_, now_, is_locking OR count_ = 1,
          ARRAY(SELECT part.a FROM unnest(range_queue_, from_priority_) AS part (q, a) WHERE q = number_),
          ARRAY(SELECT part.a FROM unnest(range_queue_, from_place_) AS part (q, a) WHERE q = number_),
          ARRAY(SELECT part.a FROM unnest(range_queue_, from_seq_) AS part (q, a) WHERE q = number_),
          ARRAY(SELECT part.a FROM unnest(range_queue_, to_priority_) AS part (q, a) WHERE q = number_)
        ) AS head;
    END IF;
    CONTINUE WHEN heads_ IS NULL;
    lines_ := lines_ || heads_;
    urgent_ := urgent_ || levels_;
    once_ := once_ || onces_;
    at_ := at_ || array_fill(number_::bigint, ARRAY[cardinality(heads_)]);
    starts_unique_ := starts_unique_ OR frees_;
  END LOOP;

  -- Level by level, each beginning with the queue after the one that came last.
  FOR level_ IN SELECT DISTINCT line.priority FROM unnest(urgent_) AS line (priority) ORDER BY 1 LOOP
    EXIT WHEN cardinality(tids_) >= want_;
    SELECT array_agg(line.tid ORDER BY line.round, line.turn) FILTER (
             WHERE line.number <= slots_ - cardinality(tids_) OR NOT line.once),
           bool_or(line.number > slots_ - cardinality(tids_) AND line.once),
           (array_agg(line.queue ORDER BY line.round DESC, line.turn DESC))[1]
      INTO taken_, frees_, last_
      FROM (SELECT ranked.*, row_number() OVER (ORDER BY ranked.round, ranked.turn) AS number FROM (
              SELECT line.tid, line.once, line.queue, row_number() OVER (
                       PARTITION BY line.queue ORDER BY line.position) AS round,
                     (line.queue - 1 - turn_ + count_) % count_ AS turn
                FROM unnest(lines_, at_, urgent_, once_) WITH ORDINALITY
                       AS line (tid, queue, priority, once, position)
               WHERE line.priority = level_) AS ranked) AS line;
    passed_ := passed_ OR frees_;
    turn_ := last_ % count_;
    tids_ := tids_ || coalesce(taken_, '{}');
  END LOOP;
  tids_ := tids_[1:want_];
  IF NOT is_locking AND count_ > 1 AND tids_ <> '{}' THEN
    -- Those that are still free, in their order.
    seen_ := cardinality(tids_);
    SELECT coalesce(array_agg(mine.tid), '{}') INTO taken_ FROM penstock.lock_ready(tids_) AS mine (tid);
    tids_ := taken_;
    is_contended_ := is_contended_ OR cardinality(tids_) < seen_;
  END IF;
END $$;

-- Lock the rows at these places that are still in line; the others are somebody else's.
CREATE FUNCTION penstock.lock_ready(tids_ tid[]) RETURNS SETOF tid LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
  SELECT job.ctid FROM unnest(tids_) WITH ORDINALITY AS chosen (tid, number)
    JOIN penstock.live AS job ON job.ctid = chosen.tid AND job.state = 'ready'
   ORDER BY chosen.number FOR UPDATE OF job SKIP LOCKED
$$;

-- What a turn gives back, a row per job; the first row (number 0) says in `rest` what is not a job.
CREATE TYPE penstock.taken AS (
  number bigint, tid text, id text, task text, payload bytea, queue text, priority bigint,
  enqueued_at double precision, enqueued_by text, seq bigint, attempt integer, started boolean,
  rest text);

-- One turn of a worker: settle its successes, promote what is due, claim. Everything else that can
-- become of an attempt is settled before this is called, in the same transaction.
CREATE FUNCTION penstock.exchange(
  worker_ text, tids_ text, ids_ text, attempts_ text, results_ text, begun_ text, begun_attempts_ text,
  queues_ text[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, range_queue_ bigint[],
  from_priority_ bigint[], from_place_ double precision[], from_seq_ bigint[], to_priority_ bigint[],
  lowered_ bigint, sweeps_ boolean)
RETURNS SETOF penstock.taken LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET enable_material = off
SET lock_timeout = '100ms' AS $$
DECLARE
  now_       double precision := penstock.now();
  done_      text[] := string_to_array(ids_, e'\x1f');
  wanted_    bigint := coalesce(cardinality(done_), 0);
  settled_   bigint := 0;
  numbers_   bigint[];
  lines_     text[];
  levels_    bigint[];
  counts_    bigint[];
  chosen_    tid[];
  frees_     boolean := false;
  fair_      boolean := false;
  passed_    boolean := false;
  contended_ boolean := false;
  keys_      text[];
  owners_    text[];
  has_lease_ boolean;
  cancels_   text[];
  due_at_    double precision;
  is_old_    boolean;
  is_decided_ boolean;
  lowest_    bigint;
  is_wide_   boolean;
  begun_at_  timestamptz;
  took_      double precision;
  claim_     bigint;
BEGIN
  -- Held until the end: nobody buries a worker in the middle of its turn. A lock on its row would have
  -- to be written, and a turn that changes nothing would cost a commit. Who tries need not be planned.
  IF NOT pg_try_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_)) THEN
    PERFORM pg_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_));
  END IF;
  -- The lease, what is rarely so, and what is told to every worker: asked at once, for each statement
  -- costs as much as what it does.
  SELECT EXISTS (SELECT FROM penstock.worker WHERE id = worker_),
         EXISTS (SELECT FROM penstock.live WHERE expires_at <= now_ AND expires_at IS NOT NULL
                    AND state IN ('scheduled', 'ready')),
         least((SELECT run_at FROM penstock.live WHERE NOT in_line ORDER BY run_at, seq LIMIT 1),
               (SELECT hold_until FROM penstock.live WHERE hold_until IS NOT NULL
                 ORDER BY hold_until, seq LIMIT 1)),
         EXISTS (SELECT FROM penstock.queue),
         (SELECT last_value + is_called::integer FROM penstock.lowered),
         (SELECT array_agg(id ORDER BY id) FROM penstock.live
           WHERE cancel_reason IS NOT NULL AND worker = worker_ AND state = 'running')
    INTO has_lease_, is_old_, due_at_, is_decided_, lowest_, cancels_;
  IF NOT has_lease_ THEN
    RAISE EXCEPTION USING ERRCODE = 'PS002', MESSAGE = 'the worker has no lease';
  END IF;

  IF begun_ IS NOT NULL THEN
    UPDATE penstock.live AS job SET started = true
      FROM unnest(string_to_array(begun_, e'\x1f'), string_to_array(begun_attempts_, ',')::integer[])
             AS begun (id, attempt)
     WHERE job.id = begun.id AND job.attempt = begun.attempt AND job.worker = worker_
       AND job.state = 'running' AND NOT job.started;
  END IF;

  IF wanted_ > 0 THEN
    WITH gone AS (
      DELETE FROM penstock.live AS job
       USING unnest(string_to_array(tids_, e'\x1f')::tid[], done_,
                    string_to_array(attempts_, ',')::integer[], string_to_array(results_, e'\x1f', ''))
               AS done (tid, id, attempt, result)
       -- The state is asked so that no index knows it: whatever the statistics say, the place counts.
       WHERE job.ctid = done.tid AND job.id = done.id AND job.attempt = done.attempt
         AND job.worker = worker_ AND job.state || '' = 'running' AND job.unique_key IS NULL
      RETURNING job.*, convert_to(done.result, 'UTF8') AS outcome
    ), ended AS (
      INSERT INTO penstock.history
      SELECT entry, seq, place, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_, progress,
             attempt, failures, crashes, rescues, signed_attempt, started, at_most_once, id, task, queue,
             'succeeded', worker, enqueued_by, NULL, NULL, key, NULL, unique_until, name, correlation_id,
             signed_by, NULL, NULL, note, tags, errors, payload, outcome
        FROM gone
    )
    SELECT array_agg(each.claim), array_agg(each.queue), array_agg(each.priority), array_agg(each.jobs),
           coalesce(sum(each.jobs), 0)
      INTO numbers_, lines_, levels_, counts_, settled_
      FROM (SELECT claim, queue, priority, count(*) AS jobs FROM gone GROUP BY claim, queue, priority) AS each;
    PERFORM penstock.uncount(numbers_, lines_, levels_, counts_);
    IF settled_ < wanted_ THEN
      -- A row that was written to meanwhile has moved: found by its id.
      WITH gone AS (
        DELETE FROM penstock.live AS job
         USING unnest(done_, string_to_array(attempts_, ',')::integer[],
                      string_to_array(results_, e'\x1f', '')) AS done (id, attempt, result)
         WHERE job.id = done.id AND job.attempt = done.attempt
           AND job.worker = worker_ AND job.state || '' = 'running' AND job.unique_key IS NULL
        RETURNING job.*, convert_to(done.result, 'UTF8') AS outcome
      ), ended AS (
        INSERT INTO penstock.history
        SELECT entry, seq, place, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_,
               progress, attempt, failures, crashes, rescues, signed_attempt, started, at_most_once, id,
               task, queue, 'succeeded', worker, enqueued_by, NULL, NULL, key, NULL, unique_until, name,
               correlation_id, signed_by, NULL, NULL, note, tags, errors, payload, outcome
          FROM gone
      )
      SELECT array_agg(each.claim), array_agg(each.queue), array_agg(each.priority), array_agg(each.jobs),
             settled_ + coalesce(sum(each.jobs), 0)
        INTO numbers_, lines_, levels_, counts_, settled_
        FROM (SELECT claim, queue, priority, count(*) AS jobs FROM gone GROUP BY claim, queue, priority) AS each;
      PERFORM penstock.uncount(numbers_, lines_, levels_, counts_);
    END IF;
    IF settled_ < wanted_ THEN
      -- Something has to be looked at one by one: the caller does, and asks again for jobs.
      RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        json_build_object('now', now_, 'unsettled', wanted_ - settled_))::penstock.taken;
      RETURN;
    END IF;
  END IF;

  IF is_old_ THEN
    PERFORM penstock.expire(now_, 500);
  END IF;
  -- One promoter at a time, so that tickets are in the order of the instants.
  IF due_at_ <= now_ AND penstock.await_queue('') THEN
    PERFORM penstock.promote(now_, 500);
  END IF;
  IF is_decided_ THEN
    PERFORM penstock.place_all(20000, true);
  END IF;

  IF want_ > 0 AND queues_ <> '{}' THEN
    -- A job with an old ticket is ready: look from the start of every line. So too if what comes after
    -- the bounds is less than wanted, as often as that may be.
    is_wide_ := lowered_ <> lowest_;
    LOOP
      begun_at_ := clock_timestamp();
      IF is_wide_ THEN
        SELECT array_agg(number), array_agg(-9223372036854775808), array_agg('-Infinity'::double precision),
               array_agg(-9223372036854775808), array_agg(9223372036854775807)
          INTO range_queue_, from_priority_, from_place_, from_seq_, to_priority_
          FROM generate_series(1, cardinality(queues_)) AS number;
      END IF;
      IF cardinality(queues_) = 1
         AND NOT (is_decided_ AND EXISTS (SELECT FROM penstock.queue WHERE name = queues_[1])) THEN
        -- The usual case, without a detour: one queue about which nothing was decided.
        SELECT array_agg(head.tid), bool_or(head.once), bool_or(head.starts_unique)
          INTO chosen_, passed_, frees_
          FROM (SELECT head.* FROM unnest(from_priority_, from_place_, from_seq_, to_priority_)
                                     AS part (from_priority, from_place, from_seq, to_priority)
                 CROSS JOIN LATERAL (
                  SELECT job.ctid AS tid, job.at_most_once AS once, job.unique_until IS NOT NULL AS starts_unique
                    FROM penstock.live AS job
                   WHERE job.queue = queues_[1] AND job.in_line AND job.hold IS NULL AND job.state = 'ready'
                     AND (job.priority, job.place, job.seq)
                           > (part.from_priority, part.from_place, part.from_seq)
                     AND job.priority <= least(part.to_priority, least_)
                     AND job.task <> ALL (avoid_) AND (slots_ > 0 OR NOT job.at_most_once)
                     AND (job.expires_at IS NULL OR job.expires_at > now_)
                   ORDER BY job.priority, job.place, job.seq LIMIT want_ FOR UPDATE SKIP LOCKED) AS head
                 LIMIT want_) AS head;
        IF passed_ THEN
          -- Beyond the slots they would wait in the worker's hands, and run once all the same.
          SELECT array_agg(mine.tid ORDER BY mine.number) FILTER (
                   WHERE mine.number <= slots_ OR NOT job.at_most_once),
                 bool_or(mine.number > slots_ AND job.at_most_once)
            INTO chosen_, passed_
            FROM unnest(chosen_) WITH ORDINALITY AS mine (tid, number)
            JOIN penstock.live AS job ON job.ctid = mine.tid;
        END IF;
      ELSE
        SELECT picked.tids_, picked.starts_unique_, picked.is_fair_, picked.passed_, picked.is_contended_
          INTO chosen_, frees_, fair_, passed_, contended_
          FROM penstock.choose(queues_, want_, slots_, avoid_, least_, now_, false, range_queue_,
                               from_priority_, from_place_, from_seq_, to_priority_) AS picked;
        IF contended_ AND coalesce(cardinality(chosen_), 0) = 0 THEN
          SELECT picked.tids_, picked.starts_unique_, picked.is_fair_, picked.passed_, picked.is_contended_
            INTO chosen_, frees_, fair_, passed_, contended_
            FROM penstock.choose(queues_, want_, slots_, avoid_, least_, now_, true, range_queue_,
                                 from_priority_, from_place_, from_seq_, to_priority_) AS picked;
        END IF;
      END IF;
      took_ := extract(epoch FROM clock_timestamp() - begun_at_);
      EXIT WHEN is_wide_ OR NOT sweeps_ OR coalesce(cardinality(chosen_), 0) >= want_;
      is_wide_ := true;
    END LOOP;

    IF coalesce(cardinality(chosen_), 0) > 0 THEN
      IF frees_ THEN
        SELECT array_agg(job.unique_key), array_agg(job.id) INTO keys_, owners_
          FROM unnest(chosen_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
         WHERE job.unique_key IS NOT NULL AND job.unique_until = 'start';
        PERFORM penstock.give_back(keys_, owners_, now_);
      END IF;
      IF fair_ THEN
        INSERT INTO penstock.lane AS lane (queue, priority, virtual_time)
        SELECT job.queue, job.priority, max(job.place)
          FROM unnest(chosen_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
          JOIN penstock.queue AS decided ON decided.name = job.queue AND decided.fair
         GROUP BY job.queue, job.priority
        ON CONFLICT (queue, priority)
        DO UPDATE SET virtual_time = greatest(lane.virtual_time, excluded.virtual_time);
      END IF;
      claim_ := penstock.note_claim(worker_, chosen_, cardinality(queues_) = 1);
      RETURN QUERY
      UPDATE penstock.live AS job
         SET state = 'running', attempt = job.attempt + 1, worker = worker_, claim = claim_, hold = NULL, hold_cause = NULL,
             hold_until = NULL, claimed_at = now_, progress = NULL, note = NULL,
             started = job.at_most_once
                       OR (job.crashes = 0 AND (mine.number <= slots_ OR job.rescues > 0))
        FROM unnest(chosen_) WITH ORDINALITY AS mine (tid, number)
       WHERE job.ctid = mine.tid
      RETURNING mine.number, job.ctid::text, job.id, job.task, job.payload, job.queue, job.priority,
                job.enqueued_at, job.enqueued_by, job.seq, job.attempt, job.started,
                CASE WHEN job.place = 0 AND job.run_at IS NULL AND job.expires_at IS NULL
                      AND job.failures = 0 AND job.crashes = 0 AND job.rescues = 0 AND job.key IS NULL
                      AND job.unique_key IS NULL AND job.unique_until IS NULL AND NOT job.at_most_once
                      AND job.name IS NULL
                      AND job.tags IS NULL AND job.correlation_id IS NULL AND job.reason IS NULL
                      AND job.errors IS NULL
                     THEN NULL
                     ELSE json_build_array(
                       job.place, job.run_at, job.expires_at, job.failures, job.crashes, job.rescues,
                       job.key, job.unique_key, coalesce(job.unique_until, 'done'), job.at_most_once,
                       job.name, coalesce(job.tags, '[]')::json, job.correlation_id, job.reason,
                       coalesce(job.errors, '[]')::json)::text
                END;
    END IF;
  END IF;

  -- What was asked at the start, as far as this turn may have changed it.
  IF cancels_ IS NOT NULL AND wanted_ > 0 THEN
    SELECT array_agg(job.id ORDER BY job.id) INTO cancels_
      FROM penstock.live AS job WHERE job.id = ANY (cancels_) AND job.worker = worker_ AND job.state = 'running';
  END IF;
  IF due_at_ IS NOT NULL THEN
    -- Not of all queues but of these. A range of one, so that only the index of this queue has the order
    -- asked for.
    due_at_ := (SELECT min(next.at) FROM unnest(queues_) AS mine (queue) CROSS JOIN LATERAL (
      (SELECT run_at AS at FROM penstock.live
        WHERE NOT in_line AND queue BETWEEN mine.queue AND mine.queue ORDER BY queue, run_at LIMIT 1)
      UNION ALL
      (SELECT hold_until FROM penstock.live
        WHERE hold_until IS NOT NULL AND queue BETWEEN mine.queue AND mine.queue
        ORDER BY queue, hold_until LIMIT 1)) AS next);
  END IF;
  RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, json_build_object(
    'now', now_,
    'due', due_at_,
    'cancels', cancels_,
    'passed', coalesce(passed_, false), 'contended', contended_, 'fair', fair_, 'wide', is_wide_, 'took', took_,
    'lowered', lowest_))::penstock.taken;
END $$;

-- --- wake-up (law 11) -------------------------------------------------------------------------------

-- Say that somebody is about to sleep. It has to be committed before the last look. Sleep is real, so
-- it is measured by the server's own clock, whatever a test says the time is.
-- Nobody waits for it to be on disk: a server that is killed has forgotten all sleepers anyway.
CREATE FUNCTION penstock.doze(id_ text, kind_ text, for_ double precision) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO penstock.sleeper (id, kind, until)
  VALUES (id_, kind_, extract(epoch FROM pg_catalog.clock_timestamp()) + for_)
  ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, until = excluded.until;
END $$;

-- Whether a job that has ended may have made room for another one: something waits in a queue that
-- gives only so many at once.
CREATE FUNCTION penstock.has_crowd() RETURNS boolean LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  queue_ text COLLATE "C";
BEGIN
  FOR queue_ IN SELECT name FROM penstock.queue WHERE (most IS NOT NULL OR ordered) AND NOT paused LOOP
    IF EXISTS (SELECT FROM penstock.live WHERE queue = queue_ AND in_line AND hold IS NULL AND state = 'ready')
       OR EXISTS (SELECT FROM penstock.live WHERE hold = 'unplaced' AND queue = queue_) THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

-- Wake whoever sleeps for this, with the commit; false: nobody does. `queue_` has new jobs, and nothing was
-- decided about it that may keep them from being claimed: who wants them need not look first.
CREATE FUNCTION penstock.rouse(kind_ text, queue_ text) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_   double precision := extract(epoch FROM clock_timestamp());
  kinds_ text[];
BEGIN
  kinds_ := ARRAY(SELECT DISTINCT kind FROM penstock.sleeper WHERE until > now_);
  IF kinds_ = '{}' THEN
    RETURN false;
  END IF;
  IF kind_ = 'done' AND 'work' = ANY (kinds_) THEN
    IF penstock.has_crowd() THEN
      kind_ := 'any';
    END IF;
  END IF;
  IF kind_ = 'any' OR kinds_ && ARRAY[kind_, 'any'] THEN
    PERFORM pg_notify('penstock.wake', CASE WHEN length(queue_) <= 200 THEN kind_ || ' ' || queue_ ELSE kind_ END);
    RETURN true;
  END IF;
  RETURN false;
END $$;

-- The same after a commit. A NOTIFY takes a lock of the whole cluster while it commits, so none is sent
-- when nobody sleeps; and it says nothing that has to outlive the server, so nobody waits for the disk.
CREATE FUNCTION penstock.wake(kind_ text, queue_ text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF queue_ IS NOT NULL AND EXISTS (SELECT FROM penstock.queue WHERE name = queue_) THEN
    queue_ := NULL;
  END IF;
  IF NOT penstock.rouse(kind_, queue_) THEN
    RETURN false;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  RETURN true;
END $$;
