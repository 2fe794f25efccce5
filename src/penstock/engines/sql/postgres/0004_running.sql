-- What runs, which no index says: it is found through the claims, by where in the line each has taken.

-- Write down where the jobs at these places stand, as claims of a worker, all of one number.
CREATE FUNCTION penstock.note_claim(number_ bigint, worker_ text, tids_ tid[]) RETURNS void LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_indexscan = off
SET enable_bitmapscan = off AS $$
  INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
  SELECT number_, job.priority, min(job.place), min(job.seq), max(job.place), max(job.seq), count(*), job.queue,
         worker_
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
   GROUP BY job.queue, job.priority
$$;

-- So many jobs of these claims have ceased to run. A claim that another step counts in just now is left
-- alone: nothing waits for that, and `mend` takes those away that are there for nothing.
CREATE FUNCTION penstock.uncount(numbers_ bigint[], queues_ text[], priorities_ bigint[], counts_ bigint[])
RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  claim_ record;
BEGIN
  FOR claim_ IN
    -- By its number, whatever a plan would like: an index that is read whole has all claims since the oldest
    -- transaction of the server.
    SELECT mine.tid, mine.jobs - ended.jobs AS jobs
      FROM unnest(numbers_, queues_, priorities_, counts_) AS ended (number, queue, priority, jobs)
     CROSS JOIN LATERAL (
       SELECT claim.ctid AS tid, claim.jobs FROM penstock.claim AS claim
        WHERE claim.number = ended.number AND claim.priority = ended.priority AND claim.queue || '' = ended.queue
          FOR UPDATE SKIP LOCKED) AS mine
  LOOP
    IF claim_.jobs > 0 THEN
      UPDATE penstock.claim SET jobs = claim_.jobs WHERE ctid = claim_.tid;
    ELSE
      DELETE FROM penstock.claim WHERE ctid = claim_.tid;
    END IF;
  END LOOP;
END $$;

-- The same for one job, with the number that it had; null: it did not run. A step that sees the store as it
-- was when its transaction began may not change what others have counted in since: `mend` does it.
CREATE FUNCTION penstock.uncount(number_ bigint, queue_ text, priority_ bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  IF number_ IS NULL OR current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN false;
  END IF;
  PERFORM penstock.uncount(ARRAY[number_], ARRAY[queue_], ARRAY[priority_], ARRAY[1]);
  RETURN true;
END $$;

-- The jobs of some claims that still run; each claim by its own range of the index, whatever a plan would
-- like to begin with. Only of a fair queue the places differ. (A comparison of whole tickets would not end
-- where the range does.)
CREATE FUNCTION penstock.running(claims_ penstock.claim[]) RETURNS SETOF penstock.live LANGUAGE plpgsql STABLE
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_material = off SET enable_memoize = off AS $$
BEGIN
  RETURN QUERY
  SELECT job.* FROM unnest(claims_) AS claim CROSS JOIN LATERAL (
    SELECT * FROM penstock.live AS job
     WHERE job.queue = claim.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim.priority
       AND job.place = claim.from_place AND job.seq BETWEEN claim.from_seq AND claim.to_seq
       AND job.claim = claim.number AND job.worker = claim.worker AND job.state = 'running'
    OFFSET 0) AS job
   WHERE claim.from_place = claim.to_place
  UNION ALL
  SELECT job.* FROM unnest(claims_) AS claim CROSS JOIN LATERAL (
    SELECT * FROM penstock.live AS job
     WHERE job.queue = claim.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim.priority
       AND job.place BETWEEN claim.from_place AND claim.to_place
       AND job.claim = claim.number AND job.worker = claim.worker AND job.state = 'running'
    OFFSET 0) AS job
   WHERE claim.from_place <> claim.to_place;
END $$;

CREATE FUNCTION penstock.running() RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim))
$$;

CREATE FUNCTION penstock.running_in(queue_ text) RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim WHERE queue = queue_))
$$;

CREATE FUNCTION penstock.running_of(worker_ text) RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(SELECT claim FROM penstock.claim WHERE worker = worker_))
$$;

-- Of claims whose worker has no lease, or is not known at all.
CREATE FUNCTION penstock.orphans() RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(
    SELECT claim FROM penstock.claim
     WHERE NOT EXISTS (SELECT FROM penstock.worker WHERE worker.id = claim.worker)))
$$;

-- How many of a queue run. If even those that the claims count are fewer than `enough_`, it is their number,
-- which is never too small; only otherwise all are looked at.
CREATE FUNCTION penstock.count_running(queue_ text, enough_ bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  counted_ bigint := (SELECT coalesce(sum(jobs), 0) FROM penstock.claim WHERE queue = queue_);
BEGIN
  IF counted_ < enough_ THEN
    RETURN counted_;
  END IF;
  RETURN (SELECT count(*) FROM penstock.running_in(queue_));
END $$;

-- The jobs of a queue that run are about to lose their places: each gets a claim of its own, which has
-- nothing but its ticket.
CREATE FUNCTION penstock.split_claims(queue_ text) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  job_ record;
BEGIN
  FOR job_ IN
    SELECT job.id, job.seq, job.priority, job.worker, nextval('penstock.claims') AS number
      FROM penstock.live AS job
     WHERE job.id = ANY (ARRAY(SELECT id FROM penstock.running_in(queue_))) AND job.claim IS NOT NULL
     ORDER BY job.id FOR UPDATE
  LOOP
    INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
    VALUES (job_.number, job_.priority, 0, job_.seq, 0, job_.seq, 1, queue_, job_.worker);
    UPDATE penstock.live SET claim = job_.number, place = 0 WHERE id = job_.id;
  END LOOP;
  DELETE FROM penstock.claim WHERE queue = queue_ AND NOT EXISTS (SELECT FROM penstock.running(ARRAY[claim]));
END $$;
