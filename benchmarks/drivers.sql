-- What a driver is measured on: the tables of the PostgreSQL engine, and its two kinds of call in their
-- plainest shape. Placeholders are the server's own, which both drivers can send as they are.

-- name: make_turn
-- Settle a batch into history and claim the next one, in one call. Rows are found by their place and
-- checked, so that no plan matters.
CREATE FUNCTION penstock.measured_turn(places_ text[], ids_ text[], worker_ text, want_ bigint)
RETURNS TABLE (place text, id text, task text, queue text, payload bytea, attempt integer, priority bigint,
               enqueued_at double precision) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  places tid[] := places_::tid[];
BEGIN
  WITH gone AS (
    DELETE FROM penstock.live AS job
     WHERE ctid = ANY(places) AND id = ANY(ids_) AND worker = worker_ RETURNING job.*)
  INSERT INTO penstock.history (entry, seq, priority, enqueued_at, claimed_at, finished_at, attempt, id,
                                task, queue, state, worker, payload)
  SELECT entry, seq, priority, enqueued_at, claimed_at, extract(epoch FROM clock_timestamp()), attempt,
         id, task, queue, 'succeeded', worker, payload FROM gone;
  places := ARRAY(SELECT ctid FROM penstock.live WHERE queue = 'default' AND state = 'ready' AND hold IS NULL
                   ORDER BY queue, priority, place, seq LIMIT want_ FOR UPDATE SKIP LOCKED);
  RETURN QUERY
  UPDATE penstock.live AS job
     SET state = 'running', attempt = job.attempt + 1, worker = worker_,
         claimed_at = extract(epoch FROM clock_timestamp())
   WHERE ctid = ANY(places)
  RETURNING job.ctid::text, job.id, job.task, job.queue, job.payload, job.attempt, job.priority,
            job.enqueued_at;
END $$

-- name: make_day
CREATE TABLE penstock.history_measured PARTITION OF penstock.history FOR VALUES FROM (0) TO (1e12)

-- name: turn
SELECT * FROM penstock.measured_turn($1::text[], $2::text[], $3::text, $4::bigint)

-- name: turn_text
SELECT * FROM penstock.measured_turn(string_to_array($1::text, E'\n'), string_to_array($2::text, E'\n'),
                                     $3::text, $4::bigint)

-- name: insert
-- Many jobs as one array per column.
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT ticket, ticket, 100, 1e9, new.id, new.task, 'default', 'ready', new.payload
  FROM (SELECT nextval('penstock.ticket') AS ticket, job.*
          FROM unnest($1::text[], $2::text[], $3::bytea[]) AS job (id, task, payload)) AS new

-- name: insert_text
-- Many jobs as one text per column, which the server takes apart.
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT ticket, ticket, 100, 1e9, new.id, new.task, 'default', 'ready', convert_to(new.payload, 'UTF8')
  FROM (SELECT nextval('penstock.ticket') AS ticket, job.*
          FROM unnest(string_to_array($1::text, E'\n'), string_to_array($2::text, E'\n'),
                      string_to_array($3::text, E'\n')) AS job (id, task, payload)) AS new

-- name: insert_one
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT ticket, ticket, 100, 1e9, $1::text, $2::text, 'default', 'ready', $3::bytea
  FROM nextval('penstock.ticket') AS ticket

-- name: nothing
SELECT 1
