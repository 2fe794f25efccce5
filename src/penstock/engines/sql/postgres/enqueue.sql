-- How jobs enter a PostgreSQL store: what is sent by the engine's pool, by blocking callers and on a caller's own
-- connection.

-- name: put
-- Values are texts, so that one statement serves all batches whatever is in them.
SELECT * FROM penstock.put($1::text, $2::text, $3::boolean, $4::text, $5::text, $6::text, $7::text, $8::text,
  $9::text, $10::text, $11::text, $12::text, $13::text, $14::text, $15::text, $16::text, $17::text, $18::text,
  $19::text, $20::text, $21::text, $22::text, $23::text, $24::double precision, $25::boolean, true)

-- name: contested
SELECT penstock.contested(%s::text, %s::text, %s::text)

-- name: wake
-- After a blocking caller's commit.
SELECT penstock.wake('work')

-- name: put_for_caller
-- On a connection of the caller, in its transaction. One value on every driver, so that all that differs is how
-- it is marked.
SELECT number, owner, because, task FROM penstock.put_json(:drafts)
