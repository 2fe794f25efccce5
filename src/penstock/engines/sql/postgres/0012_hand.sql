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

-- Offer a worker that is about to sleep; false: it was given a job that it does not know of, and is not to.
-- Whoever takes its last offer just now is waited for, so that there is one at a time. How long it stands is
-- measured by the server's own clock, as sleep is. Nobody waits for it to be on disk.
CREATE FUNCTION penstock.offer(
  worker_ text, channel_ text, queues_ text[], for_ double precision, heard_ bigint) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET lock_timeout = '5s' AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO penstock.offer (worker, channel, queues, until)
  VALUES (worker_, channel_, queues_, extract(epoch FROM clock_timestamp()) + for_)
  ON CONFLICT (worker) DO UPDATE SET channel = excluded.channel, queues = excluded.queues, until = excluded.until;
  IF EXISTS (SELECT FROM penstock.claim WHERE worker = worker_ AND handed AND number > heard_) THEN
    UPDATE penstock.offer SET until = 0 WHERE worker = worker_;
    RETURN false;
  END IF;
  RETURN true;
END $$;

-- The worker takes its offer back, inside its turn; returns what it was given and has not heard of. Whoever
-- is about to give it something is waited for.
CREATE FUNCTION penstock.take_back(worker_ text, heard_ bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
  UPDATE penstock.offer SET until = 0 WHERE worker = worker_ AND until > 0;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  RETURN (SELECT json_agg(penstock.note(
            claim, worker, NULL, id, task, convert_from(payload, 'UTF8'), queue, priority, enqueued_at,
            enqueued_by, seq, attempt, claimed_at))
            FROM penstock.unheard(worker_, heard_));
END $$;

-- Store a job and give it to a worker that offers itself; false: there is none, and nothing was stored.
-- Nobody is waited for. A process that listens has a lock for as long as its connection lives, and nobody
-- is buried in the middle of this.
CREATE FUNCTION penstock.hand_over(
  ticket_ bigint, id_ text, payload_ text, task_ text, queue_ text, priority_ bigint, by_ text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  worker_  text;
  channel_ text;
  claim_   bigint;
  tid_     tid;
  now_     double precision;
BEGIN
  UPDATE penstock.offer SET until = 0 WHERE worker = (
    SELECT worker FROM penstock.offer
     WHERE queue_ = ANY (queues) AND until > extract(epoch FROM clock_timestamp())
     LIMIT 1 FOR UPDATE SKIP LOCKED)
  RETURNING worker, channel INTO worker_, channel_;
  IF worker_ IS NULL
     OR pg_try_advisory_xact_lock(hashtext('penstock.hand'), hashtext(channel_))
     OR NOT pg_try_advisory_xact_lock_shared(hashtext('penstock.worker'), hashtext(worker_))
     -- A notification has room for 8000 bytes.
     OR octet_length(to_json(ARRAY[id_, payload_, task_, queue_, by_])::text) > 7000 THEN
    RETURN false;
  END IF;
  PERFORM FROM penstock.worker WHERE id = worker_;
  IF NOT FOUND THEN
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
