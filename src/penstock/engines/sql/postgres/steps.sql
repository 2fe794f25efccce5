-- What the steps of the PostgreSQL engine write, beside the functions. Every step is one transaction at
-- READ COMMITTED, so a statement sees what the one before it did, and what others committed meanwhile;
-- what a step decides about is locked first.

-- name: exchange
-- Values are texts, so that one statement serves all exchanges whatever is in them.
SELECT * FROM penstock.exchange($1, $2, $3, $4, $5, $6, $7, $8::text[], $9, $10, $11::text[], $12,
  $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19, $20, $21::bigint[],
  $22)

-- name: beat
-- It brings the worker its orders: one statement, so that a worker need not ask for them.
WITH beaten AS (UPDATE penstock.worker SET beat = beat + 1 WHERE id = %s::text RETURNING 1)
SELECT penstock.now(), cell.value, coalesce(cell.version, 0), cell.until, cell.ttl
  FROM beaten LEFT JOIN penstock.cell AS cell ON cell.name = %s::text

-- name: lock
-- The live jobs of an exchange, in the order of all steps. What another transaction has just now is skipped.
SELECT * FROM penstock.live WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE SKIP LOCKED

-- name: lock_patiently
-- The same, waiting a moment for the others.
SELECT * FROM penstock.live WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE

-- name: lock_tasks
-- Which tasks are known, and which jobs wait for one: one step decides about either at a time.
SELECT pg_advisory_xact_lock(hashtext('penstock.tasks'), 0)

-- name: lock_ended
SELECT * FROM penstock.history WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE

-- name: remembered
SELECT 1 FROM penstock.ledger WHERE id = %s::text AND until > %s::double precision

-- name: remember
INSERT INTO penstock.ledger (id, until, task) VALUES (%s::text, %s::double precision, %s::text)
ON CONFLICT (id) DO UPDATE SET until = excluded.until, task = excluded.task

-- name: adopt
-- Another transaction may be about to store the same id: then nothing is stored.
WITH adopted AS (
  INSERT INTO penstock.live SELECT (json_populate_record(NULL::penstock.live, %s::json)).* ON CONFLICT DO NOTHING
  RETURNING *
), noted AS (
  INSERT INTO penstock.note (queue, priority, key, seq)
  SELECT queue, priority, line, seq FROM adopted WHERE line IS NOT NULL AND state = 'ready' AND hold IS NULL)
SELECT 1 FROM adopted

-- name: ended
SELECT * FROM penstock.history WHERE id = ANY(%s::text[])

-- name: is_live
SELECT id FROM penstock.live WHERE id = ANY(%s::text[])

-- name: begin_attempts
-- One that another transaction has just now keeps no outcome waiting.
UPDATE penstock.live SET started = true WHERE id = ANY (ARRAY(
  SELECT job.id FROM unnest(%s::text[], %s::integer[]) AS begun (id, claim)
    JOIN penstock.live AS job ON job.id = begun.id AND job.claim = begun.claim
   WHERE job.worker = %s::text AND job.state = 'running' AND NOT job.started
     FOR UPDATE OF job SKIP LOCKED))

-- name: save_all
SELECT penstock.save_all(%s::json)

-- name: end_all
SELECT penstock.end_all(%s::json)

-- name: revive_all
-- The ids of those that were still there.
SELECT penstock.revive_all(%s::json, %s::double precision[])

-- name: lower
INSERT INTO penstock.lowered (queue) SELECT DISTINCT queue FROM unnest(%s::text[]) AS mine (queue)

-- name: ticket
-- A transaction that has a number is waited for before a queue counts as moved (`penstock.move_jobs`).
SELECT nextval('penstock.ticket'), pg_current_xact_id()::text

-- name: report
SELECT penstock.report(%s::text, %s::json)

-- name: keep_key
SELECT * FROM penstock.keep_key(%s::text, %s::text, %s::double precision)

-- name: give_back
SELECT penstock.give_back(%s::text[], %s::text[], %s::double precision)

-- name: any_plan
-- What a person asks for may be all there is.
SET LOCAL enable_seqscan = on

-- name: purgeable
-- Newest first, as find goes, and never what runs.
WITH waiting AS (
  SELECT entry, id, unique_key FROM penstock.live
   WHERE entry < %(before)s::bigint AND state <> 'running' AND {live}
   ORDER BY entry DESC LIMIT %(limit)s::bigint FOR UPDATE
), ended AS (
  SELECT entry, id, unique_key FROM penstock.history
   WHERE entry < %(before)s::bigint AND {history}
   ORDER BY entry DESC LIMIT %(limit)s::bigint FOR UPDATE
)
SELECT * FROM waiting UNION ALL SELECT * FROM ended ORDER BY 1 DESC LIMIT %(limit)s::bigint

-- name: delete
WITH gone AS (
  DELETE FROM penstock.live WHERE id = ANY(%s::text[]) AND state <> 'running' RETURNING queue, priority, line)
INSERT INTO penstock.note (queue, priority, key)
SELECT DISTINCT queue, priority, line FROM gone WHERE line IS NOT NULL

-- name: delete_ended
DELETE FROM penstock.history WHERE id = ANY(%s::text[])

-- name: lock_queue
-- A claimer that counts or places in this queue now ends first.
SELECT pg_advisory_xact_lock(hashtext('penstock.queue'), hashtext(%s::text))

-- name: set_queue
-- Only the decision is written: later claims give ready jobs their lines, where keys take turns.
INSERT INTO penstock.queue AS queue (name, settings, paused, most, ordered, keyed, per_key, weights, moved_to)
VALUES (%s::text, %s::text, %s, %s::bigint, %s, %s, %s::bigint, %s::json,
        ARRAY[-9223372036854775808, -9223372036854775808])
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, paused = excluded.paused,
   most = excluded.most, ordered = excluded.ordered, keyed = excluded.keyed, per_key = excluded.per_key,
   weights = excluded.weights,
   (moved_to, notes_all, known_from, moves_all) = (
     SELECT CASE WHEN is_new THEN excluded.moved_to ELSE queue.moved_to END, is_new OR queue.notes_all,
            CASE WHEN NOT is_new THEN queue.known_from END, CASE WHEN NOT is_new THEN queue.moves_all END
       FROM (SELECT (queue.keyed, queue.per_key) IS DISTINCT FROM (excluded.keyed, excluded.per_key)) AS each (is_new))

-- name: promote
SELECT penstock.expire(%(now)s::double precision, %(limit)s::bigint),
       penstock.promote(%(now)s::double precision, %(limit)s::bigint)

-- name: next_instant
-- When anything at all falls due or expires, each by its own index; and what time it is.
SELECT min(at), penstock.now() FROM (
  (SELECT run_at AS at FROM penstock.live WHERE state = 'scheduled' ORDER BY run_at LIMIT 1)
  UNION ALL
  (SELECT hold_until FROM penstock.live WHERE hold_until IS NOT NULL ORDER BY hold_until LIMIT 1)
  UNION ALL
  (SELECT expires_at FROM penstock.live WHERE expires_at IS NOT NULL AND state <> 'running'
    ORDER BY expires_at LIMIT 1)
) AS next

-- name: end_lease
-- One that is in the middle of an exchange is not dead.
DELETE FROM penstock.worker WHERE id = %s::text AND beat = %s::bigint
   AND pg_try_advisory_xact_lock(hashtext('penstock.worker'), hashtext(id))

-- name: make_day
SELECT penstock.make_day(%s::double precision)

-- name: make_days
SELECT penstock.make_days(%s::integer)

-- name: days
SELECT * FROM penstock.days()

-- name: prune_day
SELECT penstock.prune_day(%s::double precision, %s::double precision, %s::bigint)

-- name: ended_within
-- Whether anything is left in a day: one that is locked was not pruned.
SELECT 1 FROM penstock.history
 WHERE finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END >= %s::double precision
   AND finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END < %s::double precision LIMIT 1

-- name: prune_ledger
DELETE FROM penstock.ledger WHERE id = ANY (ARRAY(
  SELECT id FROM penstock.ledger WHERE until <= %s::double precision ORDER BY until LIMIT %s::bigint
     FOR UPDATE SKIP LOCKED))

-- name: prune_keys
DELETE FROM penstock.unique_key WHERE key = ANY (ARRAY(
  SELECT key FROM penstock.unique_key WHERE NOT held AND until <= %s::double precision
   ORDER BY until LIMIT %s::bigint FOR UPDATE SKIP LOCKED))

-- name: prune_lines
SELECT penstock.prune_lines(%s::bigint)

-- name: prune_lowered
-- A claimer sweeps more often than that. The rest of very many waits for the next round.
DELETE FROM penstock.lowered WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM penstock.lowered WHERE at < extract(epoch FROM clock_timestamp()) - 60 LIMIT 2000))

-- name: prune_sleepers
DELETE FROM penstock.sleeper WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM penstock.sleeper WHERE until < extract(epoch FROM clock_timestamp()) - 60 LIMIT 2000))

-- name: savepoint
SAVEPOINT rehearsal

-- name: undo
ROLLBACK TO SAVEPOINT rehearsal

-- name: keep
RELEASE SAVEPOINT rehearsal

-- name: lost_lines
SELECT * FROM penstock.note_lost_lines(%s::bigint, %s::text, %s::bigint, %s::text)

-- name: held_keys
-- Some keys in the order of their names, and whether a job still needs each.
SELECT mine.key, mine.owner, EXISTS (
   SELECT FROM penstock.live AS job
    WHERE job.id = mine.owner AND job.unique_key = mine.key
      AND NOT (job.unique_until IS NOT NULL AND job.state = 'running'))
  FROM penstock.unique_key AS mine
 WHERE mine.held AND (%s::text IS NULL OR mine.key > %s::text)
 ORDER BY mine.key LIMIT %s::bigint FOR UPDATE SKIP LOCKED

-- name: lock_lease
-- Held until the end: no leader ends the lease of a worker in the middle of its exchange.
SELECT 1 FROM penstock.worker WHERE id = %s::text FOR KEY SHARE

-- name: join
INSERT INTO penstock.worker (id, beat, joined_at, info)
VALUES (%s::text, 0, %s::double precision, %s::text)
ON CONFLICT (id) DO UPDATE SET info = excluded.info

-- name: leave
DELETE FROM penstock.worker WHERE id = %s::text

-- name: new_cell
-- A version is a ticket: it never starts again. What is given is what the difference of the instants is, as they
-- are rounded: a reader finds the value over if more is left than was given.
INSERT INTO penstock.cell AS cell (name, value, version, until, ttl)
SELECT %(name)s::text, %(value)s::bytea, nextval('penstock.ticket'),
       penstock.now() + %(ttl)s::double precision,
       penstock.now() + %(ttl)s::double precision - penstock.now()
 WHERE NOT EXISTS (SELECT FROM penstock.cell WHERE name = %(name)s::text)
ON CONFLICT (name) DO NOTHING
RETURNING penstock.now(), cell.value, cell.version, cell.until, cell.ttl

-- name: set_cell
UPDATE penstock.cell AS cell
   SET value = %(value)s::bytea, version = nextval('penstock.ticket'),
       until = penstock.now() + %(ttl)s::double precision,
       ttl = penstock.now() + %(ttl)s::double precision - penstock.now()
 WHERE cell.name = %(name)s::text AND cell.version = %(version)s::bigint
RETURNING penstock.now(), cell.value, cell.version, cell.until, cell.ttl

-- name: prune_cells
DELETE FROM penstock.cell WHERE name = ANY (ARRAY(
  SELECT name FROM penstock.cell
   WHERE value IS NULL OR until <= penstock.now() OR until - penstock.now() > ttl LIMIT %s::bigint))
