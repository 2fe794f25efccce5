-- What a live screen asks of a PostgreSQL store, again and again: no statement here reads what ended
-- well long ago.

-- name: counts
-- What ``counts`` says of jobs that wait or have failed; dead letters by their own index, day by day.
SELECT queue, state, hold, count(*) FROM penstock.live
 WHERE state <> 'running' GROUP BY queue, state, hold
UNION ALL
SELECT queue, 'failed', NULL, count(*) FROM penstock.history WHERE state = 'failed' GROUP BY queue

-- name: busy
SELECT coalesce(worker, ''), queue, count(*) FROM penstock.running() GROUP BY coalesce(worker, ''), queue

-- name: ended
-- Only the days since then are opened. The end of the range excludes nothing: of a range a plan thinks
-- that little is in it, of a comparison that a third is, and would read all of a day without statistics.
SELECT queue, state, count(*) FROM penstock.history
 WHERE finished_at > %(since)s::double precision AND finished_at < 'infinity'::double precision
 GROUP BY queue, state

-- name: entered
-- From the newest back to the first that is too old: entries follow the instants, unless the clock was
-- set back. The history is read backwards by its entries until that one is found; the end of the range
-- is there for the same reason.
WITH last AS (
  SELECT greatest(
    (SELECT max(entry) FROM penstock.live WHERE enqueued_at <= %(since)s::double precision),
    (SELECT entry FROM penstock.history WHERE enqueued_at <= %(since)s::double precision
      ORDER BY entry DESC LIMIT 1), 0) AS entry)
SELECT queue, count(*) FROM (
  SELECT queue FROM penstock.live WHERE entry > (SELECT last.entry FROM last)
  UNION ALL
  SELECT queue FROM penstock.history
   WHERE entry > (SELECT last.entry FROM last) AND entry < 9223372036854775807
) AS job GROUP BY queue

-- name: running
SELECT * FROM penstock.running() ORDER BY claimed_at, seq LIMIT %(limit)s::bigint

-- name: failed
-- The latest of each queue, from the newest day on, so that the index gives them in order.
SELECT job.* FROM unnest(%(queues)s::text[]) AS mine (queue) CROSS JOIN LATERAL (
  SELECT * FROM penstock.history AS job WHERE job.state = 'failed' AND job.queue = mine.queue
   ORDER BY job.finished_at DESC, job.seq DESC LIMIT %(limit)s::bigint) AS job
 ORDER BY job.finished_at DESC, job.seq DESC LIMIT %(limit)s::bigint
