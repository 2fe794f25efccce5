-- How jobs enter a PostgreSQL store: what is sent by the engine's pool, by blocking callers and on a caller's own
-- connection.

-- name: put_plain
-- Plain jobs of one kind; values are texts.
SELECT penstock.put_plain($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text,
                          $7::double precision)

-- name: wake
-- After a blocking caller's commit.
SELECT penstock.wake('work', $1::text)

-- name: put
-- Any other jobs, as JSON.
SELECT * FROM penstock.put(%s)

-- name: put_for_caller
-- On a connection of the caller, in its transaction. One value on every driver, so that all that differs is how
-- it is marked. The second argument says that no wake-up of ours comes after the commit: it goes with it.
SELECT id, created, because FROM penstock.put(:drafts, true)
