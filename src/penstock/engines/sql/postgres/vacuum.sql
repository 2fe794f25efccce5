-- How dead rows are cleared away. No vacuum can run inside a transaction: each statement is one of its own.

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
VACUUM (TRUNCATE false, PARALLEL 0) penstock.live

-- name: counted
-- Before PostgreSQL 15 the server has counted a moment later.
SELECT pg_sleep(CASE WHEN current_setting('server_version_num')::integer < 150000 THEN 1 ELSE 0 END)
