-- How a whole day leaves the history of a PostgreSQL store, `{day}` being its table, and how dead rows are
-- cleared away. Each statement is a transaction of its own: to detach while others go on needs two, and neither
-- that nor a vacuum can run inside one.

-- name: patience
-- So long a lock is waited for, and all of those that a day needs: a store has many readers.
SET lock_timeout = '2s'; SET statement_timeout = '30s'

-- name: alone
-- Two leaders do not work on the same day. The lock ends with the connection.
SELECT pg_try_advisory_lock(hashtext('penstock.history'), 1)

-- name: alone_here
SELECT pg_try_advisory_xact_lock(hashtext('penstock.history'), 1)

-- name: count
SELECT count(*) FROM penstock.{day}

-- name: mark
-- What is not finished is known by this, and told from what a person took out.
COMMENT ON TABLE penstock.{day} IS 'penstock: pruned'

-- name: detach
-- Locks no one out: it waits until all transactions have ended that may still read the day. If one takes too
-- long, the day is out of sight already, and leaves another time.
ALTER TABLE penstock.history DETACH PARTITION penstock.{day} CONCURRENTLY

-- name: finish
ALTER TABLE penstock.history DETACH PARTITION penstock.{day} FINALIZE

-- name: drop
DROP TABLE IF EXISTS penstock.{day}

-- name: dead
-- What the server has counted, and whether this role may clear it away.
SELECT pg_stat_get_dead_tuples(oid), pg_stat_get_live_tuples(oid), pg_has_role(relowner, 'USAGE')
  FROM pg_class WHERE oid = 'penstock.live'::regclass

-- name: limits
-- A vacuum that is at it already is left alone: an autovacuum that is waited for longer gives up. And a
-- session that wants to change the table waits for us, and all others for it: what takes longer is for autovacuum,
-- which gives way.
SET lock_timeout = '100ms'; SET statement_timeout = '5s'

-- name: vacuum
-- The files stay as large as they are: to cut them would lock all others out for a moment.
VACUUM (TRUNCATE false, PARALLEL 0) penstock.live, penstock.claim

-- name: counted
-- Before PostgreSQL 15 the server has counted a moment later.
SELECT pg_sleep(CASE WHEN current_setting('server_version_num')::integer < 150000 THEN 1 ELSE 0 END)
