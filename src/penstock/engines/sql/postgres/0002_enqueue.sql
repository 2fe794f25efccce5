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

-- The lock of the step that counts and claims in a queue with limits, an order or turns, until the transaction ends.
-- It is tried and never waited for: the transaction has outcomes that others wait for.
CREATE FUNCTION penstock.try_queue(queue_ text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT pg_catalog.pg_try_advisory_xact_lock(
    pg_catalog.hashtext('penstock.queue'), pg_catalog.hashtext(queue_))
$$;

-- The key line that a job belongs to; null: the keys of its queue do not take turns.
CREATE FUNCTION penstock.line_of(queue_ text, key_ text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT coalesce(key_, '') FROM penstock.queue WHERE name = queue_ AND keyed
$$;

-- --- in -------------------------------------------------------------------------------------------

-- A batch comes as columns, each one text: `\x1f` stands between its items, and an item that is `\x1e` is
-- null. If an item has one of these, a mark that no item has follows each. A column that is null has its
-- default for all jobs, one with a single item has that for all.

-- The items of a column; those of one that is sent once are null for all jobs but the first.
CREATE FUNCTION penstock.items(column_ text, mark_ text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.string_to_array(column_, e'\x1f' || mark_, e'\x1e' || mark_)
$$;

-- What all jobs have that say nothing else: the single item of a column.
CREATE FUNCTION penstock.common(column_ text, mark_ text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN pg_catalog.strpos(column_, e'\x1f' || mark_) = 0 THEN column_ END
$$;

-- Store jobs; returns a row for each that is not stored: its number, from 1 on, the job that is there
-- instead, whether its id or its unique key was taken, and whose task has the id. Row 0 has the tickets of the others, in order. No id
-- is in a batch twice.
--
-- Ids are looked for in the ledger, then keys are taken, then ids: what is refused takes nothing. If an id
-- turns out to be taken all the same, everything is undone (PS001, or a violation of `live_id`), and the
-- caller tries again carefully: then the jobs are searched first. `since_` is when the first of the ids was
-- made: no job can have ended before that, so only the days after it are searched; null: these ids cannot
-- have been sent before. `is_ours_` says that no caller's transaction is around it: then a lock that another
-- open transaction has is waited for only for a moment, and `contested` says which job it was.
CREATE FUNCTION penstock.put(
  ids_ text, payloads_ text, is_binary_ boolean, tasks_ text, queues_ text, priorities_ text, by_ text,
  delays_ text, run_at_ text, expires_in_ text, keys_ text, names_ text, tags_ text, correlation_ids_ text,
  at_most_once_ text, remember_ text, uniques_ text, unique_until_ text, unique_for_ text, keep_ text,
  keep_failed_ text, meta_ text, mark_ text, since_ double precision, is_careful_ boolean, is_ours_ boolean)
RETURNS TABLE (number bigint, owner text, because text, task text) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  -- Before anything is read: a claim that gives jobs their lines waits for who has a number and may not know that the
  -- keys of a queue take turns. One that will never know of it gives its jobs lines in any queue, and a repair finds them.
  xid_     xid8    := pg_current_xact_id();
  is_late_ boolean := current_setting('transaction_isolation') <> 'read committed';
  now_     double precision := penstock.now();
  list_    text[] := CASE ids_ WHEN '' THEN ARRAY[''] ELSE penstock.items(ids_, mark_) END;
  refused_ bigint[] := '{}';
  whose_   text[];
  losers_  bigint[];
  owners_  text[];
  tickets_ text;
  all_payload_     text := penstock.common(payloads_, mark_);
  all_task_        text := penstock.common(tasks_, mark_);
  all_queue_       text := coalesce(penstock.common(queues_, mark_), 'default');
  all_priority_    bigint := coalesce(penstock.common(priorities_, mark_), '5');
  all_by_          text := coalesce(penstock.common(by_, mark_), '');
  all_delay_       double precision := coalesce(penstock.common(delays_, mark_), '0');
  all_run_at_      double precision := penstock.common(run_at_, mark_);
  all_expires_in_  double precision := penstock.common(expires_in_, mark_);
  all_key_         text := penstock.common(keys_, mark_);
  all_name_        text := penstock.common(names_, mark_);
  all_tags_        text := penstock.common(tags_, mark_);
  all_correlation_ text := penstock.common(correlation_ids_, mark_);
  all_once_        boolean := coalesce(penstock.common(at_most_once_, mark_), 'f');
  all_unique_      text := penstock.common(uniques_, mark_);
  all_until_       text := penstock.common(unique_until_, mark_);
  all_keep_        double precision := coalesce(penstock.common(keep_, mark_), '604800');
  all_keep_failed_ double precision := coalesce(penstock.common(keep_failed_, mark_), '2592000');
  all_meta_        text := penstock.common(meta_, mark_);
BEGIN
  IF is_ours_ THEN
    PERFORM set_config('lock_timeout', '100ms', true);
  END IF;
  IF num_nonnulls(delays_, run_at_, expires_in_, tags_, remember_, unique_until_, unique_for_, keep_,
                  keep_failed_, meta_) > 0 THEN
    PERFORM penstock.check_columns(
      list_, penstock.items(delays_, mark_), penstock.items(run_at_, mark_),
      penstock.items(expires_in_, mark_), penstock.items(remember_, mark_),
      penstock.items(unique_for_, mark_), penstock.items(unique_until_, mark_), penstock.items(tags_, mark_),
      penstock.items(keep_, mark_), penstock.items(keep_failed_, mark_), penstock.items(meta_, mark_));
  END IF;
  IF is_careful_ OR remember_ IS NOT NULL THEN
    SELECT known.numbers_, known.tasks_ INTO refused_, whose_
      FROM penstock.known(list_, penstock.items(remember_, mark_), penstock.common(remember_, mark_),
                          CASE WHEN is_careful_ THEN since_ END, now_) AS known;
    RETURN QUERY SELECT given.number, list_[given.number], 'id', given.task
                   FROM unnest(refused_, whose_) AS given (number, task);
  END IF;
  IF uniques_ IS NOT NULL THEN
    SELECT lost.numbers_, lost.owners_ INTO losers_, owners_
      FROM penstock.take_keys(list_, penstock.items(uniques_, mark_), all_unique_,
                              penstock.items(unique_for_, mark_), penstock.common(unique_for_, mark_),
                              refused_, now_, is_careful_) AS lost;
    IF losers_ <> '{}' AND since_ IS NOT NULL AND NOT is_careful_ THEN
      -- An id counts before a key, and these may be taken.
      RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'an id may be taken';
    END IF;
    RETURN QUERY SELECT lost.number, lost.owner, 'unique', NULL::text
                   FROM unnest(losers_, owners_) AS lost (number, owner);
    refused_ := refused_ || losers_;
  END IF;
  IF remember_ IS NOT NULL THEN
    PERFORM penstock.remember(list_, penstock.items(tasks_, mark_), all_task_, penstock.items(remember_, mark_),
                              penstock.common(remember_, mark_), refused_, now_);
  END IF;

  WITH stored AS (INSERT INTO penstock.live (
    entry, seq, priority, enqueued_at, run_at, expires_at, keep, at_most_once, id, task, queue, state, enqueued_by,
    key, unique_key, unique_until, name, correlation_id, tags, meta, payload, line, keep_failed)
  SELECT job.ticket, job.ticket, coalesce(job.priority::bigint, all_priority_), now_,
         CASE WHEN job.run_at IS NOT NULL OR job.due_at > now_ THEN job.due_at END,
         now_ + job.expires_in, coalesce(job.keep::double precision, all_keep_), coalesce(job.once::boolean, all_once_), job.id, coalesce(job.task, all_task_),
         job.queue, CASE WHEN job.due_at > now_ THEN 'scheduled' ELSE 'ready' END,
         coalesce(job.by, all_by_), coalesce(job.key, all_key_), coalesce(job.unique_key, all_unique_),
         nullif(coalesce(job.unique_until, all_until_), 'done'), coalesce(job.name, all_name_),
         coalesce(job.correlation_id, all_correlation_), coalesce(job.tags, all_tags_),
         coalesce(job.meta, all_meta_),
         CASE WHEN is_binary_ THEN decode(job.payload, 'hex') ELSE convert_to(job.payload, 'UTF8') END,
         CASE WHEN decided.keyed OR is_late_ THEN coalesce(job.key, all_key_, '') END,
         coalesce(job.keep_failed::double precision, all_keep_failed_)
    FROM (SELECT nextval('penstock.ticket') AS ticket, given.id, given.task, given.priority, given.by,
                 given.key, given.name, given.tags, given.correlation_id, given.once, given.unique_key,
                 given.unique_until, given.keep, given.keep_failed, given.meta,
                 coalesce(given.payload, all_payload_, '') AS payload,
                 coalesce(given.queue, all_queue_) AS queue,
                 coalesce(given.run_at::double precision, all_run_at_) AS run_at,
                 coalesce(given.expires_in::double precision, all_expires_in_) AS expires_in,
                 coalesce(given.run_at::double precision, all_run_at_,
                          now_ + coalesce(given.delay::double precision, all_delay_)) AS due_at
            FROM unnest(list_, penstock.items(payloads_, mark_), penstock.items(tasks_, mark_),
                        penstock.items(queues_, mark_), penstock.items(priorities_, mark_),
                        penstock.items(by_, mark_), penstock.items(delays_, mark_),
                        penstock.items(run_at_, mark_), penstock.items(expires_in_, mark_),
                        penstock.items(keys_, mark_), penstock.items(names_, mark_),
                        penstock.items(tags_, mark_), penstock.items(correlation_ids_, mark_),
                        penstock.items(at_most_once_, mark_), penstock.items(uniques_, mark_),
                        penstock.items(unique_until_, mark_), penstock.items(keep_, mark_),
                        penstock.items(keep_failed_, mark_), penstock.items(meta_, mark_)) WITH ORDINALITY
                   AS given (id, payload, task, queue, priority, by, delay, run_at, expires_in, key, name,
                             tags, correlation_id, once, unique_key, unique_until, keep, keep_failed, meta, number)
           WHERE given.number <> ALL (refused_)) AS job
    LEFT JOIN penstock.queue AS decided ON decided.name = job.queue
  RETURNING seq, queue, priority, line, state), noted AS (
    INSERT INTO penstock.note (queue, priority, key, seq)
    SELECT queue, priority, line, min(seq) FROM stored
     WHERE line IS NOT NULL AND state = 'ready'
       AND NOT (is_late_ AND NOT EXISTS (SELECT FROM penstock.queue AS mine WHERE mine.name = queue AND mine.keyed))
     GROUP BY queue, priority, line)
  SELECT string_agg(seq::text, ',') INTO tickets_ FROM stored;
  RETURN QUERY SELECT 0::bigint, tickets_, NULL::text, NULL::text;
  -- Asked after the insert: a step that ends a job of this id at this moment has committed by now, or kept
  -- the insert waiting.
  IF since_ IS NOT NULL THEN
    IF refused_ <> '{}' THEN
      list_ := ARRAY(SELECT given.id FROM unnest(list_) WITH ORDINALITY AS given (id, number)
                      WHERE given.number <> ALL (refused_));
    END IF;
    IF EXISTS (SELECT FROM penstock.history WHERE id = ANY (list_)
                  AND finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END
                      >= least(since_, now_) - 86400) THEN
      RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'an id is taken';
    END IF;
  END IF;
END $$;

-- A role that may enqueue may send anything. A row that a worker could not read would stop all that meet it.
CREATE FUNCTION penstock.check_columns(
  ids_ text[], delays_ text[], run_at_ text[], expires_in_ text[], remember_ text[], unique_for_ text[],
  unique_until_ text[], tags_ text[], keep_ text[], keep_failed_ text[], meta_ text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  id_ text;
BEGIN
  SELECT given.id INTO id_
    FROM unnest(ids_, delays_::double precision[], run_at_::double precision[],
                expires_in_::double precision[], remember_::double precision[],
                unique_for_::double precision[], unique_until_, tags_, keep_::double precision[],
                keep_failed_::double precision[], meta_)
           AS given (id, delay, run_at, expires_in, remember, unique_for, unique_until, tags, keep, keep_failed, meta)
   WHERE given.unique_until NOT IN ('done', 'start')
      OR greatest(abs(given.delay), abs(given.run_at), abs(given.expires_in), abs(given.remember),
                  abs(given.unique_for)) > 1e300
      OR given.keep NOT BETWEEN 0 AND 1e10 OR given.keep_failed NOT BETWEEN 0 AND 1e10 OR json_typeof(given.meta::json) <> 'object'
      OR json_typeof(given.tags::json) <> 'array'
      OR given.tags::jsonb @? 'strict $[*] ? (@.type() != "string")'
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
      'job %L has a time that is not finite or too long, or words or metadata that are none', id_);
  END IF;
END $$;

-- The numbers of jobs whose ids are taken, and the tasks that have them: by the ledger, where a person chose
-- them; by a job that lives or ended after `since_`, if that is given. Only looked at, not locked: what a foreign
-- transaction found taken must not wait for its end. Asked one after the other: a plan for both at once reads all
-- of a table.
CREATE FUNCTION penstock.known(
  ids_ text[], remember_ text[], all_remember_ text, since_ double precision, now_ double precision,
  OUT numbers_ bigint[], OUT tasks_ text[]) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  remembered_ text[];
  theirs_     text[];
  stored_     text[];
  its_        text[];
BEGIN
  numbers_ := '{}';
  IF remember_ IS NOT NULL THEN
    SELECT array_agg(id), array_agg(task) INTO remembered_, theirs_
      FROM penstock.ledger WHERE id = ANY (ids_) AND until > now_;
  END IF;
  IF since_ IS NOT NULL THEN
    SELECT array_agg(id), array_agg(task) INTO stored_, its_ FROM (
      SELECT id, task FROM penstock.live    WHERE id = ANY (ids_) UNION ALL
      SELECT id, task FROM penstock.history WHERE id = ANY (ids_)
         AND finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END
             >= least(since_, now_) - 86400) AS job;
  END IF;
  IF remembered_ IS NULL AND stored_ IS NULL THEN
    RETURN;
  END IF;
  SELECT coalesce(array_agg(given.number), '{}'), array_agg(coalesce(remembered.task, stored.task))
    INTO numbers_, tasks_
    FROM unnest(ids_, remember_) WITH ORDINALITY AS given (id, remember, number)
    LEFT JOIN unnest(stored_, its_) AS stored (id, task) ON stored.id = given.id
    LEFT JOIN unnest(remembered_, theirs_) AS remembered (id, task)
      ON remembered.id = given.id AND coalesce(given.remember, all_remember_)::double precision > 0
   WHERE stored.id IS NOT NULL OR remembered.id IS NOT NULL;
END $$;

-- Write ids that a person chose into the ledger. One that is there already was written since we looked.
CREATE FUNCTION penstock.remember(
  ids_ text[], tasks_ text[], all_task_ text, remember_ text[], all_remember_ text, refused_ bigint[],
  now_ double precision)
RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  wanted_ bigint;
  rows_   bigint;
BEGIN
  WITH given AS MATERIALIZED (
    SELECT each.id, now_ + coalesce(each.remember, all_remember_)::double precision AS until,
           coalesce(each.task, all_task_) AS task
      FROM unnest(ids_, tasks_, remember_) WITH ORDINALITY AS each (id, task, remember, number)
     WHERE coalesce(each.remember, all_remember_)::double precision > 0 AND each.number <> ALL (refused_)
  ), written AS (
    INSERT INTO penstock.ledger AS mine (id, until, task) SELECT id, until, task FROM given ORDER BY id
    ON CONFLICT (id) DO UPDATE SET until = excluded.until, task = excluded.task WHERE mine.until <= now_
    RETURNING 1)
  SELECT (SELECT count(*) FROM given), (SELECT count(*) FROM written) INTO wanted_, rows_;
  IF rows_ < wanted_ THEN
    RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'an id is taken';
  END IF;
END $$;

-- Give free keys to jobs, each to the first of the batch that wants it; returns those that found theirs
-- taken, and the owners. A key that is taken is only read: a lock on it would keep its owner from ending. So
-- is one that is over, if another transaction has it just now; what that does with it decides.
CREATE FUNCTION penstock.take_keys(
  ids_ text[], keys_ text[], all_key_ text, for_ text[], all_for_ text, refused_ bigint[],
  now_ double precision, is_careful_ boolean,
  OUT numbers_ bigint[], OUT owners_ text[]) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  wanted_ bigint;
  rows_   bigint;
BEGIN
  -- What is over, and what an id had in an earlier life, if it is known to be free again.
  DELETE FROM penstock.unique_key WHERE key = ANY (ARRAY(
    SELECT mine.key FROM unnest(ids_, keys_) WITH ORDINALITY AS given (id, key, number)
      JOIN penstock.unique_key AS mine ON mine.key = coalesce(given.key, all_key_)
     WHERE given.number <> ALL (refused_)
       AND (NOT (mine.held OR mine.until > now_) OR (is_careful_ AND mine.owner = given.id))
       FOR UPDATE OF mine SKIP LOCKED));
  WITH given AS MATERIALIZED (
    SELECT coalesce(each.key, all_key_) AS key, each.id, each.number,
           now_ + coalesce(each.for_, all_for_, '0')::double precision AS until
      FROM unnest(ids_, keys_, for_) WITH ORDINALITY AS each (id, key, for_, number)
     WHERE coalesce(each.key, all_key_) IS NOT NULL AND each.number <> ALL (refused_)
  ), taken AS (
    INSERT INTO penstock.unique_key (key, owner, until, held)
    SELECT DISTINCT ON (key) key, id, until, true FROM given ORDER BY key, number
    ON CONFLICT (key) DO NOTHING
    RETURNING 1)
  SELECT (SELECT count(*) FROM given), (SELECT count(*) FROM taken) INTO wanted_, rows_;
  numbers_ := '{}';
  IF rows_ = wanted_ THEN
    RETURN;
  END IF;
  SELECT array_agg(given.number), array_agg(mine.owner) INTO numbers_, owners_
    FROM unnest(ids_, keys_) WITH ORDINALITY AS given (id, key, number)
    JOIN penstock.unique_key AS mine ON mine.key = coalesce(given.key, all_key_)
   WHERE given.number <> ALL (refused_) AND mine.owner <> given.id AND (mine.held OR mine.until > now_);
  IF rows_ + coalesce(cardinality(numbers_), 0) <> wanted_ THEN
    -- One was given back at this moment, or taken for the same job by another way.
    RAISE EXCEPTION USING ERRCODE = 'PS001', MESSAGE = 'a unique key was taken or given back meanwhile';
  END IF;
END $$;

-- Which job of a batch cannot be stored while another transaction is open that has its id or its key; null:
-- all can by now. Each is tried, and nothing of it stays.
CREATE FUNCTION penstock.contested(ids_ text, uniques_ text, mark_ text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
DECLARE
  draft   record;
  number_ bigint;
BEGIN
  FOR draft IN
    SELECT * FROM unnest(penstock.items(ids_, mark_), penstock.items(uniques_, mark_)) WITH ORDINALITY
               AS given (id, key, number)
  LOOP
    number_ := draft.number;
    INSERT INTO penstock.ledger (id, until, task) VALUES (draft.id, 0, '') ON CONFLICT (id) DO NOTHING;
    IF draft.key IS NOT NULL THEN
      INSERT INTO penstock.unique_key (key, owner, until, held) VALUES (draft.key, '', 0, true)
      ON CONFLICT (key) DO NOTHING;
    END IF;
    INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
    VALUES (0, 0, 0, 0, draft.id, '', '', 'ready', '') ON CONFLICT (id) DO NOTHING;
  END LOOP;
  number_ := NULL;
  RAISE EXCEPTION USING ERRCODE = 'PS005', MESSAGE = 'nothing of it stays';
EXCEPTION WHEN lock_not_available OR SQLSTATE 'PS005' THEN
  RETURN number_;
END $$;

-- Store jobs in a transaction of the caller, from a JSON object of the columns by their names. Nothing of
-- ours can look for sleepers after the commit, so the wake-up goes with it; and how long to wait for an id or a
-- key that another open transaction has is the caller's to say.
CREATE FUNCTION penstock.put_json(columns_ text)
RETURNS TABLE (number bigint, owner text, because text, task text) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given record;
BEGIN
  SELECT * INTO given FROM json_to_record(columns_::json) AS each (
    ids text, payloads text, is_binary boolean, tasks text, queues text, priorities text, enqueued_by text, delays text,
    run_at text, expires_in text, keys text, names text, tags text, correlation_ids text, at_most_once text,
    remember text, uniques text, unique_until text, unique_for text, keep text, keep_failed text, meta text, mark text,
    since double precision);
  FOR try_ IN 1..5 LOOP
    BEGIN
      RETURN QUERY SELECT * FROM penstock.put(
        given.ids, given.payloads, coalesce(given.is_binary, false), given.tasks, given.queues,
        given.priorities, given.enqueued_by, given.delays, given.run_at, given.expires_in, given.keys, given.names,
        given.tags, given.correlation_ids, given.at_most_once, given.remember, given.uniques,
        given.unique_until, given.unique_for, given.keep, given.keep_failed, given.meta, coalesce(given.mark, ''),
        coalesce(given.since, 0), true, false);
      EXIT;
    EXCEPTION WHEN unique_violation OR SQLSTATE 'PS001' THEN
      IF try_ = 5 THEN
        RAISE;
      END IF;
    END;
  END LOOP;
  PERFORM pg_notify('penstock.wake', 'work');
END $$;

-- --- unique keys (law 13) ---------------------------------------------------------------------------

-- The text under which a key is known: behind the name of its task, or behind none if it is one for all tasks. The
-- same as core/unique_keys.py.
CREATE FUNCTION penstock.stored_key(task_ text, key_ text, scope_ text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE scope_ WHEN 'app' THEN '' ELSE length(task_) || ':' || task_ END || ':' || key_
$$;

-- The key as it was given, and whose it is.
CREATE FUNCTION penstock.given_key(task_ text, stored_ text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN left(stored_, 1) = ':' THEN substr(stored_, 2)
              ELSE substr(stored_, length(penstock.stored_key(task_, '', 'task')) + 1) END
$$;
CREATE FUNCTION penstock.scope_of(stored_ text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN left(stored_, 1) = ':' THEN 'app' WHEN stored_ IS NOT NULL THEN 'task' END
$$;

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
