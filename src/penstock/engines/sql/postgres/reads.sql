-- What the PostgreSQL engine reads, each statement on one snapshot. Jobs that have not ended are in
-- `live`, all others in `history`; a job is never in both. `{live}` and `{history}` stand for the
-- conditions of a filter, made of the blocks that begin with `if_`: a condition that is off is not in
-- the statement, so that it cannot spoil the plan.

-- name: get
SELECT * FROM penstock.get(%(ids)s::text[])

-- name: find
-- Newest first. Each table gives its newest alone: the history by its index of entries, over all days
-- at once and no further than the page; of what lives the best few are kept while it is read.
SELECT * FROM (
  (SELECT * FROM penstock.live
    WHERE entry < %(before)s::bigint AND {live}
    ORDER BY entry DESC LIMIT %(limit)s::bigint)
  UNION ALL
  (SELECT * FROM penstock.history
    WHERE entry < %(before)s::bigint AND {history}
    ORDER BY entry DESC LIMIT %(limit)s::bigint)
) AS job ORDER BY entry DESC LIMIT %(limit)s::bigint

-- name: find_ids
-- The same for jobs that are named: found by their ids, then put in order. Without the fence a plan may
-- walk through the entries in the hope to meet them.
SELECT * FROM (
  SELECT * FROM penstock.live    WHERE entry < %(before)s::bigint AND {live}
  UNION ALL
  SELECT * FROM penstock.history WHERE entry < %(before)s::bigint AND {history}
  OFFSET 0
) AS job ORDER BY entry DESC LIMIT %(limit)s::bigint

-- name: if_ids
id = ANY(%(ids)s::text[])

-- name: if_workers
state = 'running' AND worker = ANY(%(workers)s::text[])

-- name: if_live_states
state = ANY(%(live_states)s::text[])

-- name: if_history_states
state = ANY(%(history_states)s::text[])

-- name: if_queues
queue = ANY(%(queues)s::text[])

-- name: if_tasks
task = ANY(%(tasks)s::text[])

-- name: if_keys
key = ANY(%(keys)s::text[])

-- name: if_holds
hold IN ({kinds})

-- name: if_tag
tags::jsonb ? %(tag)s::text

-- name: if_correlation_id
correlation_id = %(correlation_id)s::text

-- name: if_since
enqueued_at >= %(since)s::double precision

-- name: if_finished_since
-- By the index of the ends, in each day: the days are those on which jobs may be forgotten. The end of the range
-- excludes nothing: of a range a plan thinks that little is in it, of a comparison that a third is, and would read all
-- of a day without statistics.
finished_at >= %(finished_since)s::double precision AND finished_at < 'infinity'::double precision

-- name: if_tickets_below
seq < %(tickets_below)s::bigint

-- name: if_open
claimed_at IS NOT NULL

-- name: if_until
enqueued_at < %(until)s::double precision

-- name: if_any
true

-- name: if_none
-- The planner leaves a table out of which nothing can come.
false

-- name: counts
-- No state is in both tables, so each is counted alone.
SELECT queue, priority, state, hold, count(*) FROM penstock.live
 WHERE {live} GROUP BY queue, priority, state, hold
UNION ALL
SELECT queue, priority, state, hold, count(*) FROM penstock.history
 WHERE {history} GROUP BY queue, priority, state, hold

-- name: held_by
SELECT * FROM penstock.running_of(%(worker)s::text) ORDER BY priority, seq

-- name: running
SELECT coalesce(worker, ''), queue, task, priority, count(*), count(*) FILTER (WHERE started),
       (array_agg(id ORDER BY claimed_at, seq))[1], min(claimed_at)
  FROM penstock.running()
 GROUP BY coalesce(worker, ''), queue, task, priority
 ORDER BY 1, 2, 3, 4

-- name: settings
SELECT name, settings FROM penstock.queue

-- name: worker
SELECT 1 FROM penstock.worker WHERE id = %(worker)s::text

-- name: workers
SELECT beat, joined_at, info FROM penstock.worker ORDER BY joined_at, id

-- name: cell
SELECT penstock.now(), cell.value, coalesce(cell.version, 0), cell.until, cell.ttl
  FROM (VALUES (1)) AS one LEFT JOIN penstock.cell AS cell ON cell.name = %(name)s::text

-- name: cells
SELECT name, penstock.now(), value, version, until, ttl FROM penstock.cell
 WHERE starts_with(name, %(prefix)s::text) AND (%(is_first)s::boolean OR name > %(after)s::text)
   AND value IS NOT NULL
   AND (until IS NULL OR (until > penstock.now() AND until - penstock.now() <= ttl))
 ORDER BY name LIMIT %(limit)s::bigint
