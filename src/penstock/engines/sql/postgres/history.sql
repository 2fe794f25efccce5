-- How a whole day leaves the history of a PostgreSQL store, `{day}` being its table. Each statement is a
-- transaction of its own: to detach while others go on needs two, and cannot run inside one.

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
