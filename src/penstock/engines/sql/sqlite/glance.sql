-- What a live screen asks of an embedded store, again and again: no statement here reads what ended
-- well long ago.

-- name: counts
-- What ``counts`` says of jobs that wait or have failed, each part by an index of its own that has all
-- it needs. Only a ready job has a hold.
SELECT queue, 'ready', NULL, count(*) FROM job WHERE state = 'ready' AND hold IS NULL GROUP BY queue
UNION ALL
SELECT queue, 'ready', hold, count(*) FROM job WHERE hold IS NOT NULL GROUP BY hold, queue
UNION ALL
SELECT queue, 'scheduled', NULL, count(*) FROM job WHERE state = 'scheduled' GROUP BY queue
UNION ALL
SELECT queue, 'failed', NULL, count(*) FROM job WHERE state = 'failed' GROUP BY queue

-- name: busy
SELECT worker, queue, count(*) FROM job WHERE state = 'running' GROUP BY worker, queue

-- name: ended
SELECT queue, state, count(*) FROM job WHERE finished_at > ? GROUP BY queue, state

-- name: newest
-- Read until one is too old: entries follow the instants, unless the clock was set back.
SELECT queue, enqueued_at FROM job ORDER BY entry DESC

-- name: running
-- Sorted without their payloads, which may be large.
SELECT entry FROM job WHERE state = 'running' ORDER BY claimed_at, seq LIMIT ?

-- name: failed
-- Of one queue, so that the index gives them in order.
SELECT finished_at, seq, entry FROM job
 WHERE state = 'failed' AND queue = ? ORDER BY finished_at DESC LIMIT ?

-- name: jobs
SELECT * FROM job WHERE entry IN (SELECT value FROM json_each(?))
