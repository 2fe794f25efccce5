-- The key lines of queues whose keys take turns (see core.fairness). A line with a job that could start stands in
-- `job_line`; its place is in `key_line`, which the claims of its queue bring up to date by their notes.

-- name: note
INSERT INTO note (queue, priority, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: note_key
-- All lines of a key: it may run one more job, or one less.
INSERT INTO note (queue, priority, key)
SELECT queue, priority, key FROM key_line WHERE queue = ? AND key = ?
ON CONFLICT DO NOTHING

-- name: note_ends
-- The same for the keys of these jobs.
INSERT INTO note (queue, priority, key)
SELECT line.queue, line.priority, line.key
  FROM json_each(?) AS ended
       CROSS JOIN job ON job.id = ended.value
       CROSS JOIN key_line AS line ON line.queue = job.queue AND line.key = job.key
 WHERE true
ON CONFLICT DO NOTHING

-- name: notes
-- Lines to be looked at, the urgent ones first: what is known of each, and the ticket of its first job.
SELECT note.priority, note.key, line.place, line.active,
       (SELECT seq FROM job INDEXED BY job_line
         WHERE job.queue = note.queue AND job.priority = note.priority AND job.line = note.key
           AND state = 'ready' AND hold IS NULL AND line IS NOT NULL
         ORDER BY seq LIMIT 1)
  FROM note LEFT JOIN key_line AS line
       ON line.queue = note.queue AND line.key = note.key AND line.priority = note.priority
 WHERE note.queue = :queue
 ORDER BY note.priority, note.key LIMIT :limit

-- name: drop_notes
-- Up to the last one that was read.
DELETE FROM note WHERE queue = :queue AND (priority, key) <= (:priority, :key)

-- name: has_notes
SELECT 1 FROM note WHERE queue = ? LIMIT 1

-- name: first_place
SELECT place FROM key_line INDEXED BY key_line_active
 WHERE queue = ? AND priority = ? AND active
 ORDER BY place LIMIT 1

-- name: greatest_place
-- Of the idle lines: asked where none is active.
SELECT place FROM key_line INDEXED BY key_line_idle
 WHERE queue = ? AND priority = ? AND NOT active
 ORDER BY place DESC LIMIT 1

-- name: enter_line
INSERT INTO key_line (queue, key, priority, place, turn, active) VALUES (?, ?, ?, ?, ?, 1)
ON CONFLICT DO UPDATE SET place = excluded.place, turn = excluded.turn, active = 1

-- name: rest_line
-- One that never was active is kept as well: by it, a job that its key waits for finds it when it ends.
INSERT INTO key_line (queue, key, priority, place, turn, active) VALUES (?, ?, ?, 0, 0, 0)
ON CONFLICT DO UPDATE SET active = 0

-- name: move_on
-- A line from which jobs were claimed stays active if it has another one.
INSERT INTO key_line (queue, key, priority, place, turn, active)
SELECT ?1, ?2, ?3, ?4, 0, EXISTS (SELECT 1 FROM job INDEXED BY job_line
                                   WHERE job.queue = ?1 AND job.priority = ?3 AND job.line = ?2
                                     AND state = 'ready' AND hold IS NULL AND line IS NOT NULL)
 WHERE true
ON CONFLICT DO UPDATE SET place = place + excluded.place, active = excluded.active

-- name: active_lines
-- The lines in the order of their turns, each with the first of its jobs that the worker could have; read only as
-- far as jobs are wanted.
SELECT line.priority, line.place, line.turn, line.key, first.entry, first.at_most_once, first.seq
  FROM key_line AS line INDEXED BY key_line_active
       CROSS JOIN job AS first
       ON first.entry = (SELECT entry FROM job INDEXED BY job_line
                          WHERE job.queue = line.queue AND job.priority = line.priority AND job.line = line.key
                            AND state = 'ready' AND hold IS NULL AND job.line IS NOT NULL
                            AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
                            AND (:slots > 0 OR NOT at_most_once)
                            AND (expires_at IS NULL OR expires_at > :now)
                          ORDER BY seq LIMIT 1)
 WHERE line.queue = :queue AND active AND line.priority <= :least_urgent
 ORDER BY line.priority, line.place, line.turn, line.key

-- name: line_head
-- The next jobs of one of these lines.
SELECT entry, at_most_once, seq FROM job INDEXED BY job_line
 WHERE queue = :queue AND priority = :priority AND line = :key AND seq > :after
   AND state = 'ready' AND hold IS NULL AND line IS NOT NULL
   AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
   AND (:slots > 0 OR NOT at_most_once)
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY seq LIMIT :limit

-- name: running_keys
SELECT key, count(*) FROM job INDEXED BY job_running
 WHERE state = 'running' AND queue = ? AND key IS NOT NULL GROUP BY key

-- All lines of a queue, in batches.

-- name: moving
SELECT moving FROM queue WHERE name = ? AND moving IS NOT NULL

-- name: set_moving
UPDATE queue SET moving = ? WHERE name = ?

-- name: ready_after
SELECT priority, seq, entry, coalesce(key, '') FROM job INDEXED BY job_claim
 WHERE queue = ? AND state = 'ready' AND hold IS NULL AND (priority, seq) > (?, ?)
 ORDER BY priority, seq LIMIT ?

-- name: label
UPDATE job SET line = coalesce(key, '') WHERE entry IN (SELECT value FROM json_each(?)) AND line IS NULL

-- name: lines_after
SELECT key, priority FROM key_line
 WHERE queue = ? AND (key, priority) > (?, ?)
 ORDER BY key, priority LIMIT ?

-- name: line_after
-- The next line with a job that could start, and whether a claim sees it: it is active or has a note.
SELECT job.priority, job.line,
       EXISTS (SELECT 1 FROM key_line
                WHERE queue = ?1 AND key = job.line AND priority = job.priority AND active)
       OR EXISTS (SELECT 1 FROM note WHERE queue = ?1 AND priority = job.priority AND key = job.line)
  FROM job INDEXED BY job_line
 WHERE queue = ?1 AND (priority, line) > (?2, ?3)
   AND state = 'ready' AND hold IS NULL AND line IS NOT NULL
 ORDER BY priority, line LIMIT 1

-- name: idle_after
-- The next queue and priority that has idle lines.
SELECT queue, priority FROM key_line INDEXED BY key_line_idle
 WHERE NOT active AND (queue, priority) > (?, ?)
 ORDER BY queue, priority LIMIT 1

-- name: prune_lines
-- Idle lines without jobs that virtual time has reached: one that comes again enters there anyway. The last one
-- stays, because its place is the virtual time while none is active.
DELETE FROM key_line
 WHERE queue = :queue AND priority = :priority
   AND key IN (SELECT key FROM key_line INDEXED BY key_line_idle
                WHERE queue = :queue AND priority = :priority AND NOT active AND place <= :virtual_time
                ORDER BY place, key LIMIT :limit)
   AND NOT EXISTS (SELECT 1 FROM job INDEXED BY job_line
                    WHERE job.queue = :queue AND job.priority = :priority AND job.line = key_line.key
                      AND state = 'ready' AND hold IS NULL AND line IS NOT NULL)
   AND key IS NOT (SELECT key FROM key_line INDEXED BY key_line_idle
                    WHERE queue = :queue AND priority = :priority AND NOT active
                    ORDER BY place DESC, key DESC LIMIT 1)
