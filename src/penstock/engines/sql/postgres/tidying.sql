-- How dead rows of a PostgreSQL store are cleared away by whoever leads.

-- name: dead
-- What the server has counted, and whether this role may clear it away.
SELECT pg_stat_get_dead_tuples(oid), pg_stat_get_live_tuples(oid), pg_has_role(relowner, 'MEMBER')
  FROM pg_class WHERE oid = 'penstock.live'::regclass

-- name: limit
-- Whoever is at it already is left alone: an autovacuum that is waited for longer gives up.
SET lock_timeout = '100ms'; SET statement_timeout = '30s'

-- name: vacuum
-- The files stay as large as they are: to cut them would lock everybody out for a moment.
VACUUM (TRUNCATE false, PARALLEL 0) penstock.live, penstock.claim
