-- Which jobs are next in line, of one queue or of several.

-- Law 7: what could start now. The claim index has this condition, and no other statement repeats it.
CREATE VIEW penstock.line AS
SELECT ctid AS tid, live.* FROM penstock.live WHERE state = 'ready' AND hold IS NULL;

-- What a claimer compares, by queue: another number after each job that became ready with an old ticket.
CREATE FUNCTION penstock.lowered_in(queues_ text[]) RETURNS bigint[] LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN ARRAY(SELECT coalesce((SELECT sum(number) FROM penstock.lowered WHERE queue = mine.name), 0)::bigint
                 FROM unnest(queues_) WITH ORDINALITY AS mine (name, nth) ORDER BY mine.nth);
END $$;

-- What each queue may give: as many jobs as are wanted, unless something was decided about it. One that is ordered gives
-- one, found by `next_ordered`; one whose keys take turns gives by `key_heads`. One whose lock another claimer has
-- is skipped this time: to wait would keep the outcomes of this turn from being committed.
CREATE TYPE penstock.room AS (
  number bigint, queue text, jobs bigint, ordered boolean, keyed boolean, per_key bigint, weights json);

CREATE FUNCTION penstock.rooms(queues_ text[], want_ bigint, OUT rooms_ penstock.room[], OUT is_skipped_ boolean)
LANGUAGE plpgsql AS $$
DECLARE
  mine record;
BEGIN
  rooms_ := '{}'; is_skipped_ := false;
  FOR mine IN
    SELECT given.number, given.name AS queue, want_ AS jobs, coalesce(decided.paused, false) AS paused, decided.most,
           coalesce(decided.ordered, false) AS ordered, coalesce(decided.keyed, false) AS keyed, decided.per_key,
           decided.weights
      FROM unnest(queues_) WITH ORDINALITY AS given (name, number)
      LEFT JOIN penstock.queue AS decided ON decided.name = given.name
  LOOP
    IF NOT mine.paused AND (mine.most IS NOT NULL OR mine.ordered OR mine.keyed) THEN
      IF NOT penstock.try_queue(mine.queue) THEN
        is_skipped_ := true;
        CONTINUE;
      END IF;
      -- The step that had the lock may have decided otherwise.
      SELECT mine.number, mine.queue, want_ AS jobs, decided.paused, decided.most, decided.ordered, decided.keyed,
             decided.per_key, decided.weights
        INTO mine FROM penstock.queue AS decided WHERE decided.name = mine.queue;
    END IF;
    IF mine.most IS NOT NULL THEN
      mine.jobs := greatest(0, least(want_, mine.most - penstock.count_running(mine.queue, mine.most)));
    END IF;
    IF NOT mine.paused AND mine.jobs > 0 THEN
      rooms_ := rooms_ || ROW(mine.number, mine.queue, mine.jobs, mine.ordered, mine.keyed, mine.per_key,
                              mine.weights)::penstock.room;
    END IF;
  END LOOP;
END $$;

-- What choosing has to know of a job: the number of its queue among those asked for, and where its row is.
CREATE TYPE penstock.head AS (
  queue bigint, tid tid, priority bigint, at_most_once boolean, starts_unique boolean);

-- The first jobs of some queues that this worker could have, locked, each queue by its own ranges of the claim
-- index (law 9). A range begins after the ticket where this claimer has found the line to begin, or at the
-- start of it: dead entries in front of it are not walked again. Tasks to avoid, jobs that run at most once
-- and those that have expired are filtered while walking; all are rare. What another claimer has locked is
-- skipped.
CREATE FUNCTION penstock.heads(
  queues_ text[], looks_ bigint[], slots_ bigint, avoid_ text[], least_ bigint, now_ double precision,
  range_queue_ bigint[], from_priority_ bigint[], from_seq_ bigint[], to_priority_ bigint[])
RETURNS SETOF penstock.head LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
BEGIN
  RETURN QUERY
  SELECT mine.number, head.tid, head.priority, head.at_most_once, head.starts_unique
    FROM unnest(queues_, looks_) WITH ORDINALITY AS mine (queue, looks, number)
   CROSS JOIN LATERAL (
    SELECT head.* FROM unnest(range_queue_, from_priority_, from_seq_, to_priority_)
                         AS part (queue, from_priority, from_seq, to_priority)
     CROSS JOIN LATERAL (
      SELECT job.tid, job.priority, job.at_most_once, job.unique_until IS NOT NULL AS starts_unique
        FROM penstock.line AS job
       WHERE job.queue = mine.queue
         AND (job.priority, job.seq) > (part.from_priority, part.from_seq)
         AND job.priority <= least(part.to_priority, least_)
         AND job.task <> ALL (avoid_) AND (slots_ > 0 OR NOT job.at_most_once)
         AND (job.expires_at IS NULL OR job.expires_at > now_)
       ORDER BY job.priority, job.seq LIMIT mine.looks FOR UPDATE SKIP LOCKED) AS head
     WHERE part.queue = mine.number
     LIMIT mine.looks) AS head
   WHERE mine.looks > 0;
END $$;

-- The job of an ordered queue that runs next, if this worker could have it: the one that is open and
-- waits, or the first in line; what it cannot have is not passed over. The caller has the queue's lock
-- and knows that none of its jobs runs.
CREATE FUNCTION penstock.next_ordered(
  room_ penstock.room, slots_ bigint, avoid_ text[], least_ bigint, now_ double precision)
RETURNS SETOF penstock.head LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
DECLARE
  tid_ tid;
  head record;
BEGIN
  IF EXISTS (SELECT FROM penstock.live
              WHERE queue = room_.queue AND claimed_at IS NOT NULL AND state <> 'running'
                AND (expires_at IS NULL OR expires_at > now_)) THEN
    SELECT job.ctid INTO tid_ FROM penstock.live AS job
     WHERE queue = room_.queue AND claimed_at IS NOT NULL AND state <> 'running' AND state = 'ready' AND hold IS NULL
       AND (expires_at IS NULL OR expires_at > now_)
       AND priority <= least_ AND task <> ALL (avoid_) AND (slots_ > 0 OR NOT at_most_once)
     ORDER BY priority, seq LIMIT 1 FOR UPDATE SKIP LOCKED;
  ELSIF room_.keyed THEN
    SELECT first.tid INTO tid_ FROM penstock.key_heads(
      room_, 1, 1, '{}', 9223372036854775807, now_, ARRAY[-9223372036854775808], ARRAY[-9223372036854775808],
      ARRAY[9223372036854775807]) AS first;
  ELSE
    SELECT job.tid INTO tid_ FROM penstock.line AS job
     WHERE job.queue = room_.queue AND (job.expires_at IS NULL OR job.expires_at > now_)
     ORDER BY job.priority, job.seq LIMIT 1 FOR UPDATE SKIP LOCKED;
  END IF;
  RETURN QUERY
  SELECT room_.number, job.ctid, job.priority, job.at_most_once, job.unique_until IS NOT NULL
    FROM penstock.live AS job
   WHERE job.ctid = tid_ AND job.priority <= least_ AND job.task <> ALL (avoid_) AND (slots_ > 0 OR NOT job.at_most_once);
END $$;

-- Merge the heads of several queues: priority first, among queues of one priority turns, within a queue its
-- own order (core.job.choose says the same). `used_` are the queues of all that were chosen or passed over.
CREATE FUNCTION penstock.merge(
  heads_ penstock.head[], count_ bigint, want_ bigint, slots_ bigint,
  OUT tids_ tid[], OUT passed_ boolean, OUT used_ bigint[]) LANGUAGE plpgsql AS $$
DECLARE
  level_ bigint;
  turn_  bigint := 0;
  taken_ tid[];
  from_  bigint[];
  skips_ boolean;
BEGIN
  tids_ := '{}'; passed_ := false; used_ := '{}';
  -- Level by level, each beginning with the queue after the one that came last.
  FOR level_ IN SELECT DISTINCT head.priority FROM unnest(heads_) AS head ORDER BY 1 LOOP
    EXIT WHEN cardinality(tids_) >= want_;
    SELECT array_agg(line.tid ORDER BY line.number) FILTER (WHERE NOT line.is_passed),
           array_agg(line.queue ORDER BY line.number), coalesce(bool_or(line.is_passed), false)
      INTO taken_, from_, skips_
      FROM (SELECT ranked.*, count(*) FILTER (WHERE NOT ranked.is_passed) OVER (ORDER BY ranked.number) AS kept
              FROM (SELECT turns.tid, turns.queue, turns.number,
                           turns.at_most_once AND turns.number > slots_ - cardinality(tids_) AS is_passed
                      FROM (SELECT rounds.*, row_number() OVER (ORDER BY rounds.round, rounds.turn) AS number
                              FROM (SELECT head.*, (head.queue - 1 - turn_ + count_) % count_ AS turn,
                                           row_number() OVER (PARTITION BY head.queue ORDER BY head.place) AS round
                                      FROM unnest(heads_) WITH ORDINALITY AS head (
                                             queue, tid, priority, at_most_once, starts_unique, place)
                                     WHERE head.priority = level_) AS rounds) AS turns) AS ranked) AS line
     WHERE line.kept <= want_ - cardinality(tids_);
    tids_ := tids_ || coalesce(taken_, '{}');
    used_ := used_ || coalesce(from_, '{}');
    passed_ := passed_ OR skips_;
    turn_ := coalesce(from_[cardinality(from_)] % count_, turn_);
  END LOOP;
END $$;

-- Choose the next jobs of these queues; returns where their rows are, in the order of the claim, whether one of
-- them gives its unique key back when it starts, and whether a job that runs at most once was passed over.
--
-- At first each plain queue is looked at for its share of what is wanted and a little more. Where all of that was
-- used, the line may have had more to say: it is looked at once more, for all that is wanted.
CREATE FUNCTION penstock.choose(
  queues_ text[], rooms_ penstock.room[], want_ bigint, slots_ bigint, avoid_ text[], least_ bigint,
  now_ double precision, range_queue_ bigint[], from_priority_ bigint[], from_place_ bigint[], from_seq_ bigint[],
  to_priority_ bigint[],
  OUT tids_ tid[], OUT starts_unique_ boolean, OUT passed_ boolean) LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  count_ bigint := cardinality(queues_);
  share_ bigint := CASE WHEN count_ = 1 THEN want_ ELSE ceil(want_::numeric / count_) + 2 END;
  all_   bigint[] := array_fill(0::bigint, ARRAY[count_::integer]);
  looks_ bigint[];
  heads_ penstock.head[];
  room_   penstock.room;
  used_  bigint[];
  again_ bigint[];
BEGIN
  IF rooms_ IS NULL THEN
    rooms_ := '{}';  -- nothing was decided about any queue
    all_ := array_fill(want_, ARRAY[count_::integer]);
  END IF;
  FOREACH room_ IN ARRAY rooms_ LOOP
    IF NOT room_.ordered AND NOT room_.keyed THEN
      all_[room_.number] := room_.jobs;
    END IF;
  END LOOP;
  looks_ := ARRAY(SELECT least(room, share_) FROM unnest(all_) AS room);
  IF count_ = 1 AND all_[1] > 0 THEN
    -- The usual case: there is nothing to merge.
    SELECT coalesce(array_agg(head.tid), '{}'), coalesce(bool_or(head.starts_unique), false),
           coalesce(bool_or(head.at_most_once), false)
      INTO tids_, starts_unique_, passed_
      FROM penstock.heads(queues_, looks_, slots_, avoid_, least_, now_, range_queue_, from_priority_, from_seq_,
                          to_priority_) AS head;
    IF NOT passed_ THEN
      RETURN;
    END IF;
  END IF;
  heads_ := ARRAY(
    SELECT head FROM penstock.heads(queues_, looks_, slots_, avoid_, least_, now_, range_queue_, from_priority_,
                                    from_seq_, to_priority_) AS head);
  FOREACH room_ IN ARRAY rooms_ LOOP
    CONTINUE WHEN room_.jobs <= 0;
    IF room_.ordered THEN
      heads_ := heads_ || ARRAY(SELECT head FROM penstock.next_ordered(room_, slots_, avoid_, least_, now_) AS head);
    ELSIF room_.keyed THEN
      heads_ := heads_ || ARRAY(SELECT head FROM penstock.key_heads(
        room_, room_.jobs, slots_, avoid_, least_, now_,
        ARRAY(SELECT part.priority FROM unnest(range_queue_, from_priority_) AS part (queue, priority)
               WHERE part.queue = room_.number),
        ARRAY(SELECT part.place FROM unnest(range_queue_, from_place_) AS part (queue, place)
               WHERE part.queue = room_.number),
        ARRAY(SELECT part.last FROM unnest(range_queue_, to_priority_) AS part (queue, last)
               WHERE part.queue = room_.number)) AS head);
    END IF;
  END LOOP;
  SELECT merged.* INTO tids_, passed_, used_ FROM penstock.merge(heads_, count_, want_, slots_) AS merged;
  IF count_ > 1 THEN
    again_ := ARRAY(SELECT mine.queue FROM unnest(used_) AS mine (queue)
                     WHERE looks_[mine.queue] < all_[mine.queue]
                     GROUP BY mine.queue HAVING count(*) = looks_[mine.queue]);
    IF again_ <> '{}' THEN
      looks_ := ARRAY(SELECT CASE WHEN mine.number = ANY (again_) THEN mine.room ELSE 0 END
                        FROM unnest(all_) WITH ORDINALITY AS mine (room, number) ORDER BY mine.number);
      heads_ := ARRAY(
        SELECT head FROM unnest(heads_) AS head WHERE head.queue <> ALL (again_)
        UNION ALL
        SELECT head FROM penstock.heads(queues_, looks_, slots_, avoid_, least_, now_, range_queue_,
                                        from_priority_, from_seq_, to_priority_) AS head);
      SELECT merged.* INTO tids_, passed_, used_ FROM penstock.merge(heads_, count_, want_, slots_) AS merged;
    END IF;
  END IF;
  starts_unique_ := EXISTS (SELECT FROM unnest(heads_) AS head WHERE head.starts_unique);
END $$;
