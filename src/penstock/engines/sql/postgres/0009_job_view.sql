-- The public face of the store: `penstock.job`, version 1. Everything else in this schema is ours to
-- change; this view is kept, and grows at its end only (docs/reference/sql.md is its contract).
--
--   INSERT   id, task, payload, queue, priority, key, name, tags, correlation_id, run_at or delay,
--            expires_at or expires_in, unique_key, unique_scope, unique_until, unique_for, at_most_once.
--            Only `task` is needed; what is null has its default. It becomes a job with the transaction it is
--            in, which also wakes a worker. An id that a job of the same task has, or a unique key that is
--            taken, inserts nothing and is no error; the id of another task's job is one. A payload that is
--            not a JSON object is kept as a failed job that says why.
--   SELECT   every job, live or finished, with what became of it. Cheap: by `id`, by `state = 'failed'`.
--            What waits or runs is read from among the live jobs alone. `delay`, `expires_in` and
--            `unique_for` are only for INSERT.
--   UPDATE and DELETE are refused: a job is cancelled, retried and purged by the CLI or the API.

-- Which states are in which table, so that the view leaves out the one where a state cannot be.
ALTER TABLE penstock.history
  ADD CONSTRAINT history_state CHECK (state IN ('succeeded', 'failed', 'cancelled'));

-- --- how a job is shown -----------------------------------------------------------------------------

-- Bytes as text; those that are none are shown escaped. To read is never an error.
CREATE FUNCTION penstock.shown(value_ bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN convert_from(value_, 'UTF8');
EXCEPTION WHEN data_exception THEN
  RETURN encode(value_, 'escape');
END $$;

-- Seconds since 1970 as an instant; one that no calendar has is shown as the end of time.
CREATE FUNCTION penstock.instant(at_ double precision) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN at_ >= 253402300800 THEN 'infinity'::timestamptz
              WHEN at_ < -62135596800 THEN '-infinity'::timestamptz
              ELSE pg_catalog.to_timestamp(at_) END
$$;

CREATE FUNCTION penstock.words(list_ text) RETURNS text[] LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(word), '{}') FROM json_array_elements_text(list_::json) AS each (word)
$$;

-- Two plain tables side by side, so that a condition on a column reaches the indexes of both.
CREATE VIEW penstock.job AS
SELECT id, task, penstock.shown(payload) AS payload, queue, priority, key, name,
       penstock.words(tags) AS tags, correlation_id,
       penstock.instant(run_at) AS run_at, NULL::interval AS delay,
       penstock.instant(expires_at) AS expires_at, NULL::interval AS expires_in,
       penstock.given_key(task, unique_key) AS unique_key, penstock.scope_of(unique_key) AS unique_scope,
       CASE WHEN unique_key IS NOT NULL THEN coalesce(unique_until, 'done') END AS unique_until,
       NULL::interval AS unique_for, at_most_once,
       state, hold, hold_cause, attempt, failures, crashes, worker, started, progress, note, reason,
       penstock.shown(result) AS result, coalesce(errors, '[]')::json AS errors,
       penstock.instant(enqueued_at) AS enqueued_at, enqueued_by,
       penstock.instant(claimed_at) AS claimed_at, penstock.instant(finished_at) AS finished_at
  FROM penstock.live
UNION ALL
SELECT id, task, penstock.shown(payload), queue, priority, key, name, penstock.words(tags), correlation_id,
       penstock.instant(run_at), NULL, penstock.instant(expires_at), NULL,
       penstock.given_key(task, unique_key), penstock.scope_of(unique_key),
       CASE WHEN unique_key IS NOT NULL THEN coalesce(unique_until, 'done') END, NULL,
       at_most_once,
       state, hold, hold_cause, attempt, failures, crashes, worker, started, progress, note, reason,
       penstock.shown(result), coalesce(errors, '[]')::json, penstock.instant(enqueued_at), enqueued_by,
       penstock.instant(claimed_at), penstock.instant(finished_at)
  FROM penstock.history;

COMMENT ON VIEW penstock.job IS
  'Penstock jobs, version 1: INSERT (id, task, payload, ...) enqueues, SELECT reads; see docs, reference/sql';

-- --- how a job is written ---------------------------------------------------------------------------

-- An id as Penstock makes them: ten digits that grow with the time, sixteen at random.
CREATE FUNCTION penstock.new_id(at_ double precision) RETURNS text LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT lpad(to_hex(floor(at_ * 100)::bigint & 1099511627775), 10, '0')
         || substr(chance.digits, 1, 12) || substr(chance.digits, 29, 4)
    FROM replace(gen_random_uuid()::text, '-', '') AS chance (digits)
$$;

-- Why a text cannot be the arguments of a task; null if it can. Nothing is written inside the block, so
-- it costs no transaction number, however many rows come at once.
CREATE FUNCTION penstock.not_an_object(payload_ text) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind_   text;
  what_   text;
  detail_ text;
BEGIN
  kind_ := json_typeof(payload_::json);
  RETURN CASE kind_ WHEN 'object' THEN NULL WHEN 'array' THEN 'it is an array'
                    WHEN 'string' THEN 'it is text' WHEN 'null' THEN 'it is null'
                    ELSE 'it is a ' || kind_ END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
  GET STACKED DIAGNOSTICS what_ = MESSAGE_TEXT, detail_ = PG_EXCEPTION_DETAIL;
  RETURN left(what_ || coalesce(': ' || nullif(detail_, ''), ''), 300);
END $$;

-- Say what is wrong with a row, and what would be right. Null: nothing.
CREATE FUNCTION penstock.refusal(job penstock.job, now_ double precision) RETURNS text[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name_  text;
  value_ text;
BEGIN
  -- The usual row is through with these questions.
  IF num_nonnulls(job.state, job.hold, job.hold_cause, job.attempt, job.failures, job.crashes, job.worker,
                  job.started, job.progress, job.note, job.reason, job.result, job.errors,
                  job.enqueued_at, job.enqueued_by, job.claimed_at, job.finished_at) = 0
     AND job.task <> ''
     AND greatest(length(job.id), length(job.task), length(job.queue), length(job.key), length(job.name),
                  length(job.correlation_id), length(job.unique_key)) <= 255
     AND ('' IN (job.id, job.queue, job.key, job.name, job.correlation_id, job.unique_key)) IS NOT TRUE
     AND num_nonnulls(job.tags, job.priority, job.run_at, job.delay, job.expires_at, job.expires_in,
                      job.unique_until, job.unique_for, job.unique_scope) = 0 THEN
    RETURN NULL;
  END IF;
  FOR name_, value_ IN
    SELECT * FROM (VALUES
      ('state', job.state), ('hold', job.hold), ('hold_cause', job.hold_cause),
      ('attempt', job.attempt::text), ('failures', job.failures::text), ('crashes', job.crashes::text),
      ('worker', job.worker), ('started', job.started::text), ('progress', job.progress::text),
      ('note', job.note), ('reason', job.reason), ('result', job.result), ('errors', job.errors::text),
      ('enqueued_at', job.enqueued_at::text), ('enqueued_by', job.enqueued_by),
      ('claimed_at', job.claimed_at::text), ('finished_at', job.finished_at::text)) AS given (name, value)
     WHERE value IS NOT NULL
  LOOP
    RETURN ARRAY[format('column %I of a new job is not yours to set', name_),
                 'Leave it out: the store says what becomes of a job.'];
  END LOOP;
  IF job.task IS NULL THEN
    RETURN ARRAY['a job needs a task', 'Give task the name that the task is declared with.'];
  END IF;
  FOR name_, value_ IN
    SELECT * FROM (VALUES
      ('id', job.id), ('task', job.task), ('queue', job.queue), ('key', job.key), ('name', job.name),
      ('correlation_id', job.correlation_id), ('unique_key', job.unique_key)) AS given (name, value)
     WHERE value = '' OR length(value) > 255
  LOOP
    RETURN ARRAY[format('column %I has %s characters', name_, length(value_)),
                 'Give 1 to 255 characters, or leave it out.'];
  END LOOP;
  IF array_ndims(job.tags) > 1 OR array_position(job.tags, NULL) IS NOT NULL
     OR EXISTS (SELECT FROM unnest(job.tags) AS each (tag) WHERE tag = '' OR length(tag) > 255) THEN
    RETURN ARRAY[format('tags %s are no plain list of words', job.tags),
                 'Give an array of texts with 1 to 255 characters each.'];
  END IF;
  IF job.priority NOT BETWEEN -1000 AND 1000 THEN
    RETURN ARRAY[format('priority %s is out of range', job.priority),
                 'Give a number from -1000 to 1000; 0 is high, 5 normal, 10 low.'];
  END IF;
  IF job.run_at IS NOT NULL AND job.delay IS NOT NULL THEN
    RETURN ARRAY['run_at and delay are both given', 'Give one of the two.'];
  END IF;
  IF job.expires_at IS NOT NULL AND job.expires_in IS NOT NULL THEN
    RETURN ARRAY['expires_at and expires_in are both given', 'Give one of the two.'];
  END IF;
  FOR name_, value_ IN
    SELECT * FROM (VALUES ('run_at', job.run_at), ('expires_at', job.expires_at)) AS given (name, value)
     WHERE value NOT BETWEEN to_timestamp(0) AND to_timestamp(253402300799)
  LOOP
    RETURN ARRAY[format('%I %s is no instant from 1970 to 9999', name_, value_),
                 'Give a timestamptz such as now() + interval ''1 hour''.'];
  END LOOP;
  FOR name_, value_ IN
    SELECT * FROM (VALUES
      ('delay', job.delay), ('expires_in', job.expires_in), ('unique_for', job.unique_for)
      ) AS given (name, value)
     WHERE extract(epoch FROM value) < 0 OR extract(epoch FROM value) > 253402300799 - now_
        OR (name = 'expires_in' AND extract(epoch FROM value) = 0)
  LOOP
    RETURN ARRAY[format('%I %s is no time to wait', name_, value_),
                 'Give an interval such as ''5 minutes'', or leave it out.'];
  END LOOP;
  IF job.unique_until NOT IN ('done', 'start') THEN
    RETURN ARRAY[format('unique_until %L is neither ''done'' nor ''start''', job.unique_until),
                 'Give one of the two, or leave it out: the key is kept until the job is done.'];
  END IF;
  IF job.unique_scope NOT IN ('task', 'app') THEN
    RETURN ARRAY[format('unique_scope %L is neither ''task'' nor ''app''', job.unique_scope),
                 'Give one of the two, or leave it out: the key belongs to the task.'];
  END IF;
  IF job.unique_key IS NULL AND num_nonnulls(job.unique_until, job.unique_for, job.unique_scope) > 0 THEN
    RETURN ARRAY['unique_until, unique_for and unique_scope say nothing without unique_key',
                 'Give unique_key too, or leave them out.'];
  END IF;
  RETURN NULL;
END $$;

-- A row becomes a job. Who inserts need not be able to read or write anything else: all of this runs
-- with the rights of the owner.
CREATE FUNCTION penstock.insert_job() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
  now_     double precision := penstock.now();
  refusal_ text[] := penstock.refusal(NEW, now_);
  is_given boolean := NEW.id IS NOT NULL;
  key_     text    := penstock.stored_key(NEW.task, NEW.unique_key, coalesce(NEW.unique_scope, 'task'));
  why_     text;
  because_ text;
  whose_   text;
BEGIN
  IF refusal_ IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = refusal_[1], HINT = refusal_[2];
  END IF;
  NEW.id := coalesce(NEW.id, penstock.new_id(now_));
  NEW.payload := coalesce(NEW.payload, '{}');
  NEW.queue := coalesce(NEW.queue, 'default');
  NEW.priority := coalesce(NEW.priority, 5);
  NEW.tags := coalesce(NEW.tags, '{}');
  NEW.at_most_once := coalesce(NEW.at_most_once, false);
  NEW.enqueued_by := 'sql:' || session_user;
  why_ := penstock.not_an_object(NEW.payload);

  -- A given id is remembered for 7 days, and may have been used at any time before. No text has the mark.
  SELECT refused.because, refused.task INTO because_, whose_ FROM penstock.put_json(json_build_object(
    'ids', NEW.id, 'tasks', NEW.task, 'payloads', NEW.payload, 'queues', NEW.queue, 'priorities', NEW.priority,
    'keys', NEW.key, 'names', NEW.name, 'tags', CASE WHEN NEW.tags <> '{}' THEN to_json(NEW.tags)::text END,
    'correlation_ids', NEW.correlation_id, 'run_at', extract(epoch FROM NEW.run_at),
    'delays', extract(epoch FROM NEW.delay),
    'expires_in', coalesce(extract(epoch FROM NEW.expires_in)::double precision,
                           extract(epoch FROM NEW.expires_at)::double precision - now_),
    'uniques', key_, 'unique_until', NEW.unique_until,
    'unique_for', extract(epoch FROM NEW.unique_for), 'at_most_once', NEW.at_most_once,
    'enqueued_by', NEW.enqueued_by, 'remember', CASE WHEN is_given THEN 604800 END,
    'since', CASE WHEN is_given THEN 0 ELSE now_ END, 'mark', gen_random_uuid())::text) AS refused WHERE refused.number > 0;
  IF FOUND THEN
    IF because_ = 'id' AND whose_ <> NEW.task THEN
      RAISE EXCEPTION USING ERRCODE = 'unique_violation',
        MESSAGE = format('id %L of a job of task %L is taken by a job of task %L', NEW.id, NEW.task, whose_),
        HINT = 'Begin ids with a word for their task: the same event may lead to jobs of several tasks.';
    END IF;
    RETURN NULL;
  END IF;
  IF NEW.expires_at IS NOT NULL THEN
    -- As it was said: on the way through `put` it was a time from now on.
    UPDATE penstock.live SET expires_at = extract(epoch FROM NEW.expires_at) WHERE id = NEW.id;
  END IF;
  IF why_ IS NOT NULL THEN
    PERFORM penstock.quarantine(NEW.id, format('%s: the stored payload is not a JSON object: %s', NEW.task, why_));
  END IF;

  -- What RETURNING shows.
  NEW.delay := NULL; NEW.expires_in := NULL; NEW.unique_for := NULL;
  IF why_ IS NULL THEN
    SELECT penstock.instant(run_at), penstock.instant(expires_at), state, hold, hold_cause,
           penstock.instant(enqueued_at)
      INTO NEW.run_at, NEW.expires_at, NEW.state, NEW.hold, NEW.hold_cause, NEW.enqueued_at
      FROM penstock.live WHERE id = NEW.id;
    NEW.unique_until := CASE WHEN key_ IS NOT NULL THEN coalesce(NEW.unique_until, 'done') END;
    NEW.unique_scope := penstock.scope_of(key_);
    NEW.attempt := 0; NEW.failures := 0; NEW.crashes := 0; NEW.started := false; NEW.errors := '[]';
  ELSE
    SELECT * INTO NEW FROM penstock.job WHERE id = NEW.id;
  END IF;
  RETURN NEW;
END $$;

-- A job that was stored just now and can never run ends as failed, where people look for such.
CREATE FUNCTION penstock.quarantine(id_ text, reason_ text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  now_ double precision := penstock.now();
  key_ text;
BEGIN
  -- Usually it is there.
  PERFORM penstock.make_day(now_ + (SELECT keep_failed FROM penstock.live WHERE id = id_));
  WITH gone AS (DELETE FROM penstock.live WHERE id = id_ RETURNING *)
  INSERT INTO penstock.history
  SELECT entry, seq, priority, enqueued_at, run_at, expires_at, NULL, NULL, now_, NULL, keep, revision + 1,
         0, 0, 0, 0, 0, NULL, false, at_most_once, id, task, queue, 'failed', NULL, enqueued_by, NULL, NULL, key,
         unique_key, unique_until, name, correlation_id, NULL, NULL, reason_, NULL, tags, meta, NULL, payload, NULL, NULL, line, keep_failed
    FROM gone
  RETURNING unique_key INTO key_;
  PERFORM penstock.give_back(ARRAY[key_], ARRAY[id_], now_);
END $$;

CREATE FUNCTION penstock.refuse_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
    MESSAGE = format('a job cannot be changed by %s', TG_OP),
    HINT = format('Use ''penstock jobs cancel %1$s'', ''penstock jobs retry %1$s'' or ''penstock jobs purge'', '
                  'or the same in the API.', OLD.id);
END $$;

CREATE TRIGGER insert_job INSTEAD OF INSERT ON penstock.job
   FOR EACH ROW EXECUTE FUNCTION penstock.insert_job();
CREATE TRIGGER refuse_change INSTEAD OF UPDATE OR DELETE ON penstock.job
   FOR EACH ROW EXECUTE FUNCTION penstock.refuse_change();

-- --- who may do what --------------------------------------------------------------------------------

-- What roles were allowed, so that it holds for what a later version adds.
CREATE TABLE penstock.allowed (
  role text COLLATE "C", what text COLLATE "C", PRIMARY KEY (role, what),
  CHECK (what IN ('enqueue', 'work', 'read'))
);

-- A sleeper says so, also where it may write nothing else: a dashboard, or a caller that waits for a result.
ALTER FUNCTION penstock.doze SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

-- Let a role enqueue, work or read. Called by the owner of the schema, or a role that may grant its rights.
CREATE FUNCTION penstock.allow(role_ text, what_ text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF what_ NOT IN ('enqueue', 'work', 'read') THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('no role can be allowed to %s', quote_literal(what_)),
      HINT = 'Give ''enqueue'', ''work'' or ''read''.';
  END IF;
  PERFORM FROM pg_roles WHERE rolname = role_;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'undefined_object',
      MESSAGE = format('there is no role %I', role_), HINT = 'Make it with CREATE ROLE first.';
  END IF;
  INSERT INTO penstock.allowed (role, what) VALUES (role_, what_) ON CONFLICT DO NOTHING;
  PERFORM penstock.grant_all(role_, what_);
  IF what_ = 'enqueue' AND has_schema_privilege(role_, 'public', 'CREATE') THEN
    RAISE WARNING USING MESSAGE = format('role %I may create functions that others would call by mistake', role_),
      HINT = 'Run: REVOKE CREATE ON SCHEMA public FROM PUBLIC;';
  END IF;
END $$;

-- Take back all that `allow` gave to a role.
CREATE FUNCTION penstock.forbid(role_ text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  schema_ regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass);
BEGIN
  DELETE FROM penstock.allowed WHERE role = role_;
  EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %s FROM %I', schema_, role_);
  EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %s FROM %I', schema_, role_);
  EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %s FROM %I', schema_, role_);
  EXECUTE format('REVOKE ALL ON SCHEMA %s FROM %I', schema_, role_);
END $$;

CREATE FUNCTION penstock.grant_all(role_ text, what_ text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  schema_ regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass);
  each_   regprocedure;
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', schema_, role_);
  -- Every handle asks which version the schema has, and what time it is.
  EXECUTE format('GRANT SELECT ON penstock.migration TO %I', role_);
  EXECUTE format('GRANT EXECUTE ON FUNCTION penstock.now, penstock.shifted_now TO %I', role_);
  CASE what_
    WHEN 'enqueue' THEN
      EXECUTE format('GRANT INSERT ON penstock.job TO %I', role_);
      EXECUTE format('GRANT EXECUTE ON FUNCTION penstock.put, penstock.put_json, penstock.contested, penstock.wake '
                     'TO %I', role_);
    WHEN 'read' THEN
      EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO %I', schema_, role_);
      EXECUTE format('GRANT SELECT ON ALL SEQUENCES IN SCHEMA %s TO %I', schema_, role_);
      EXECUTE format('GRANT EXECUTE ON FUNCTION penstock.doze TO %I', role_);
      -- What is not volatile writes nothing.
      FOR each_ IN SELECT oid FROM pg_proc WHERE pronamespace = schema_ AND provolatile <> 'v' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', each_, role_);
      END LOOP;
    WHEN 'work' THEN
      EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %s TO %I', schema_, role_);
      EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON penstock.migration, penstock.allowed FROM %I', role_);
      EXECUTE format('GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA %s TO %I', schema_, role_);
      EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %I', schema_, role_);
  END CASE;
END $$;

-- After every change of the schema: a new function is for the roles alone that were allowed it.
-- PostgreSQL gives it to all; what a person has granted since is left as it is.
CREATE FUNCTION penstock.keep_rights() RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  schema_ regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass);
  each_   regprocedure;
  role_   text;
  what_   text;
BEGIN
  FOR each_ IN SELECT oid FROM pg_proc WHERE pronamespace = schema_ AND proacl IS NULL LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', each_);
  END LOOP;
  FOR role_, what_ IN
    SELECT role, what FROM penstock.allowed JOIN pg_roles ON rolname = role ORDER BY role, what
  LOOP
    PERFORM penstock.grant_all(role_, what_);
  END LOOP;
END $$;

-- Roles that may read the view need these, and they tell nothing.
GRANT EXECUTE ON FUNCTION
  penstock.shown, penstock.words, penstock.instant, penstock.stored_key, penstock.given_key, penstock.scope_of
TO PUBLIC;
