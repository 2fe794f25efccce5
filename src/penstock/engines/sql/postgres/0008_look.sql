-- What is asked before sleep: by a worker and then each second whether there is something for it,
-- or when; a caller whether its jobs have ended.
--
-- One call, so that waiting costs one round trip; it only reads, all of it on the snapshot of the
-- statement that calls. Every plan is the same whatever the statistics say: each statement is written
-- so that only one index has its conditions and its order, and other ways are made dear. What is dear
-- would be compiled first, which takes longer than all of it: hence no `jit`.

-- In seconds; 0: now; null: not known. Without queues only cancellations count, less those `told_`.
-- Without a slot what the worker gets waits in its hands, so no job that runs at most once is for it.
-- The ranges are those of a claim: where nothing was decided about a queue, only they are looked at.
CREATE FUNCTION penstock.look(
  worker_ text, told_ text[], queues_ text[], avoid_ text[], has_slot_ boolean, least_ bigint,
  range_queue_ bigint[], from_priority_ bigint[], from_place_ double precision[], from_seq_ bigint[],
  to_priority_ bigint[])
RETURNS double precision LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off SET jit = off AS $$
DECLARE
  now_    double precision := penstock.now();
  queue_  text COLLATE "C";
  decided record;
  opened  record;
  first   record;
  before_ bigint;
  due_at_ double precision;
BEGIN
  IF (SELECT true FROM penstock.live
       WHERE cancels = worker_ AND id <> ALL (told_)
       LIMIT 1) THEN
    RETURN 0;
  END IF;

  FOR number_ IN 1..cardinality(queues_) LOOP
    queue_ := queues_[number_];
    -- All of these are null if nothing was decided about the queue.
    SELECT paused, most, ordered, fair INTO decided FROM penstock.queue WHERE name = queue_;
    CONTINUE WHEN decided.paused;
    CONTINUE WHEN decided.most IS NOT NULL
              AND decided.most <= penstock.count_running(queue_, decided.most);
    before_ := least_;

    IF decided.ordered THEN
      -- Jobs that were claimed before and wait again: no other passes them. One that has expired runs no
      -- more and blocks nothing, though it may not be written down yet. They are few, so all of them are read.
      SELECT bool_or(expires_at IS NULL OR expires_at > now_) AS are_there,
             bool_or(state = 'ready' AND priority <= least_
                     AND (hold IS NULL OR (decided.fair AND hold = 'unplaced'))
                     AND task <> ALL (avoid_) AND (has_slot_ OR NOT at_most_once)
                     AND (expires_at IS NULL OR expires_at > now_)) AS are_next,
             least(min(expires_at) FILTER (WHERE expires_at > now_),
                   min(due_at) FILTER (
                     WHERE task <> ALL (avoid_) AND (has_slot_ OR NOT at_most_once)
                       AND (expires_at IS NULL OR expires_at > greatest(due_at, now_))
                       AND (priority <= least_ OR due_at > now_))) AS due_at
        INTO opened
        FROM (SELECT *, CASE state WHEN 'scheduled' THEN run_at ELSE hold_until END AS due_at
                FROM penstock.live
               WHERE queue = queue_ AND was_claimed AND state IN ('scheduled', 'ready')
             ) AS job;
      IF opened.are_next THEN
        RETURN 0;
      END IF;
      IF opened.are_there THEN
        due_at_ := least(due_at_, opened.due_at);
        CONTINUE;
      END IF;
      -- The first in line is next: what this worker cannot have is not passed over.
      SELECT priority, priority <= least_ AND task <> ALL (avoid_)
                       AND (has_slot_ OR NOT at_most_once) AS fits
        INTO first
        FROM penstock.live
       WHERE queue = queue_ AND in_line AND hold IS NULL AND state = 'ready'
         AND (expires_at IS NULL OR expires_at > now_)
       ORDER BY priority, place, seq LIMIT 1;
      IF first.fits THEN
        RETURN 0;
      END IF;
      -- With a new ticket only what is more urgent comes before it; in a fair queue its equals may.
      -- There is no number below the least one.
      before_ := least(least_, CASE WHEN decided.fair OR first.priority = -9223372036854775808
                                    THEN first.priority ELSE first.priority - 1 END);
    ELSIF (SELECT true
             FROM unnest(range_queue_, from_priority_, from_place_, from_seq_, to_priority_)
                    AS part (queue, from_priority, from_place, from_seq, to_priority)
            CROSS JOIN LATERAL (
              SELECT FROM penstock.live AS job
               WHERE job.queue = queue_ AND job.in_line AND job.hold IS NULL AND job.state = 'ready'
                 AND (job.priority, job.place, job.seq)
                       > (part.from_priority, part.from_place, part.from_seq)
                 AND job.priority <= least(part.to_priority, least_)
                 AND job.task <> ALL (avoid_) AND (has_slot_ OR NOT job.at_most_once)
                 AND (job.expires_at IS NULL OR job.expires_at > now_)
               ORDER BY job.priority, job.place, job.seq LIMIT 1) AS head
            WHERE part.queue = number_ LIMIT 1) THEN
      RETURN 0;
    END IF;

    -- What waits unplaced in a queue that is not fair is for `mend`, not for a claimer. The question is
    -- nested: beside a null it would be asked in vain.
    IF decided.fair THEN
      IF (SELECT true FROM penstock.live
           WHERE hold = 'unplaced' AND queue = queue_ AND priority <= least_
             AND task <> ALL (avoid_) AND (has_slot_ OR NOT at_most_once)
             AND (expires_at IS NULL OR expires_at > now_)
           ORDER BY seq LIMIT 1) THEN
        RETURN 0;
      END IF;
    END IF;

    -- What is less urgent than wanted counts while it is to come: to leave it out, all of it would
    -- have to be read, and who wakes for it only looks once more. The index over all queues has the
    -- order of the instants too, and the jobs of all: only the one that begins with the queue has this
    -- order, and only if the queue is a range and not a constant.
    due_at_ := least(due_at_,
      (SELECT run_at FROM penstock.live
        WHERE NOT in_line AND queue BETWEEN queue_ AND queue_
          AND task <> ALL (avoid_) AND (has_slot_ OR NOT at_most_once)
          AND (expires_at IS NULL OR expires_at > greatest(run_at, now_))
          AND (priority <= before_ OR run_at > now_)
        ORDER BY queue, run_at LIMIT 1),
      (SELECT hold_until FROM penstock.live
        WHERE hold_until IS NOT NULL AND queue BETWEEN queue_ AND queue_
          AND task <> ALL (avoid_) AND (has_slot_ OR NOT at_most_once)
          AND (expires_at IS NULL OR expires_at > greatest(hold_until, now_))
          AND (priority <= before_ OR hold_until > now_)
        ORDER BY queue, hold_until LIMIT 1));
  END LOOP;
  RETURN CASE WHEN due_at_ <= now_ THEN 0 ELSE due_at_ - now_ END;
END $$;

-- Jobs by their ids, each looked for by the index of the ids in what lives and in every day of the
-- history. A caller that waits for a result asks this again and again: planned anew for so many tables, each
-- time would cost ten times as much as the answer.
CREATE FUNCTION penstock.get(ids_ text[]) RETURNS SETOF penstock.live LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY SELECT * FROM penstock.live    WHERE id = ANY (ids_)
     UNION ALL SELECT * FROM penstock.history WHERE id = ANY (ids_);
END $$;
