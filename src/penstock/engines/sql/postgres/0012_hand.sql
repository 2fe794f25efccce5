-- A job that goes straight to a worker which has nothing to do. To wake it and let it claim takes three more
-- ways between processes and another commit; here the enqueue is the claim, and the notification has all
-- that the worker needs to begin.
--
-- A worker offers itself before it sleeps, for one job. Whoever enqueues one takes the offer away, stores the
-- job as running, and notifies the worker on a channel that only its process knows: anybody may listen, but
-- has to know where. Whether the worker hears of it does not matter for what is true: its next turn takes
-- the offer back, and is told of what it was given meanwhile. An offer that was taken, by whom ever, stands
-- until 0: its row is written in its place, again and again, and no index with it.

-- What a worker has to know of a job that it was given. `tid_` is the place of its row, if that is known.
CREATE FUNCTION penstock.note(
  claim_ bigint, worker_ text, tid_ tid, id_ text, task_ text, payload_ text, queue_ text, priority_ bigint,
  enqueued_at_ double precision, by_ text, seq_ bigint, attempt_ integer, claimed_at_ double precision)
RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_array(claim_, worker_, tid_, id_, task_, payload_, queue_, priority_, enqueued_at_, by_,
                          seq_, attempt_, claimed_at_)
$$;

-- Jobs that a worker was given and has not been told of: those with a greater number than `heard_`.
CREATE FUNCTION penstock.unheard(worker_ text, heard_ bigint) RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(
    SELECT claim FROM penstock.claim WHERE worker = worker_ AND handed AND number > heard_))
$$;

-- Offer a worker that is about to sleep. False: it was given a job that it does not know of, and is not
-- offered; null: the store is an older one than it knew, so that its numbers mean nothing. An offer that
-- somebody takes just now is left to him. How long it stands is measured by the server's own clock, as sleep
-- is. Nobody waits for it to be on disk.
CREATE FUNCTION penstock.offer(
  worker_ text, channel_ text, for_ double precision, queues_ text[], lowered_ bigint, range_queue_ bigint[],
  from_priority_ bigint[], from_place_ double precision[], from_seq_ bigint[], to_priority_ bigint[],
  heard_ bigint) RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  until_ double precision := extract(epoch FROM clock_timestamp()) + for_;
BEGIN
  IF heard_ > (SELECT last_value FROM penstock.claims) THEN
    RETURN NULL;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO penstock.offer (worker, channel, until, queues, lowered, range_queue, from_priority, from_place,
                              from_seq, to_priority)
  VALUES (worker_, channel_, until_, queues_, lowered_, range_queue_, from_priority_, from_place_, from_seq_,
          to_priority_)
  ON CONFLICT (worker) DO NOTHING;
  IF NOT FOUND THEN
    UPDATE penstock.offer
       SET channel = channel_, until = until_, queues = queues_, lowered = lowered_, range_queue = range_queue_,
           from_priority = from_priority_, from_place = from_place_, from_seq = from_seq_, to_priority = to_priority_
     WHERE worker = (SELECT worker FROM penstock.offer WHERE worker = worker_ FOR UPDATE SKIP LOCKED);
  END IF;
  -- Asked after it: whoever took the last offer has committed by now, or has it locked.
  IF EXISTS (SELECT FROM penstock.claim WHERE worker = worker_ AND handed AND number > heard_) THEN
    UPDATE penstock.offer SET until = 0
     WHERE worker = (SELECT worker FROM penstock.offer WHERE worker = worker_ FOR UPDATE SKIP LOCKED);
    RETURN false;
  END IF;
  RETURN true;
END $$;

-- The worker takes its offer back, inside its turn; returns what it was given and has not heard of. An empty
-- list: somebody takes it just now, and nobody can say what comes of that; nobody is waited for.
CREATE FUNCTION penstock.take_back(worker_ text, heard_ bigint) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  stands_ boolean := (SELECT until > 0 FROM penstock.offer WHERE worker = worker_);
BEGIN
  IF stands_ THEN
    UPDATE penstock.offer SET until = 0
     WHERE worker = (SELECT worker FROM penstock.offer WHERE worker = worker_ AND until > 0 FOR UPDATE SKIP LOCKED);
    stands_ := NOT FOUND;
  END IF;
  RETURN (SELECT coalesce(json_agg(penstock.note(
                   claim, worker, NULL, id, task, convert_from(payload, 'UTF8'), queue, priority, enqueued_at,
                   enqueued_by, seq, attempt, claimed_at)), CASE WHEN stands_ THEN '[]'::json END)
            FROM penstock.unheard(worker_, heard_));
END $$;

-- Store a job and give it to a worker that offers itself; false: there is none, and nothing was stored.
-- It is the next one for that worker: where it would look for jobs, there are none (law 9).
--
-- Nobody is waited for, and no lock is held that anybody else needs. A worker that is buried at this moment
-- has a job that is rescued. A process that listens has a lock for as long as its connection lives: who gets
-- it is alone there.
CREATE FUNCTION penstock.hand_over(
  ticket_ bigint, id_ text, payload_ text, task_ text, queue_ text, priority_ bigint, by_ text)
RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off SET jit = off AS $$
DECLARE
  worker_  text;
  channel_ text;
  claim_   bigint;
  tid_     tid;
  now_     double precision;
BEGIN
  -- A notification has room for 8000 bytes.
  IF octet_length(to_json(ARRAY[id_, payload_, task_, queue_, by_])::text) > 7000 THEN
    RETURN false;
  END IF;
  UPDATE penstock.offer SET until = 0 WHERE worker = (
    SELECT offer.worker FROM penstock.offer
     WHERE queue_ = ANY (offer.queues) AND offer.until > extract(epoch FROM clock_timestamp())
       AND offer.lowered = (SELECT last_value + is_called::integer FROM penstock.lowered)
       AND EXISTS (SELECT FROM penstock.worker WHERE worker.id = offer.worker)
       AND NOT EXISTS (
         SELECT FROM unnest(offer.range_queue, offer.from_priority, offer.from_place, offer.from_seq,
                            offer.to_priority)
                       AS part (queue, from_priority, from_place, from_seq, to_priority)
          CROSS JOIN LATERAL (
            SELECT FROM penstock.live AS job
             WHERE job.queue = offer.queues[part.queue] AND job.in_line AND job.hold IS NULL
               AND job.state = 'ready' AND job.priority <= part.to_priority
               AND (job.priority, job.place, job.seq) > (part.from_priority, part.from_place, part.from_seq)
             ORDER BY job.priority, job.place, job.seq LIMIT 1) AS head
          WHERE NOT EXISTS (SELECT FROM penstock.queue WHERE queue.name = offer.queues[part.queue]))
     LIMIT 1 FOR UPDATE OF offer SKIP LOCKED)
  RETURNING worker, channel INTO worker_, channel_;
  IF worker_ IS NULL THEN
    RETURN false;
  END IF;
  IF pg_try_advisory_lock(hashtext('penstock.hand'), hashtext(channel_)) THEN
    PERFORM pg_advisory_unlock(hashtext('penstock.hand'), hashtext(channel_));
    RETURN false;
  END IF;
  claim_ := nextval('penstock.claims');
  now_ := penstock.now();
  INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker, handed)
  VALUES (claim_, priority_, 0, ticket_, 0, ticket_, 1, queue_, worker_, true);
  INSERT INTO penstock.live (entry, seq, priority, enqueued_at, claimed_at, attempt, started, id, task, queue,
                             state, worker, enqueued_by, payload, claim)
  VALUES (ticket_, ticket_, priority_, now_, now_, 1, true, id_, task_, queue_,
          'running', worker_, by_, convert_to(payload_, 'UTF8'), claim_)
  RETURNING ctid INTO tid_;
  PERFORM pg_notify(channel_, penstock.note(
    claim_, worker_, tid_, id_, task_, payload_, queue_, priority_, now_, by_, ticket_, 1, now_)::text);
  RETURN true;
END $$;
