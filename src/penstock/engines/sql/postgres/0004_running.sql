-- What runs, which no index says: it is found through the claims, by where in the line each has taken.

-- Write down where the jobs at these places stand, as one claim of a worker; returns its number. If they
-- are in the order of one line, its first and last say it all.
CREATE FUNCTION penstock.note_claim(worker_ text, tids_ tid[], is_line boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  number_ bigint := nextval('penstock.claims');
BEGIN
  IF is_line THEN
    INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
    SELECT number_, head.priority, head.place, head.seq, tail.place, tail.seq, cardinality(tids_), head.queue,
           worker_
      FROM penstock.live AS head, penstock.live AS tail
     WHERE head.ctid = tids_[1] AND tail.ctid = tids_[cardinality(tids_)] AND head.priority = tail.priority;
    IF FOUND THEN
      RETURN number_;
    END IF;
  END IF;
  INSERT INTO penstock.claim (number, priority, from_place, from_seq, to_place, to_seq, jobs, queue, worker)
  SELECT number_, job.priority, min(job.place), min(job.seq), max(job.place), max(job.seq), count(*), job.queue,
         worker_
    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
   GROUP BY job.queue, job.priority;
  RETURN number_;
END $$;

-- So many jobs of these claims have ceased to run. A claim that somebody else counts in just now is left
-- alone: nobody waits for that, and `mend` takes those away that are there for nothing.
CREATE FUNCTION penstock.uncount(numbers_ bigint[], queues_ text[], priorities_ bigint[], counts_ bigint[])
RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
  claim_ record;
BEGIN
  FOR claim_ IN
    SELECT claim.ctid AS tid, claim.jobs - ended.jobs AS jobs
      FROM unnest(numbers_, queues_, priorities_, counts_) AS ended (number, queue, priority, jobs)
      JOIN penstock.claim AS claim ON claim.number = ended.number AND claim.queue = ended.queue
                                  AND claim.priority = ended.priority
       FOR UPDATE OF claim SKIP LOCKED
  LOOP
    IF claim_.jobs > 0 THEN
      UPDATE penstock.claim SET jobs = claim_.jobs WHERE ctid = claim_.tid;
    ELSE
      DELETE FROM penstock.claim WHERE ctid = claim_.tid;
    END IF;
  END LOOP;
END $$;

-- The same for one job, with the number that it had; null: it did not run.
CREATE FUNCTION penstock.uncount(number_ bigint, queue_ text, priority_ bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
  IF number_ IS NOT NULL THEN
    PERFORM penstock.uncount(ARRAY[number_], ARRAY[queue_], ARRAY[priority_], ARRAY[1]);
  END IF;
END $$;

-- The jobs of some claims that still run; each claim by its own range of the index. Only of a fair queue
-- the places differ. (A comparison of whole tickets would not end where the range does.)
CREATE FUNCTION penstock.running(claims_ penstock.claim[]) RETURNS SETOF penstock.live LANGUAGE plpgsql STABLE
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
  claim_ penstock.claim;
BEGIN
  FOREACH claim_ IN ARRAY claims_ LOOP
    IF claim_.from_place = claim_.to_place THEN
      RETURN QUERY
      SELECT * FROM penstock.live AS job
       WHERE job.queue = claim_.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim_.priority
         AND job.place = claim_.from_place AND job.seq BETWEEN claim_.from_seq AND claim_.to_seq
         AND job.claim = claim_.number AND job.worker = claim_.worker AND job.state = 'running';
    ELSE
      RETURN QUERY
      SELECT * FROM penstock.live AS job
       WHERE job.queue = claim_.queue AND job.in_line AND job.hold IS NULL AND job.priority = claim_.priority
         AND job.place BETWEEN claim_.from_place AND claim_.to_place
         AND job.claim = claim_.number AND job.worker = claim_.worker AND job.state = 'running';
    END IF;
  END LOOP;
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

-- Of claims that nobody has a lease for; a worker that nobody knows is found as well.
CREATE FUNCTION penstock.orphans() RETURNS SETOF penstock.live LANGUAGE sql STABLE AS $$
  SELECT * FROM penstock.running(ARRAY(
    SELECT claim FROM penstock.claim
     WHERE NOT EXISTS (SELECT FROM penstock.worker WHERE worker.id = claim.worker)))
$$;
