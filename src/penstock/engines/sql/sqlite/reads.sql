-- What is read for people: pages and counts. `{fits}` stands for the conditions of a filter, made of the blocks that
-- begin with `if_`: a condition that is off is not in the statement, so that it cannot spoil the plan.

-- name: find
-- Newest first.
SELECT * FROM job WHERE entry < :before AND {fits} ORDER BY entry DESC LIMIT :limit

-- name: purgeable
-- Newest first, as find goes, and never what runs.
SELECT entry, id, unique_key, queue, priority, CASE WHEN state = 'ready' AND hold IS NULL THEN line END
  FROM job
 WHERE entry < :before AND state <> 'running' AND {fits} ORDER BY entry DESC LIMIT :limit

-- name: if_ids
id IN (SELECT value FROM json_each(:ids))

-- name: if_workers
state = 'running' AND worker IN (SELECT value FROM json_each(:workers))

-- name: if_states
state IN (SELECT value FROM json_each(:states))

-- name: if_queues
queue IN (SELECT value FROM json_each(:queues))

-- name: if_tasks
task IN (SELECT value FROM json_each(:tasks))

-- name: if_keys
key IN (SELECT value FROM json_each(:keys))

-- name: if_hold
-- One kind: its jobs are found in the order of the page.
hold = :hold

-- name: if_holds
hold IN (SELECT value FROM json_each(:holds))

-- name: if_tag
:tag IN (SELECT value FROM json_each(tags))

-- name: if_correlation_id
correlation_id = :correlation_id

-- name: if_since
enqueued_at >= :since

-- name: if_until
enqueued_at < :until

-- name: if_finished_since
finished_at >= :finished_since

-- name: if_tickets_below
seq < :tickets_below

-- name: if_open
claimed_at IS NOT NULL AND finished_at IS NULL

-- Counts, in parts: each by an index of its own, so that none reads what ended long ago unless that is asked for. Only
-- a ready job has a hold.

-- name: count_ready
SELECT queue, priority, 'ready', NULL, count(*) FROM job
 WHERE state = 'ready' AND hold IS NULL AND {fits} GROUP BY queue, priority

-- name: count_held
SELECT queue, priority, 'ready', hold, count(*) FROM job
 WHERE hold IS NOT NULL AND {fits} GROUP BY queue, priority, hold

-- name: count_scheduled
SELECT queue, priority, 'scheduled', NULL, count(*) FROM job
 WHERE state = 'scheduled' AND {fits} GROUP BY queue, priority

-- name: count_running
SELECT queue, priority, 'running', NULL, count(*) FROM job
 WHERE state = 'running' AND {fits} GROUP BY queue, priority

-- name: count_failed
SELECT queue, priority, 'failed', NULL, count(*) FROM job
 WHERE state = 'failed' AND {fits} GROUP BY queue, priority

-- name: count_ended
SELECT queue, priority, state, NULL, count(*) FROM job
 WHERE state IN ('succeeded', 'cancelled') AND {fits} GROUP BY queue, priority, state

-- name: count_ended_since
SELECT queue, priority, state, NULL, count(*) FROM job INDEXED BY job_finished
 WHERE {fits} GROUP BY queue, priority, state

-- name: running
-- What runs, in the order of its index as far as that goes; the columns that are not grouped are those
-- of the job that was claimed first.
SELECT coalesce(worker, ''), queue, task, priority, count(*), sum(started), id, min(claimed_at)
  FROM job INDEXED BY job_running WHERE state = 'running'
 GROUP BY coalesce(worker, ''), queue, task, priority
 ORDER BY 1, 2, 3, 4
