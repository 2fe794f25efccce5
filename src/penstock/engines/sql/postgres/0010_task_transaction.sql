-- How a job ends inside the transaction that its handler wrote in: the last statement before COMMIT.

-- Settle a success inside the fence; false: it is another attempt's by now, and the caller rolls back.
-- `mark_` is what the transaction was given when it began: one that is another transaction, because the
-- handler has ended the first, does not have it. `progress_` is null if the handler has told none.
CREATE FUNCTION penstock.succeed(
  id_ text, claim_ integer, worker_ text, result_ bytea, mark_ text, progress_ double precision DEFAULT NULL,
  note_ text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  now_ double precision := penstock.now();
  key_ text;
BEGIN
  IF mark_ IS DISTINCT FROM current_setting('penstock_effect.mark', true) THEN
    RAISE EXCEPTION USING ERRCODE = 'PS004', MESSAGE = 'the transaction is not the one that was begun';
  END IF;
  -- Held until the end: no leader ends the lease of a worker in the middle of its settlement.
  PERFORM FROM penstock.worker WHERE id = worker_ FOR KEY SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM penstock.note_changes(penstock.places(ARRAY[id_]));
  PERFORM penstock.make_day(now_ + (SELECT keep FROM penstock.live WHERE id = id_));
  WITH gone AS (
    DELETE FROM penstock.live AS job
     WHERE job.id = id_ AND job.claim = claim_ AND job.worker = worker_ AND job.state = 'running'
    RETURNING job.*), ended AS (
    INSERT INTO penstock.history
    SELECT entry, seq, priority, enqueued_at, run_at, expires_at, NULL, claimed_at, now_,
           coalesce(progress_, progress), keep,
           revision + 1, claim, attempt, failures, crashes, rescues, signed_claim, true, at_most_once, id, task, queue,
           'succeeded', worker, enqueued_by, NULL, NULL, key, unique_key, unique_until, name,
           correlation_id, signed_by, NULL, NULL, CASE WHEN progress_ IS NULL THEN note ELSE note_ END, tags, meta, errors,
           payload, result_, checkpoint, line, keep_failed
      FROM gone)
  SELECT coalesce(unique_key, '') INTO key_ FROM gone;
  IF key_ IS NULL THEN
    RETURN false;
  END IF;
  IF key_ <> '' THEN
    PERFORM penstock.give_back(ARRAY[key_], ARRAY[id_], now_);
  END IF;
  RETURN true;
END $$;

-- What became of a COMMIT whose answer was lost: true, it is there; false, nothing of it is; null, the
-- job is another attempt's by now. The row is locked first: as long as the transaction in question is
-- open its end is awaited, so that what is read is the last word.
CREATE FUNCTION penstock.has_succeeded(id_ text, claim_ integer, worker_ text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  PERFORM FROM penstock.live
    WHERE id = id_ AND claim = claim_ AND worker = worker_ AND state = 'running' FOR UPDATE;
  IF FOUND THEN
    RETURN false;
  END IF;
  IF EXISTS (SELECT FROM penstock.history
              WHERE id = id_ AND claim = claim_ AND worker = worker_ AND state = 'succeeded') THEN
    RETURN true;
  END IF;
  RETURN NULL;
END $$;
