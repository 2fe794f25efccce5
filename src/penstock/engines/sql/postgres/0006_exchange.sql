-- One turn of a worker, in one call.
--
-- What finds rows by their place (ctid) may use no index: a plan that was made while there were hardly any jobs
-- would read all of them, for each one that is meant. The state is asked so that no index knows it.

-- What a turn gives back, a row per job; the last row (number 0) says in `rest` what is not a job.
CREATE TYPE penstock.taken AS (
  number bigint, tid text, id text, task text, payload bytea, queue text, priority bigint,
  enqueued_at double precision, enqueued_by text, seq bigint, claim integer, attempt integer,
  started boolean, keep double precision, rest text);

-- The worker's lease, until the transaction ends: no leader takes it from a worker in its exchange. A lock on
-- its row would have to be written, and a turn that changes nothing would cost a commit. What can be tried
-- need not be planned.
CREATE FUNCTION penstock.hold_lease(worker_ text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_)) THEN
    PERFORM pg_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_));
  END IF;
END $$;

-- Attempts that have begun since they were claimed.
CREATE FUNCTION penstock.begin_attempts(worker_ text, ids_ text[], claims_ integer[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE penstock.live AS job SET started = true
    FROM unnest(ids_, claims_) AS begun (id, claim)
   WHERE job.id = begun.id AND job.claim = begun.claim AND job.worker = worker_
     AND job.state = 'running' AND NOT job.started;
END $$;

-- How far attempts have come. A job that another transaction has just now is told of the next time: a report
-- waits for nothing.
CREATE FUNCTION penstock.report(worker_ text, reports_ json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE penstock.live AS job
     SET progress = said.fraction, note = said.note,
         checkpoint = coalesce(decode(said.checkpoint, 'base64'), job.checkpoint)
    FROM json_to_recordset(reports_) AS said (
           job text, claim integer, fraction double precision, note text, checkpoint text)
   WHERE job.ctid = (SELECT mine.ctid FROM penstock.live AS mine
                      WHERE mine.id = said.job AND mine.claim = said.claim AND mine.worker = worker_
                        AND mine.state = 'running' FOR UPDATE SKIP LOCKED);
END $$;

-- Where the rows of these jobs are by now.
CREATE FUNCTION penstock.places(ids_ text[]) RETURNS tid[] LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN ARRAY(SELECT (SELECT job.ctid FROM penstock.live AS job WHERE job.id = mine.id)
                 FROM unnest(ids_) WITH ORDINALITY AS mine (id, number) ORDER BY mine.number);
END $$;

-- End jobs that have succeeded, by their places; returns the ids of those that were inside the fence.
CREATE FUNCTION penstock.succeed_at(
  worker_ text, tids_ tid[], ids_ text[], claims_ integer[], results_ text[], now_ double precision)
RETURNS text[] LANGUAGE plpgsql SET enable_indexscan = off AS $$
DECLARE
  done_   text[];
  keys_   text[];
  owners_ text[];
BEGIN
  WITH gone AS (
    DELETE FROM penstock.live AS job
     USING unnest(tids_, ids_, claims_, results_) AS done (tid, id, claim, result)
     WHERE job.ctid = done.tid AND job.id = done.id AND job.claim = done.claim
       AND job.worker = worker_ AND job.state || '' = 'running'
    RETURNING job.*, convert_to(done.result, 'UTF8') AS outcome
  ), ended AS (
    INSERT INTO penstock.history
    SELECT entry, seq, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_, progress, keep,
           revision + 1, claim, attempt, failures, crashes, rescues, signed_claim, started, at_most_once, id, task,
           queue, 'succeeded', worker, enqueued_by, NULL, NULL, key, unique_key, unique_until, name,
           correlation_id, signed_by, NULL, NULL, note, tags, meta, errors, payload, outcome, checkpoint, line
      FROM gone
  ), noted AS (
    INSERT INTO penstock.note (queue, key)
    SELECT DISTINCT gone.queue, gone.line FROM gone JOIN penstock.queue AS queue ON queue.name = gone.queue
     WHERE gone.line IS NOT NULL AND queue.per_key IS NOT NULL
  )
  SELECT array_agg(id), array_agg(unique_key) FILTER (WHERE unique_key IS NOT NULL),
         array_agg(id) FILTER (WHERE unique_key IS NOT NULL)
    INTO done_, keys_, owners_ FROM gone;
  IF keys_ IS NOT NULL THEN
    PERFORM penstock.give_back(keys_, owners_, now_);
  END IF;
  RETURN coalesce(done_, '{}');
END $$;

-- Settle successes. A row that was written to since it was claimed has moved: it is found by its id. Returns
-- the ids of those that are not inside the fence.
CREATE FUNCTION penstock.succeed_all(
  worker_ text, tids_ text[], ids_ text[], claims_ integer[], results_ text[], now_ double precision)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  done_ text[] := penstock.succeed_at(worker_, tids_::tid[], ids_, claims_, results_, now_);
BEGIN
  IF cardinality(done_) < cardinality(ids_) THEN
    done_ := done_ || penstock.succeed_at(worker_, penstock.places(ids_), ids_, claims_, results_, now_);
    RETURN ARRAY(SELECT id FROM unnest(ids_) AS given (id) WHERE id <> ALL (done_));
  END IF;
  RETURN '{}';
END $$;

-- The parts of lines to look at: those of queues that are `whole_` begin at their start.
CREATE FUNCTION penstock.widened(
  is_whole_ boolean[], INOUT range_queue_ bigint[], INOUT from_priority_ bigint[], INOUT from_place_ bigint[],
  INOUT from_seq_ bigint[], INOUT to_priority_ bigint[]) LANGUAGE sql IMMUTABLE AS $$
  SELECT array_agg(part.queue), array_agg(part.from_priority), array_agg(part.from_place),
         array_agg(part.from_seq), array_agg(part.to_priority)
    FROM (SELECT * FROM unnest(range_queue_, from_priority_, from_place_, from_seq_, to_priority_)
                          AS part (queue, from_priority, from_place, from_seq, to_priority)
           WHERE NOT is_whole_[part.queue]
          UNION ALL
          SELECT number, -9223372036854775808, -9223372036854775808, -9223372036854775808, 9223372036854775807
            FROM unnest(is_whole_) WITH ORDINALITY AS mine (is_whole, number) WHERE mine.is_whole) AS part
$$;

-- Before a claim chooses in queues whose keys take turns: see to what was decided about them, and read their notes.
-- Returns the numbers of the last notes by queue, and whether there is more to do.
CREATE FUNCTION penstock.prepare_turns(
  rooms_ penstock.room[], INOUT notes_ bigint[], is_whole_ boolean[], range_queue_ bigint[], from_priority_ bigint[],
  from_place_ bigint[], OUT is_behind_ boolean) LANGUAGE plpgsql AS $$
DECLARE
  room_ penstock.room;
  seen record;
BEGIN
  is_behind_ := false;
  FOREACH room_ IN ARRAY rooms_ LOOP
    IF room_.keyed THEN
      is_behind_ := penstock.move_jobs(room_.queue, 200) OR is_behind_;
      SELECT * INTO seen FROM penstock.read_notes(
        room_.queue, CASE WHEN is_whole_[room_.number] THEN 0 ELSE coalesce(notes_[room_.number], 0) END,
        room_.per_key, room_.weights,
        ARRAY(SELECT part.priority FROM unnest(range_queue_, from_priority_) AS part (queue, priority)
               WHERE part.queue = room_.number),
        ARRAY(SELECT part.place FROM unnest(range_queue_, from_place_) AS part (queue, place)
               WHERE part.queue = room_.number));
      notes_[room_.number] := seen.last_;
      is_behind_ := is_behind_ OR seen.is_behind_;
    END IF;
  END LOOP;
END $$;

-- Jobs are about to be claimed: the lines of those whose keys take turns move on. Returns for each queue and priority
-- where its first active line was, as [queue, priority, place].
CREATE FUNCTION penstock.take_turns(
  rooms_ penstock.room[], tids_ tid[], range_queue_ bigint[], from_priority_ bigint[], from_place_ bigint[],
  to_priority_ bigint[])
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
  room_    penstock.room;
  places_ json[] := '{}';
BEGIN
  FOREACH room_ IN ARRAY rooms_ LOOP
    IF room_.keyed THEN
      places_ := places_ || ARRAY(
        SELECT json_build_array(room_.queue, level.priority, penstock.virtual_time(
                 room_.queue, level.priority, coalesce(
                   (SELECT max(part.place) FROM unnest(range_queue_, from_priority_, from_place_)
                                                  AS part (queue, priority, place)
                     WHERE part.queue = room_.number AND part.priority = level.priority
                       AND part.place < 9223372036854775807), -9223372036854775808)))
          FROM (SELECT DISTINCT job.priority FROM unnest(tids_) AS mine (tid)
                  JOIN penstock.live AS job ON job.ctid = mine.tid WHERE job.queue = room_.queue) AS level);
      PERFORM penstock.move_on(
        room_.queue, tids_, room_.weights,
        ARRAY(SELECT part.priority FROM unnest(range_queue_, from_priority_) AS part (queue, priority)
               WHERE part.queue = room_.number),
        ARRAY(SELECT part.place FROM unnest(range_queue_, from_place_) AS part (queue, place)
               WHERE part.queue = room_.number),
        ARRAY(SELECT part.last FROM unnest(range_queue_, to_priority_) AS part (queue, last)
               WHERE part.queue = room_.number));
    END IF;
  END LOOP;
  RETURN to_json(places_);
END $$;

-- The next jobs for this worker, chosen and locked. Of a queue where a job with an old ticket is ready, and of
-- all if what comes after the bounds is less than wanted and a sweep may be made, the line is looked at
-- from its start.
CREATE FUNCTION penstock.pick(
  queues_ text[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, now_ double precision,
  range_queue_ bigint[], from_priority_ bigint[], from_place_ bigint[], from_seq_ bigint[], to_priority_ bigint[],
  lowered_ bigint[], lowest_ bigint[], sweeps_ boolean, is_decided_ boolean, INOUT notes_ bigint[],
  OUT tids_ tid[], OUT starts_unique_ boolean, OUT passed_ boolean, OUT rooms_ penstock.room[],
  OUT is_skipped_ boolean, OUT is_behind_ boolean, OUT is_wide_ boolean, OUT took_ double precision,
  OUT places_ json) LANGUAGE plpgsql AS $$
DECLARE
  is_keyed_ boolean := false;
  begun_at_ timestamptz;
  parts     record;
  is_whole_ boolean[] := ARRAY(SELECT before IS DISTINCT FROM after
                                 FROM unnest(lowered_, lowest_) AS each (before, after));
BEGIN
  is_skipped_ := false; is_behind_ := false; is_wide_ := true = ALL (is_whole_);
  IF is_decided_ THEN
    SELECT room.* INTO rooms_, is_skipped_ FROM penstock.rooms(queues_, want_) AS room;
    is_keyed_ := EXISTS (SELECT FROM unnest(rooms_) AS room WHERE room.keyed);
  END IF;
  SELECT range_queue_, from_priority_, from_place_, from_seq_, to_priority_ INTO parts;
  LOOP
    begun_at_ := clock_timestamp();
    IF true = ANY (is_whole_) THEN
      SELECT * INTO parts FROM penstock.widened(is_whole_, range_queue_, from_priority_, from_place_, from_seq_,
                                                to_priority_);
    END IF;
    IF is_keyed_ THEN
      SELECT turns.* INTO notes_, is_behind_ FROM penstock.prepare_turns(
        rooms_, notes_, is_whole_, parts.range_queue_, parts.from_priority_, parts.from_place_) AS turns;
    END IF;
    SELECT picked.* INTO tids_, starts_unique_, passed_
      FROM penstock.choose(queues_, rooms_, want_, slots_, avoid_, least_, now_, parts.range_queue_,
                           parts.from_priority_, parts.from_place_, parts.from_seq_, parts.to_priority_) AS picked;
    took_ := extract(epoch FROM clock_timestamp() - begun_at_);
    EXIT WHEN is_wide_ OR NOT sweeps_ OR cardinality(tids_) >= want_;
    is_wide_ := true;
    is_whole_ := array_fill(true, ARRAY[cardinality(queues_)]);
  END LOOP;
  IF is_keyed_ AND tids_ <> '{}' THEN
    places_ := penstock.take_turns(rooms_, tids_, parts.range_queue_, parts.from_priority_, parts.from_place_,
                                   parts.to_priority_);
  END IF;
END $$;

-- Claim these rows, in this order. What few jobs have comes as one text.
CREATE FUNCTION penstock.take(worker_ text, tids_ tid[], slots_ bigint, now_ double precision)
RETURNS SETOF penstock.taken LANGUAGE plpgsql SET enable_indexscan = off AS $$
BEGIN
  RETURN QUERY
  UPDATE penstock.live AS job
     SET state = 'running', revision = job.revision + 1, claim = job.claim + 1, attempt = job.attempt + 1,
         worker = worker_,
         hold = NULL, hold_cause = NULL, hold_until = NULL, claimed_at = now_, progress = NULL, note = NULL,
         started = job.at_most_once OR (job.crashes = 0 AND (mine.number <= slots_ OR job.rescues > 0))
    FROM unnest(tids_) WITH ORDINALITY AS mine (tid, number)
   WHERE job.ctid = mine.tid
  RETURNING mine.number, job.ctid::text, job.id, job.task, job.payload, job.queue, job.priority,
            job.enqueued_at, job.enqueued_by, job.seq, job.claim, job.attempt, job.started, job.keep,
            CASE WHEN job.run_at IS NULL AND job.expires_at IS NULL
                  AND job.failures = 0 AND job.crashes = 0 AND job.rescues = 0 AND job.key IS NULL
                  AND job.unique_key IS NULL AND job.unique_until IS NULL AND NOT job.at_most_once
                  AND job.name IS NULL AND job.tags IS NULL AND job.correlation_id IS NULL
                  AND job.reason IS NULL AND job.errors IS NULL AND job.meta IS NULL
                  AND job.checkpoint IS NULL AND job.revision = 1
                 THEN NULL
                 ELSE json_build_array(
                   job.run_at, job.expires_at, job.failures, job.crashes, job.rescues,
                   job.key, job.unique_key, coalesce(job.unique_until, 'done'), job.at_most_once,
                   job.name, coalesce(job.tags, '[]')::json, job.correlation_id, job.reason,
                   coalesce(job.errors, '[]')::json, job.revision, job.meta,
                   translate(encode(job.checkpoint, 'base64'), e'\n', ''))::text
            END;
END $$;

-- Jobs are about to be claimed: unique keys that were kept until the start are given back.
CREATE FUNCTION penstock.give_back_at_start(tids_ tid[], now_ double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  keys_   text[];
  owners_ text[];
BEGIN
  SELECT array_agg(job.unique_key), array_agg(job.id) INTO keys_, owners_
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
   WHERE job.unique_key IS NOT NULL AND job.unique_until = 'start';
  PERFORM penstock.give_back(keys_, owners_, now_);
END $$;

-- Jobs were claimed in queues that limit their keys: lines of these keys may have no room now.
CREATE FUNCTION penstock.close_keys(rooms_ penstock.room[], keys_ text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  room_ penstock.room;
BEGIN
  FOREACH room_ IN ARRAY rooms_ LOOP
    IF room_.per_key IS NOT NULL THEN
      PERFORM penstock.look_at_keys(room_.queue, keys_, room_.per_key, room_.weights);
    END IF;
  END LOOP;
END $$;

-- When the next job of these queues falls due. A range of one, so that only the index that begins with the queue
-- has the order asked for.
CREATE FUNCTION penstock.due_at(queues_ text[]) RETURNS double precision LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT min(next.at) FROM unnest(queues_) AS mine (queue) CROSS JOIN LATERAL (
    (SELECT run_at AS at FROM penstock.live
      WHERE state = 'scheduled' AND queue BETWEEN mine.queue AND mine.queue ORDER BY queue, run_at LIMIT 1)
    UNION ALL
    (SELECT hold_until FROM penstock.live
      WHERE hold_until IS NOT NULL AND queue BETWEEN mine.queue AND mine.queue
      ORDER BY queue, hold_until LIMIT 1)) AS next);
END $$;

-- One turn of a worker: settle its successes, promote what is due, claim. Everything else that can
-- become of an attempt is settled before this is called, in the same transaction.
CREATE FUNCTION penstock.exchange(
  worker_ text, tids_ text, ids_ text, claims_ text, results_ text, begun_ text, begun_claims_ text,
  queues_ text[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, range_queue_ bigint[],
  from_priority_ bigint[], from_place_ bigint[], from_seq_ bigint[], to_priority_ bigint[],
  lowered_ bigint[], sweeps_ boolean, reports_ text, notes_ bigint[],
  promote_ bigint)
RETURNS SETOF penstock.taken LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET enable_material = off SET enable_indexscan = on
SET lock_timeout = '100ms' AS $$
DECLARE
  now_        double precision := penstock.now();
  picked      record;
  unsettled_  text[];
  has_lease_  boolean;
  cancels_    text[];
  due_at_     double precision;
  is_old_     boolean;
  is_decided_ boolean;
  is_lowered_ boolean;
  is_skipped_ boolean := false;
  lowest_     bigint[];
  claim_      json;
  is_limited_ boolean;
  keys_       text[];
BEGIN
  PERFORM penstock.hold_lease(worker_);
  -- The lease, what is rarely so, and what is told to every worker: asked at once, for each statement
  -- costs as much as what it does.
  SELECT EXISTS (SELECT FROM penstock.worker WHERE id = worker_),
         EXISTS (SELECT FROM penstock.live WHERE expires_at IS NOT NULL AND expires_at <= now_ AND state <> 'running'),
         least((SELECT run_at FROM penstock.live WHERE state = 'scheduled' ORDER BY run_at, seq LIMIT 1),
               (SELECT hold_until FROM penstock.live WHERE hold_until IS NOT NULL
                 ORDER BY hold_until, seq LIMIT 1)),
         EXISTS (SELECT FROM penstock.queue), EXISTS (SELECT FROM penstock.lowered),
         (SELECT array_agg(id ORDER BY id) FROM penstock.live WHERE worker = worker_ AND cancel_reason IS NOT NULL)
    INTO has_lease_, is_old_, due_at_, is_decided_, is_lowered_, cancels_;
  IF NOT has_lease_ THEN
    RAISE EXCEPTION USING ERRCODE = 'PS002', MESSAGE = 'the worker has no lease';
  END IF;
  IF begun_ IS NOT NULL THEN
    PERFORM penstock.begin_attempts(worker_, string_to_array(begun_, e'\x1f'),
                                    string_to_array(begun_claims_, ',')::integer[]);
  END IF;
  IF reports_ IS NOT NULL THEN
    PERFORM penstock.report(worker_, reports_::json);
  END IF;
  IF ids_ IS NOT NULL THEN
    unsettled_ := penstock.succeed_all(
      worker_, string_to_array(tids_, e'\x1f'), string_to_array(ids_, e'\x1f'),
      string_to_array(claims_, ',')::integer[], string_to_array(results_, e'\x1f', ''), now_);
    IF unsettled_ <> '{}' THEN
      -- These have to be looked at: the caller does, and asks again for jobs.
      RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        json_build_object('now', now_, 'unsettled', unsettled_))::penstock.taken;
      RETURN;
    END IF;
  END IF;

  IF is_old_ THEN
    PERFORM penstock.expire(now_, promote_);
  END IF;
  -- One promoter at a time, so that tickets are in the order of the instants. Two conditions: of `null AND
  -- ...` the rest is evaluated, and where nothing is due all claimers would try the lock.
  IF due_at_ <= now_ THEN
    IF penstock.try_queue('') THEN
      is_lowered_ := penstock.promote(now_, promote_) > 0 OR is_lowered_;
    ELSE
      is_skipped_ := true;
    END IF;
  END IF;
  IF want_ > 0 AND queues_ <> '{}' THEN
    lowest_ := CASE WHEN is_lowered_ THEN penstock.lowered_in(queues_)
                    ELSE array_fill(0::bigint, ARRAY[cardinality(queues_)]) END;
    SELECT * INTO picked FROM penstock.pick(
      queues_, want_, slots_, avoid_, least_, now_, range_queue_, from_priority_, from_place_, from_seq_,
      to_priority_, lowered_, lowest_, sweeps_, is_decided_, notes_);
    IF picked.tids_ <> '{}' THEN
      IF picked.starts_unique_ THEN
        PERFORM penstock.give_back_at_start(picked.tids_, now_);
      END IF;
      is_limited_ := EXISTS (SELECT FROM unnest(picked.rooms_) AS room WHERE room.per_key IS NOT NULL);
      IF is_limited_ THEN
        keys_ := ARRAY(SELECT job.line FROM unnest(picked.tids_) AS mine (tid)
                         JOIN penstock.live AS job ON job.ctid = mine.tid WHERE job.line IS NOT NULL);
      END IF;
      RETURN QUERY SELECT * FROM penstock.take(worker_, picked.tids_, slots_, now_);
      IF is_limited_ THEN
        PERFORM penstock.close_keys(picked.rooms_, keys_);
      END IF;
    END IF;
    claim_ := json_build_object(
      'passed', picked.passed_, 'skipped', is_skipped_ OR picked.is_skipped_, 'behind', picked.is_behind_,
      'wide', picked.is_wide_, 'took', picked.took_, 'lowered', lowest_,
      'is_keyed', is_decided_ AND EXISTS (SELECT FROM penstock.queue WHERE name = ANY (queues_) AND keyed),
      'notes', picked.notes_, 'places', picked.places_,
      'keyed', ARRAY(SELECT room.queue FROM unnest(picked.rooms_) AS room WHERE room.keyed));
  END IF;

  -- What was asked at the start, as far as this turn may have changed it.
  IF cancels_ IS NOT NULL AND ids_ IS NOT NULL THEN
    SELECT array_agg(job.id ORDER BY job.id) INTO cancels_
      FROM penstock.live AS job WHERE job.worker = worker_ AND job.cancel_reason IS NOT NULL;
  END IF;
  RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, json_build_object(
    'now', now_, 'claim', claim_, 'cancels', cancels_,
    'due', CASE WHEN due_at_ IS NOT NULL THEN penstock.due_at(queues_) END))::penstock.taken;
END $$;
