-- What a checkup asks of a PostgreSQL server and of a store's tables. Nothing is changed, and nothing is
-- locked that others need.

-- name: server
SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
       pg_encoding_to_char(encoding)::text, current_database()::text, current_user::text,
       pg_is_in_recovery()
  FROM pg_database WHERE datname = current_database()

-- name: settings
-- As they are for every new connection of this role, not as this one has set them.
SELECT name, reset_val FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'default_transaction_isolation',
                'default_transaction_read_only', 'autovacuum', 'track_counts')

-- name: rights
-- What this role lacks to work here. It may use the days of the history through the history.
SELECT needed.name || ' on ' || this.relname FROM pg_class AS this
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed (name)
 WHERE this.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass)
   AND this.relname IN ('live', 'history', 'ledger', 'unique_key', 'queue', 'lane', 'spot', 'worker', 'lowered',
                        'cell', 'sleeper')
   AND NOT has_table_privilege(this.oid, needed.name)
UNION ALL
SELECT 'EXECUTE on ' || this.proname FROM pg_proc AS this
 WHERE this.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass)
   AND this.proname IN ('now', 'put', 'put_json', 'contested', 'exchange', 'promote', 'expire', 'look',
                        'wake', 'doze', 'make_day', 'make_days', 'days', 'prune_day')
   AND NOT has_function_privilege(this.oid, 'EXECUTE')

-- name: owner
SELECT pg_get_userbyid(relowner)::text, pg_has_role(relowner, 'USAGE') FROM pg_class
 WHERE oid = 'penstock.history'::regclass

-- name: connections
-- How many there are, and how many there may be, for the server, this database and this role.
SELECT 'the server'::text, count(*) FILTER (WHERE backend_type = 'client backend'),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
  FROM pg_stat_activity
UNION ALL
SELECT 'database ' || datname, (SELECT numbackends FROM pg_stat_database WHERE datid = pg_database.oid),
       datconnlimit
  FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0
UNION ALL
SELECT 'role ' || rolname, (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user), rolconnlimit
  FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0

-- name: vacuum
SELECT this.relname::text, coalesce(seen.n_live_tup, 0), coalesce(seen.n_dead_tup, 0),
       extract(epoch FROM clock_timestamp() - greatest(seen.last_autovacuum, seen.last_vacuum))::double precision,
       coalesce('autovacuum_enabled=false' = ANY (this.reloptions), false)
         OR coalesce('autovacuum_enabled=off' = ANY (this.reloptions), false),
       pg_relation_size(this.oid), pg_indexes_size(this.oid)
  FROM pg_class AS this LEFT JOIN pg_stat_user_tables AS seen ON seen.relid = this.oid
 WHERE this.oid IN ('penstock.live'::regclass, 'penstock.worker'::regclass, 'penstock.sleeper'::regclass,
                    'penstock.ledger'::regclass, 'penstock.unique_key'::regclass)
 ORDER BY 1

-- name: transactions
-- Who still sees rows that others have deleted, the oldest first: for them nothing is cleared away.
SELECT who, since, what FROM (
  SELECT format('process %s of %s%s', pid, coalesce(usename, 'no role'),
                coalesce(nullif(format(' (%s)', application_name), ' ()'), '')) AS who,
         extract(epoch FROM clock_timestamp() - xact_start)::double precision AS since,
         coalesce(state || ': ' || left(regexp_replace(query, '\s+', ' ', 'g'), 60), '') AS what
    FROM pg_stat_activity
   WHERE datname = current_database() AND pid <> pg_backend_pid()
     AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
     AND backend_type IN ('client backend', 'background worker')
  UNION ALL
  SELECT format('prepared transaction %L of %s', gid, owner),
         extract(epoch FROM clock_timestamp() - prepared)::double precision, 'PREPARE TRANSACTION'
    FROM pg_prepared_xacts WHERE database = current_database()
) AS each WHERE since IS NOT NULL ORDER BY since DESC

-- name: hidden
-- Whether others' transactions are shown to this role.
SELECT pg_has_role('pg_read_all_stats', 'USAGE')

-- name: slots
-- Standbys that hold back what may be cleared away, by how many transactions.
SELECT format('replication slot %L%s', slot_name, CASE WHEN active THEN '' ELSE ', which is not in use' END),
       age(xmin)::bigint, format('SELECT pg_drop_replication_slot(%L)', slot_name)
  FROM pg_replication_slots WHERE xmin IS NOT NULL
UNION ALL
SELECT format('standby %L', application_name), age(backend_xmin)::bigint, NULL FROM pg_stat_replication
 WHERE backend_xmin IS NOT NULL AND pid NOT IN (SELECT active_pid FROM pg_replication_slots
                                                 WHERE active_pid IS NOT NULL)

-- name: indexes
-- All that are there, with what is wrong with them; those of the days are parts of the history's.
SELECT this.relname::text, its.indisvalid AND its.indisready, its.indisprimary, owner.relname::text
  FROM pg_index AS its JOIN pg_class AS this ON this.oid = its.indexrelid
  JOIN pg_class AS owner ON owner.oid = its.indrelid
 WHERE owner.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass)

-- name: ahead
-- For how many days from today on, without a gap, there is a table for the jobs that end then and are kept for as
-- long as usual (see `make_days`); and those that did not leave yet.
SELECT (SELECT count(*) FROM generate_series(0, 30) AS n WHERE NOT EXISTS (
          SELECT FROM generate_series(0, n) AS m WHERE NOT EXISTS (
            SELECT FROM penstock.days() AS day
             WHERE day.place = 'in' AND day.begins_at <= penstock.now() + 604800 + m * 86400
               AND day.ends_at > penstock.now() + 604800 + m * 86400))),
       (SELECT string_agg(name, ', ' ORDER BY name) FROM penstock.days() WHERE place <> 'in')

-- name: amcheck
-- Where the extension is, and whether this role may use it.
SELECT format('%I', (SELECT nspname FROM pg_namespace WHERE oid = pg_proc.pronamespace)),
       has_function_privilege(pg_proc.oid, 'EXECUTE')
  FROM pg_proc JOIN pg_depend ON pg_depend.objid = pg_proc.oid AND deptype = 'e'
  JOIN pg_extension ON pg_extension.oid = refobjid AND extname = 'amcheck'
 WHERE proname = 'bt_index_check' AND pronargs = 2

-- name: trees
SELECT this.oid::regclass::text, this.oid::bigint FROM pg_class AS this JOIN pg_am ON pg_am.oid = this.relam
 WHERE this.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.live'::regclass)
   AND this.relkind = 'i' AND amname = 'btree'
 ORDER BY 1

-- name: verify
-- Every row of the table has to be in the index, and every entry in its place.
SELECT {amcheck}.bt_index_check(%s::oid::regclass, true)

-- name: by_table
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off

-- name: by_index
SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on; SET LOCAL enable_seqscan = off

-- name: recount
-- Asked twice on one snapshot: the table alone and the indexes alone have to say the same.
SELECT (SELECT count(*) FROM penstock.live WHERE id >= ''),
       (SELECT count(*) FROM penstock.live WHERE state = 'ready' AND hold IS NULL AND queue >= ''),
       (SELECT count(*) FROM penstock.live WHERE state = 'scheduled' AND run_at > '-infinity')
