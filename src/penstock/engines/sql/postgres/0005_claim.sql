-- Which jobs are next in line, of one queue or of several.

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
-- First no row is locked: of every queue as many are looked at as are wanted in all. Those that another
-- claimer took meanwhile are replaced by locking as we look.
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
        -- The step that had the lock may have decided otherwise.
        SELECT * INTO decided FROM penstock.queue WHERE name = queues_[number_];
        CONTINUE WHEN decided.paused;
        IF decided.most IS NOT NULL THEN
          room_ := least(want_, decided.most - penstock.count_running(
            queues_[number_], greatest(1, decided.most - want_ + 1)));
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

-- Lock the rows at these places that are still in line; the others are another claimer's.
CREATE FUNCTION penstock.lock_ready(tids_ tid[]) RETURNS SETOF tid LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_indexscan = off
SET enable_bitmapscan = off AS $$
  SELECT job.ctid FROM unnest(tids_) WITH ORDINALITY AS chosen (tid, number)
    JOIN penstock.live AS job ON job.ctid = chosen.tid AND job.state = 'ready'
   ORDER BY chosen.number FOR UPDATE OF job SKIP LOCKED
$$;
