-- What runs: found by its own index, which has the queue and then the worker.

-- Which workers have jobs of which queues. Each pair is one step in the index, however many jobs it stands for.
CREATE FUNCTION penstock.pairs() RETURNS TABLE (queue text, worker text) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
  WITH RECURSIVE pair AS (
    (SELECT job.queue, job.worker FROM penstock.live AS job WHERE job.state = 'running'
      ORDER BY job.queue, job.worker LIMIT 1)
    UNION ALL
    SELECT next.queue, next.worker FROM pair CROSS JOIN LATERAL (
      SELECT job.queue, job.worker FROM penstock.live AS job
       WHERE job.state = 'running' AND (job.queue, job.worker) > (pair.queue, pair.worker)
       ORDER BY job.queue, job.worker LIMIT 1) AS next)
  SELECT pair.queue, pair.worker FROM pair
$$;

CREATE FUNCTION penstock.running() RETURNS SETOF penstock.live LANGUAGE sql STABLE
SET enable_seqscan = off SET jit = off AS $$
  SELECT * FROM penstock.live WHERE state = 'running'
$$;

CREATE FUNCTION penstock.running_of(worker_ text) RETURNS SETOF penstock.live LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  SELECT job.* FROM penstock.pairs() AS pair CROSS JOIN LATERAL (
    SELECT * FROM penstock.live AS job
     WHERE job.state = 'running' AND job.queue = pair.queue AND job.worker = pair.worker OFFSET 0) AS job
   WHERE pair.worker = worker_
$$;

-- The first that belong to workers without a lease.
CREATE FUNCTION penstock.orphans(limit_ bigint) RETURNS SETOF penstock.live LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  SELECT job.* FROM penstock.pairs() AS pair CROSS JOIN LATERAL (
    SELECT * FROM penstock.live AS job
     WHERE job.state = 'running' AND job.queue = pair.queue AND job.worker = pair.worker OFFSET 0) AS job
   WHERE NOT EXISTS (SELECT FROM penstock.worker AS known WHERE known.id = pair.worker)
   ORDER BY job.priority, job.seq LIMIT limit_
$$;

-- How many of a queue run, counted no further than `enough_`.
CREATE FUNCTION penstock.count_running(queue_ text, enough_ bigint) RETURNS bigint LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN (SELECT count(*) FROM (
    SELECT FROM penstock.live WHERE state = 'running' AND queue = queue_ LIMIT enough_) AS job);
END $$;
