-- The statements of the SQLite engine. All writes run inside one BEGIN IMMEDIATE under the write lock, so
-- what a statement reads cannot change before the next one writes.

-- name: insert
-- `{columns}` are those that say anything of these jobs, `{rows}` their places, for up to ten jobs: with
-- one row per statement, half of the time is the statement's. A known id inserts nothing; the caller
-- sees it by the count of changes.
INSERT INTO job ({columns}) VALUES {rows} ON CONFLICT (id) DO NOTHING

-- name: tickets
-- Take a run of tickets; the last one is returned.
UPDATE ticket SET last = last + ? WHERE one = 1 RETURNING last

-- name: stored
SELECT id, task FROM job WHERE id IN (SELECT value FROM json_each(?))

-- name: remembered
SELECT id, task FROM ledger WHERE id IN (SELECT value FROM json_each(?)) AND until > ?

-- name: remember
INSERT INTO ledger (id, until, task) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET until = excluded.until, task = excluded.task

-- name: key
SELECT owner, until, held FROM unique_key WHERE key = ?

-- name: keys
SELECT key, owner FROM unique_key
 WHERE key IN (SELECT value FROM json_each(?)) AND (held OR until > ?)

-- name: take_key
INSERT INTO unique_key (key, owner, until, held) VALUES (?, ?, ?, 1)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until, held = 1

-- name: loosen_key
UPDATE unique_key SET held = 0 WHERE key = ? AND owner = ?

-- name: drop_key
DELETE FROM unique_key WHERE key = ? AND held = 0 AND until <= ?

-- name: job
SELECT * FROM job WHERE id = ?

-- name: jobs
-- The ids come as one JSON array, so that the statement is prepared once for any number of them.
SELECT * FROM job WHERE id IN (SELECT value FROM json_each(?))

-- name: begin_attempt
UPDATE job SET started = 1 WHERE id = ? AND claim = ? AND worker = ? AND state = 'running'

-- name: succeed
-- The common end of an attempt, without reading the row first. Jobs with a unique key take the long
-- way, because they have a key to give back.
UPDATE job SET state = 'succeeded', result = ?, finished_at = ?, reason = NULL, cancel_reason = NULL,
               revision = revision + 1
 WHERE id = ? AND claim = ? AND worker = ? AND state = 'running' AND unique_key IS NULL

-- name: succeed_all
-- The same for many, as [[id, claim, result, entry], ...]: one step of SQLite, during which the
-- handlers of the process run on. A job whose entry is known is found by it: the index of the ids has
-- no order, so that in a long line each look would read another page. The signs keep it to that:
-- each job is looked for, instead of all that runs being compared with all that has ended.
UPDATE job SET state = 'succeeded', result = CAST(json_extract(done.value, '$[2]') AS BLOB),
               finished_at = :now, reason = NULL, cancel_reason = NULL, revision = revision + 1
  FROM json_each(:outcomes) AS done
 WHERE job.entry = coalesce(json_extract(done.value, '$[3]'),
                            (SELECT known.entry FROM job AS known
                              WHERE known.id = json_extract(done.value, '$[0]')))
   AND +job.id = json_extract(done.value, '$[0]') AND +job.claim = json_extract(done.value, '$[1]')
   AND +job.worker = :worker AND +job.state = 'running' AND job.unique_key IS NULL

-- name: save
-- Write back everything that can change in a job's life.
UPDATE job SET revision = revision + 1, state = ?, queue = ?, priority = ?,
               hold = ?, hold_cause = ?, hold_until = ?, line = ?, seq = ?, run_at = ?,
               expires_at = ?, claim = ?, attempt = ?, failures = ?, crashes = ?, rescues = ?, worker = ?,
               started = ?, cancel_reason = ?, claimed_at = ?, finished_at = ?, result = ?, reason = ?,
               progress = ?, note = ?, errors = ?, checkpoint = ?
 WHERE id = ?

-- name: sign
UPDATE job SET signed_claim = ?, signed_by = ? WHERE id = ?

-- name: signed
SELECT signed_claim, signed_by FROM job WHERE id = ?

-- name: head
-- The first jobs of one queue, by its own range of the claim index (law 9), which ends at the least
-- urgent priority wanted. Tasks to avoid, jobs that run at most once and those that have expired are
-- filtered while walking; all are rare. The columns are those that a job in line can have and that its
-- claim does not write, and the revision that it gives.
SELECT entry, id, task, payload, queue, priority, enqueued_at, enqueued_by, seq, run_at,
       expires_at, claim, attempt, failures, crashes, rescues, key, unique_key, unique_until, at_most_once,
       name, tags, correlation_id, reason, errors, revision + 1, keep, keep_failed, meta, checkpoint
  FROM job
 WHERE queue = :queue AND state = 'ready' AND hold IS NULL AND priority <= :least_urgent
   AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
   AND (:slots > 0 OR NOT at_most_once)
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority, seq LIMIT :want

-- name: chosen
-- The same of jobs that were chosen already.
SELECT entry, id, task, payload, queue, priority, enqueued_at, enqueued_by, seq, run_at,
       expires_at, claim, attempt, failures, crashes, rescues, key, unique_key, unique_until, at_most_once,
       name, tags, correlation_id, reason, errors, revision + 1, keep, keep_failed, meta, checkpoint
  FROM job WHERE entry IN (SELECT value FROM json_each(?))

-- name: head_of_many
-- What choosing needs of the first jobs, for a claim that goes to several queues.
SELECT entry, priority, at_most_once FROM job
 WHERE queue = :queue AND state = 'ready' AND hold IS NULL AND priority <= :least_urgent
   AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
   AND (:slots > 0 OR NOT at_most_once)
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority, seq LIMIT :want

-- name: is_blocked
-- Whether a job of an ordered queue was claimed before and waits again. One that has expired runs no
-- more and blocks no other, even before that is written down.
SELECT 1 FROM job INDEXED BY job_open
 WHERE queue = :queue AND claimed_at IS NOT NULL AND state IN ('scheduled', 'ready')
   AND (expires_at IS NULL OR expires_at > :now)
 LIMIT 1

-- name: next_open
-- The job of a blocked queue that runs next. Named by its index: the claim index has the right order
-- too, and all that waits behind. Several are open only if the queue was not ordered when they began;
-- among them no order is left to keep.
SELECT entry, priority, at_most_once FROM job INDEXED BY job_open
 WHERE queue = :queue AND claimed_at IS NOT NULL AND state IN ('scheduled', 'ready')
   AND state = 'ready' AND hold IS NULL AND priority <= :least_urgent
   AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
   AND (:slots > 0 OR NOT at_most_once)
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority, seq LIMIT 1

-- name: first_in_order
-- The job of an ordered queue that runs next if none is open, whether this worker could have it or not.
SELECT entry, priority, at_most_once FROM job
 WHERE queue = :queue AND state = 'ready' AND hold IS NULL
   AND (expires_at IS NULL OR expires_at > :now)
 ORDER BY priority, seq LIMIT 1

-- name: claim
-- Mark the chosen jobs, all of those that start or all that wait inside their worker.
UPDATE job SET state = 'running', claim = claim + 1, attempt = attempt + 1, worker = :worker, started = :started,
               claimed_at = :now, progress = NULL, note = NULL, revision = revision + 1
 WHERE entry IN (SELECT value FROM json_each(:entries))

-- name: running_in
SELECT count(*) FROM job WHERE state = 'running' AND queue = ?

-- name: could_have
-- Whether a worker could have this job, which has not expired.
SELECT 1 FROM job
 WHERE entry = :entry AND priority <= :least_urgent
   AND (:avoid = '[]' OR task NOT IN (SELECT value FROM json_each(:avoid)))
   AND (:slots > 0 OR NOT at_most_once)

-- name: held_by
SELECT * FROM job WHERE state = 'running' AND worker = ?

-- name: cancels
SELECT id FROM job WHERE state = 'running' AND worker = ? AND cancel_reason IS NOT NULL ORDER BY id

-- name: report
UPDATE job SET progress = ?, note = ?, checkpoint = coalesce(?, checkpoint)
 WHERE id = ? AND claim = ? AND worker = ? AND state = 'running'

-- name: next_due
SELECT min(at) FROM (
  SELECT min(run_at) AS at FROM job WHERE state = 'scheduled' AND queue = :queue
  UNION ALL
  SELECT min(hold_until) FROM job WHERE hold_until IS NOT NULL AND queue = :queue)

-- name: next_instant
-- When anything at all falls due or expires.
SELECT min(at) FROM (
  SELECT min(run_at) AS at FROM job WHERE state = 'scheduled'
  UNION ALL
  SELECT min(hold_until) FROM job WHERE hold_until IS NOT NULL
  UNION ALL
  SELECT min(expires_at) FROM job WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'ready'))

-- name: expired
SELECT * FROM job
 WHERE expires_at <= ? AND expires_at IS NOT NULL AND state IN ('scheduled', 'ready')
 ORDER BY expires_at, seq LIMIT ?

-- name: due
SELECT entry, queue, priority, key, run_at AS at, seq FROM job
 WHERE state = 'scheduled' AND run_at <= :now
 ORDER BY run_at, seq LIMIT :limit

-- name: hold_over
SELECT entry, queue, priority, key, hold_until AS at, seq FROM job
 WHERE hold_until IS NOT NULL AND hold_until <= :now
 ORDER BY hold_until, seq LIMIT :limit

-- name: promote
UPDATE job SET state = 'ready', seq = ?, line = ?, hold = NULL, hold_cause = NULL, hold_until = NULL,
               revision = revision + 1
 WHERE entry = ?

-- name: old
SELECT id FROM job
 WHERE finished_at IS NOT NULL AND finished_at + iif(state = 'failed', keep_failed, keep) < ?
 ORDER BY finished_at + iif(state = 'failed', keep_failed, keep), entry LIMIT ?

-- name: delete
DELETE FROM job WHERE id = ?

-- name: prune_ledger
DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE until <= ? ORDER BY until LIMIT ?)

-- name: prune_keys
DELETE FROM unique_key
 WHERE key IN (SELECT key FROM unique_key WHERE held = 0 AND until <= ? LIMIT ?)

-- name: unique_keys
-- A page of the unique keys in the order of their names, and which of them are still held for a job that
-- needs them no longer.
SELECT k.key, k.owner,
       k.held
       AND (job.id IS NULL
            OR job.state IN ('succeeded', 'failed', 'cancelled')
            OR (job.unique_until = 'start' AND job.state = 'running'))
  FROM unique_key k LEFT JOIN job ON job.id = k.owner AND job.unique_key = k.key
 WHERE k.key >= :after AND (:is_first OR k.key > :after)
 ORDER BY k.key LIMIT :limit

-- name: settings
SELECT name, settings FROM queue

-- name: set_queue
INSERT INTO queue (name, settings, moving) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, moving = excluded.moving

-- name: worker
SELECT 1 FROM worker WHERE id = ?

-- name: workers
SELECT id, beat, joined_at, info FROM worker ORDER BY joined_at, id

-- name: join
INSERT INTO worker (id, beat, joined_at, info) VALUES (?, 0, ?, ?)
ON CONFLICT (id) DO UPDATE SET info = excluded.info

-- name: leave
DELETE FROM worker WHERE id = ?

-- name: end_lease
DELETE FROM worker WHERE id = ? AND beat = ?

-- name: beat
UPDATE worker SET beat = beat + 1 WHERE id = ?

-- name: cell
SELECT value, version, until, ttl FROM cell WHERE name = ?

-- name: set_cell
INSERT INTO cell (name, value, version, until, ttl) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE
   SET value = excluded.value, version = excluded.version, until = excluded.until, ttl = excluded.ttl

-- name: cells
SELECT name, value, version, until, ttl FROM cell
 WHERE name >= :after AND (:is_first OR name > :after)
   AND substr(name, 1, length(:prefix)) = :prefix
   AND value IS NOT NULL AND (until IS NULL OR (until > :now AND until - :now <= ttl))
 ORDER BY name LIMIT :limit

-- name: prune_cells
DELETE FROM cell WHERE name IN (
  SELECT name FROM cell WHERE value IS NULL OR until <= :now OR until - :now > ttl LIMIT :limit)
