-- What the server does by itself, so that a turn of a worker is one round trip of several statements,
-- each seeing the one before (law 1): in a VOLATILE function every statement has its own snapshot.
--
-- No plan is left to luck: statistics of a table whose rows live for seconds are always wrong. So these
-- functions plan once, for any values, and only by index or by the place of a row (ctid); a step that finds
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

-- Law 12: time is read here and nowhere else. Only tests set the parameter.
CREATE FUNCTION penstock.now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN coalesce(pg_catalog.current_setting('penstock_clock.now', true), '') = ''
              THEN extract(epoch FROM pg_catalog.clock_timestamp())::double precision
              ELSE penstock.shifted_now() END
$$;

-- The lock of the step that counts and claims in a limited, ordered or fair queue, until the transaction ends.
CREATE FUNCTION penstock.try_queue(queue_ text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT pg_catalog.pg_try_advisory_xact_lock(
    pg_catalog.hashtext('penstock.queue'), pg_catalog.hashtext(queue_))
$$;

-- The same, with some patience: the step that has it ends within milliseconds. A lock that is waited for in
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
-- job can have ended before that, so only the days after it are searched; null: these ids
-- cannot have been sent before.
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
  -- Asked after the insert: a step that ends a job of this id at this moment has committed by now, or kept
  -- the insert waiting.
  IF since_ IS NOT NULL AND EXISTS (
       SELECT FROM penstock.history WHERE id = ANY (list_) AND finished_at >= least(since_, now_) - 86400)
  THEN
    RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'an id is known already';
  END IF;
END $$;

-- Store jobs of any kind, from a JSON array of drafts; a receipt for each, in order. `tell_` says that
-- the transaction is the caller's own: then nothing of ours can look for sleepers after the commit, and how long to
-- wait for an id or a key that another open transaction has is the caller's to say. Ours waits for a moment,
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
    -- A role that may enqueue may send anything. A row that a worker could not read would stop all that
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
      in_line, waits_until)
    VALUES (
      ticket_, ticket_, coalesce(draft.priority, 5), now_,
      CASE WHEN draft.run_at IS NOT NULL OR NOT is_due THEN run_at_ END, now_ + draft.expires_in,
      coalesce(draft.at_most_once, false), draft.id, draft.task, coalesce(draft.queue, 'default'),
      CASE WHEN is_due THEN 'ready' ELSE 'scheduled' END, coalesce(draft.enqueued_by, ''), hold_,
      CASE WHEN hold_ IS NOT NULL THEN draft.queue END, draft.key, draft.unique,
      nullif(draft.unique_until, 'done'), draft.name, draft.correlation_id, draft.tags::text,
      CASE WHEN draft.payload64 IS NOT NULL THEN decode(draft.payload64, 'base64')
           ELSE convert_to(coalesce(draft.payload, '{}'), 'UTF8') END,
      is_due, now_ + draft.expires_in)
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

-- The life of these jobs needs their keys no longer; their windows may. A key that is not held may be
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
