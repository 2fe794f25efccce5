-- What surrounds a handler that writes in the transaction of its job. Values go into the text, so that several
-- statements are one round trip.

-- name: reset
-- Remove what the attempt before has left in the session.
RESET SESSION AUTHORIZATION; RESET ALL; UNLISTEN *; CLOSE ALL; DEALLOCATE ALL; DISCARD SEQUENCES; DISCARD TEMP;
SELECT pg_catalog.pg_advisory_unlock_all()

-- name: limits
-- In milliseconds; 0 is none.
SELECT (1000 * extract(epoch FROM current_setting('statement_timeout')::interval))::bigint,
       (1000 * extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval))::bigint

-- name: begin
SET LOCAL statement_timeout = {statement};
SET LOCAL idle_in_transaction_session_timeout = {idle};
SET LOCAL penstock_effect.mark = '{mark}'

-- name: succeed
-- The handler may have taken a role that must not settle anything.
RESET ROLE; SELECT penstock.succeed(%s, %s, %s, %s, %s, %s, %s)

-- name: has_succeeded
SELECT penstock.has_succeeded(%s, %s, %s)
