-- What is asked before a store is there, or up to date.

-- name: find_store
-- From the catalogue itself: names are looked up in a cache, which knows nothing of tables that another
-- session has made while this one waited for the lock.
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
       coalesce(bool_or(relname = 'migration'), false), coalesce(bool_or(relname = 'live'), false)
  FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS home ON home.oid = relnamespace
 WHERE nspname = %s AND relname IN ('migration', 'live')

-- name: is_empty
-- Nothing of others may be in the schema: rights that we give and take there are for all that is in it.
SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_namespace AS home WHERE nspname = %s AND (
  EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = home.oid)
  OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = home.oid)))

-- name: version
SELECT coalesce(max(version), 0) FROM penstock.migration

-- name: lock_migration
SELECT pg_advisory_xact_lock(hashtext(%s), 1)

-- name: make_days
SELECT penstock.make_days(%s::integer)
