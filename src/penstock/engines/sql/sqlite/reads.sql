-- What is read for people: pages, counts, where a job stands.

-- name: queue_names
SELECT DISTINCT queue FROM job

-- name: find
-- Newest first. Every condition is off when its parameter is empty.
SELECT * FROM job
 WHERE entry < :before
   AND (:ids    = '[]' OR id    IN (SELECT value FROM json_each(:ids)))
   AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues = '[]' OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:tasks  = '[]' OR task  IN (SELECT value FROM json_each(:tasks)))
   AND (:keys   = '[]' OR key   IN (SELECT value FROM json_each(:keys)))
   AND (:holds  = '[]' OR hold  IN (SELECT value FROM json_each(:holds)))
   AND (:tag IS NULL OR :tag IN (SELECT value FROM json_each(tags)))
   AND (:correlation_id IS NULL OR correlation_id = :correlation_id)
   AND (:since IS NULL OR enqueued_at >= :since)
   AND (:until IS NULL OR enqueued_at < :until)
 ORDER BY entry DESC LIMIT :limit

-- name: count
SELECT count(*) FROM job
 WHERE (:ids    = '[]' OR id    IN (SELECT value FROM json_each(:ids)))
   AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues = '[]' OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:tasks  = '[]' OR task  IN (SELECT value FROM json_each(:tasks)))
   AND (:keys   = '[]' OR key   IN (SELECT value FROM json_each(:keys)))
   AND (:holds  = '[]' OR hold  IN (SELECT value FROM json_each(:holds)))
   AND (:tag IS NULL OR :tag IN (SELECT value FROM json_each(tags)))
   AND (:correlation_id IS NULL OR correlation_id = :correlation_id)
   AND (:since IS NULL OR enqueued_at >= :since)
   AND (:until IS NULL OR enqueued_at < :until)

-- name: counts
SELECT queue, state, hold, count(*) FROM job GROUP BY queue, state, hold

-- name: hands
-- What runs, in the order of its index as far as that goes; the columns that are not grouped are those
-- of the job that was claimed first.
SELECT coalesce(worker, ''), queue, task, priority, count(*), sum(started), id, min(claimed_at)
  FROM job INDEXED BY job_running WHERE state = 'running'
 GROUP BY coalesce(worker, ''), queue, task, priority
 ORDER BY 1, 2, 3, 4

-- name: remembered
SELECT until FROM ledger WHERE id = ? AND until > ?

-- name: ahead
-- The jobs before a ticket, from the head of the line on, so that the limit bounds what is read.
SELECT priority, key FROM job INDEXED BY job_claim
 WHERE queue = :queue AND state = 'ready' AND hold IS NULL
   AND (priority, place, seq) < (:priority, :place, :seq)
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority, place, seq LIMIT :limit

-- name: blockers
-- Open jobs of an ordered queue that wait. One that is open itself is kept only by those which are
-- ready before it.
SELECT id FROM job INDEXED BY job_open
 WHERE queue = :queue AND claimed_at IS NOT NULL AND state IN ('scheduled', 'ready')
   AND (expires_at IS NULL OR expires_at > :now)
   AND id <> :id
   AND (NOT :is_open
        OR (state = 'ready' AND hold IS NULL
            AND (priority, place, seq) < (:priority, :place, :seq)))
 ORDER BY priority, place, seq LIMIT :limit

-- What a live screen asks again and again: none of these reads what ended well long ago.

-- name: live_counts
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

-- name: last_failed
-- Of one queue, so that the index gives them in order.
SELECT finished_at, seq, entry FROM job
 WHERE state = 'failed' AND queue = ? ORDER BY finished_at DESC LIMIT ?
