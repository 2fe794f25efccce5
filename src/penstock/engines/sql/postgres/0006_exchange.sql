-- One turn of a worker, in one call.

-- What a turn gives back, a row per job; the first row (number 0) says in `rest` what is not a job.
CREATE TYPE penstock.taken AS (
  number bigint, tid text, id text, task text, payload bytea, queue text, priority bigint,
  enqueued_at double precision, enqueued_by text, seq bigint, attempt integer, started boolean,
  rest text);

CREATE TYPE penstock.ticket_line AS (priority bigint, place double precision, seq bigint);

-- One turn of a worker: settle its successes, promote what is due, claim. Everything else that can
-- become of an attempt is settled before this is called, in the same transaction.
CREATE FUNCTION penstock.exchange(
  worker_ text, tids_ text, ids_ text, attempts_ text, results_ text, begun_ text, begun_attempts_ text,
  queues_ text[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, range_queue_ bigint[],
  from_priority_ bigint[], from_place_ double precision[], from_seq_ bigint[], to_priority_ bigint[],
  lowered_ bigint, sweeps_ boolean)
RETURNS SETOF penstock.taken LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET enable_material = off SET enable_indexscan = on
SET lock_timeout = '100ms' AS $$
DECLARE
  now_       double precision := penstock.now();
  done_      text[] := string_to_array(ids_, e'\x1f');
  wanted_    bigint := coalesce(cardinality(done_), 0);
  settled_   bigint := 0;
  places_    tid[];
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
  first_     penstock.ticket_line;                          -- where they begin and end in their line; a row
  last_      penstock.ticket_line;                          -- that has just changed is not where it was
BEGIN
  -- Held until the end: no leader ends the lease of a worker in its exchange. A lock on its row would have
  -- to be written, and a turn that changes nothing would cost a commit. Who tries need not be planned.
  IF NOT pg_try_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_)) THEN
    PERFORM pg_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_));
  END IF;
  -- The lease, what is rarely so, and what is told to every worker: asked at once, for each statement
  -- costs as much as what it does.
  SELECT EXISTS (SELECT FROM penstock.worker WHERE id = worker_),
         EXISTS (SELECT FROM penstock.live WHERE waits_until IS NOT NULL AND waits_until <= now_),
         least((SELECT run_at FROM penstock.live WHERE NOT in_line ORDER BY run_at, seq LIMIT 1),
               (SELECT hold_until FROM penstock.live WHERE hold_until IS NOT NULL
                 ORDER BY hold_until, seq LIMIT 1)),
         EXISTS (SELECT FROM penstock.queue),
         (SELECT last_value + is_called::integer FROM penstock.lowered),
         (SELECT array_agg(id ORDER BY id) FROM penstock.live WHERE cancels = worker_)
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
    places_ := string_to_array(tids_, e'\x1f')::tid[];
    FOR try_ IN 1..2 LOOP
      -- The state is asked so that no index knows it, and no index is to be read at all: a plan that was made
      -- while there were hardly any jobs would read all of them, for each one that has ended.
      SET LOCAL enable_indexscan = off;
      WITH gone AS (
        DELETE FROM penstock.live AS job
         USING unnest(places_, done_, string_to_array(attempts_, ',')::integer[],
                      string_to_array(results_, e'\x1f', '')) AS done (tid, id, attempt, result)
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
             settled_ + coalesce(sum(each.jobs), 0)
        INTO numbers_, lines_, levels_, counts_, settled_
        FROM (SELECT claim, queue, priority, count(*) AS jobs FROM gone GROUP BY claim, queue, priority) AS each;
      SET LOCAL enable_indexscan = on;
      PERFORM penstock.uncount(numbers_, lines_, levels_, counts_);
      EXIT WHEN settled_ >= wanted_ OR try_ = 2;
      -- A row that was written to meanwhile has moved: found by its id.
      places_ := ARRAY(SELECT (SELECT job.ctid FROM penstock.live AS job WHERE job.id = done.id)
                         FROM unnest(done_) WITH ORDINALITY AS done (id, number) ORDER BY done.number);
    END LOOP;
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
  -- One promoter at a time, so that tickets are in the order of the instants. Two conditions: of `null AND
  -- ...` the rest is evaluated, and where nothing is due all claimers would wait for each other.
  IF due_at_ <= now_ THEN
    IF penstock.await_queue('') THEN
      PERFORM penstock.promote(now_, 500);
      lowest_ := (SELECT last_value + is_called::integer FROM penstock.lowered);
    END IF;
  END IF;
  IF is_decided_ THEN
    PERFORM penstock.place_all(20000, true);
  END IF;

  IF want_ > 0 AND queues_ <> '{}' THEN
    -- If a job with an old ticket is ready, or what comes after the bounds is less than wanted and a sweep
    -- may be made, look from the start of every line.
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
        SELECT array_agg(head.tid), bool_or(head.once), bool_or(head.starts_unique), min(head.priority),
               max(head.priority), min(head.place), max(head.place), min(head.seq), max(head.seq)
          INTO chosen_, passed_, frees_, first_.priority, last_.priority, first_.place, last_.place, first_.seq,
               last_.seq
          FROM (SELECT head.* FROM unnest(from_priority_, from_place_, from_seq_, to_priority_)
                                     AS part (from_priority, from_place, from_seq, to_priority)
                 CROSS JOIN LATERAL (
                  SELECT job.ctid AS tid, job.at_most_once AS once, job.unique_until IS NOT NULL AS starts_unique,
                         job.priority, job.place, job.seq
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
      claim_ := nextval('penstock.claims');
      IF first_.priority = last_.priority THEN
        INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
        VALUES (claim_, first_.priority, first_.place, first_.seq, last_.place, last_.seq, cardinality(chosen_),
                queues_[1], worker_);
      ELSE
        PERFORM penstock.note_claim(claim_, worker_, chosen_);
      END IF;
      SET LOCAL enable_indexscan = off;
      RETURN QUERY
      UPDATE penstock.live AS job
         SET state = 'running', attempt = job.attempt + 1, worker = worker_, claim = claim_,
             waits_until = NULL, hold = NULL, hold_cause = NULL,
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
      SET LOCAL enable_indexscan = on;
    END IF;
  END IF;

  -- What was asked at the start, as far as this turn may have changed it.
  IF cancels_ IS NOT NULL AND wanted_ > 0 THEN
    SELECT array_agg(job.id ORDER BY job.id) INTO cancels_
      FROM penstock.live AS job WHERE job.cancels = worker_;
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
    'passed', coalesce(passed_, false), 'fair', fair_, 'wide', is_wide_, 'took', took_,
    'lowered', lowest_))::penstock.taken;
END $$;
