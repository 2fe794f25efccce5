-- What Penstock says on a connection beside its steps.

-- name: identify
-- Which process serves this connection, since when, and how its transactions are isolated.
SELECT pid, extract(epoch FROM backend_start)::text, current_setting('default_transaction_isolation')
  FROM pg_stat_get_activity(pg_backend_pid())

-- name: end_backends
-- End other connections, each told from a later one with the same pid; false: one of them goes on.
SELECT coalesce(bool_and(pg_terminate_backend(pid, 2000)), true) FROM pg_stat_activity
 WHERE (pid, extract(epoch FROM backend_start)::text) IN (SELECT * FROM unnest(%s::integer[], %s::text[]))

-- name: begin_write
-- A row that another transaction has is waited for briefly: then it is skipped, or the whole is repeated.
-- By index, whatever the statistics say; what has no index is dear then, and not worth being compiled.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '100ms';
SET LOCAL enable_seqscan = off; SET LOCAL jit = off

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: begin_seek
-- For a few jobs among many; to count all of them, a plan may read a whole table.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = off; SET LOCAL jit = off

-- name: now
SELECT penstock.now()

-- name: doze
SELECT penstock.doze(%s::text, %s::text, %s::double precision)

-- name: snapshot
-- Another one after every commit.
SELECT pg_current_snapshot()::text

-- name: notify
SELECT pg_notify('penstock.wake', %s::text)
