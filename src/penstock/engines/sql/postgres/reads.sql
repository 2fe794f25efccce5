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

-- name: count
SELECT (SELECT count(*) FROM penstock.live    WHERE {live})
     + (SELECT count(*) FROM penstock.history WHERE {history})

-- name: if_ids
id = ANY(%(ids)s::text[])

-- name: if_states
state = ANY(%(states)s::text[])

-- name: if_queues
queue = ANY(%(queues)s::text[])

-- name: if_tasks
task = ANY(%(tasks)s::text[])

-- name: if_keys
key = ANY(%(keys)s::text[])

-- name: if_holds
hold = ANY(%(holds)s::text[])

-- name: if_tag
tags::jsonb ? %(tag)s::text

-- name: if_correlation_id
correlation_id = %(correlation_id)s::text

-- name: if_since
enqueued_at >= %(since)s::double precision

-- name: if_until
enqueued_at < %(until)s::double precision

-- name: if_any
true

-- name: if_none
-- The planner leaves a table out of which nothing can come.
false

-- name: counts
-- No state is in both tables, so each is counted alone.
SELECT queue, state, hold, count(*) FROM penstock.live    GROUP BY queue, state, hold
UNION ALL
SELECT queue, state, hold, count(*) FROM penstock.history GROUP BY queue, state, hold

-- name: held_by
SELECT * FROM penstock.running_of(%(worker)s::text) ORDER BY priority, place, seq

-- name: hands
SELECT coalesce(worker, ''), queue, task, priority, count(*), count(*) FILTER (WHERE started),
       (array_agg(id ORDER BY claimed_at, seq))[1], min(claimed_at)
  FROM penstock.running()
 GROUP BY coalesce(worker, ''), queue, task, priority
 ORDER BY 1, 2, 3, 4

-- name: remembered
SELECT until FROM penstock.ledger WHERE id = %(id)s::text AND until > %(now)s::double precision

-- name: ahead
-- The jobs before a ticket, from the head of the line on, so that the limit bounds what is read: by
-- key, the most frequent first, each with the sums over all of them. In three ranges, because a
-- comparison of whole tickets would read on to the end of the priority.
SELECT coalesce(key, ''), count(*), (sum(count(*)) OVER ())::bigint,
       (sum(count(*) FILTER (WHERE priority < %(priority)s::bigint)) OVER ())::bigint
  FROM ((SELECT priority, place, seq, key FROM penstock.live
          WHERE queue = %(queue)s::text AND in_line AND hold IS NULL AND state = 'ready'
            AND priority < %(priority)s::bigint
            AND (expires_at IS NULL OR expires_at > %(now)s::double precision)
          ORDER BY priority, place, seq LIMIT %(most)s::bigint)
        UNION ALL
        (SELECT priority, place, seq, key FROM penstock.live
          WHERE queue = %(queue)s::text AND in_line AND hold IS NULL AND state = 'ready'
            AND priority = %(priority)s::bigint AND place < %(place)s::double precision
            AND (expires_at IS NULL OR expires_at > %(now)s::double precision)
          ORDER BY place, seq LIMIT %(most)s::bigint)
        UNION ALL
        (SELECT priority, place, seq, key FROM penstock.live
          WHERE queue = %(queue)s::text AND in_line AND hold IS NULL AND state = 'ready'
            AND priority = %(priority)s::bigint AND place = %(place)s::double precision
            AND seq < %(seq)s::bigint
            AND (expires_at IS NULL OR expires_at > %(now)s::double precision)
          ORDER BY seq LIMIT %(most)s::bigint)
        ORDER BY priority, place, seq LIMIT %(most)s::bigint) AS before
 GROUP BY coalesce(key, '')
 ORDER BY count(*) DESC, coalesce(key, '') LIMIT %(some)s::bigint

-- name: blockers
-- Open jobs of an ordered queue that wait. One that is open itself is kept only by those which are
-- ready before it.
SELECT id FROM penstock.live
 WHERE queue = %(queue)s::text AND was_claimed AND state IN ('scheduled', 'ready')
   AND (expires_at IS NULL OR expires_at > %(now)s::double precision)
   AND id <> %(id)s::text
   AND (NOT %(is_open)s::boolean
        OR (state = 'ready' AND hold IS NULL
            AND (priority, place, seq)
                < (%(priority)s::bigint, %(place)s::double precision, %(seq)s::bigint)))
 ORDER BY priority, place, seq LIMIT %(some)s::bigint

-- name: look
-- If a job with an old ticket is ready since the ranges were found, they say nothing: it is time now.
SELECT CASE WHEN %(lowered)s::bigint <> (SELECT last_value + is_called::integer FROM penstock.lowered)
            THEN 0
            ELSE penstock.look(%(worker)s::text, %(told)s::text[], %(queues)s::text[], %(avoid)s::text[],
                               %(has_slot)s::boolean, %(least_urgent)s::bigint, %(range_queue)s::bigint[],
                               %(from_priority)s::bigint[], %(from_place)s::double precision[],
                               %(from_seq)s::bigint[], %(to_priority)s::bigint[])
       END

-- name: settings
SELECT name, settings FROM penstock.queue

-- name: queue_names
-- Each table by itself: together they would be sorted.
SELECT DISTINCT queue FROM penstock.live UNION ALL SELECT DISTINCT queue FROM penstock.history

-- name: worker
SELECT 1 FROM penstock.worker WHERE id = %(worker)s::text

-- name: workers
SELECT beat, joined_at, info FROM penstock.worker ORDER BY joined_at, id

-- name: term
SELECT holder, epoch, until, ttl FROM penstock.term

-- name: cell
SELECT value, version FROM penstock.cell WHERE name = %(name)s::text

-- --- glance: what a live screen asks again and again; no statement here reads what ended well long ago ---

-- name: glance_counts
-- What ``counts`` says of jobs that wait or have failed; dead letters by their own index, day by day.
SELECT queue, state, hold, count(*) FROM penstock.live
 WHERE state <> 'running' GROUP BY queue, state, hold
UNION ALL
SELECT queue, 'failed', NULL, count(*) FROM penstock.history WHERE state = 'failed' GROUP BY queue

-- name: glance_busy
SELECT coalesce(worker, ''), queue, count(*) FROM penstock.running() GROUP BY coalesce(worker, ''), queue

-- name: glance_ended
-- Only the days since then are opened. The end of the range excludes nothing: of a range a plan thinks
-- that little is in it, of a comparison that a third is, and would read all of a day without statistics.
SELECT queue, state, count(*) FROM penstock.history
 WHERE finished_at > %(since)s::double precision AND finished_at < 'infinity'::double precision
 GROUP BY queue, state

-- name: glance_entered
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

-- name: glance_running
SELECT * FROM penstock.running() ORDER BY claimed_at, seq LIMIT %(limit)s::bigint

-- name: glance_failed
-- The latest of each queue, from the newest day on, so that the index gives them in order.
SELECT job.* FROM unnest(%(queues)s::text[]) AS mine (queue) CROSS JOIN LATERAL (
  SELECT * FROM penstock.history AS job WHERE job.state = 'failed' AND job.queue = mine.queue
   ORDER BY job.finished_at DESC, job.seq DESC LIMIT %(limit)s::bigint) AS job
 ORDER BY job.finished_at DESC, job.seq DESC LIMIT %(limit)s::bigint
