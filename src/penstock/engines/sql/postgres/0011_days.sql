-- The days of the history, on which jobs may be forgotten (UTC): made before they come, listed, and emptied. What takes a whole day out
-- cannot run inside a function: see `history.sql`.

-- Make the day of an instant. The partition is made beside the table and then attached: to create it in
-- its place would lock out all who read or settle. A table that a person has taken out of the
-- history keeps its name and its rows. One that was to leave and has not left yet is in the way of a clock
-- that was set back: it leaves first. The catalogue is read with a snapshot: what `to_regclass` says may
-- be older than the lock.
CREATE FUNCTION penstock.make_day(at_ double precision) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  day_     bigint := floor(at_ / 86400);
  name_    text   := 'history_' || to_char(to_timestamp(day_ * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
  names_   text[] := ARRAY[name_, name_ || '_2', name_ || '_3', name_ || '_4'];
  leaving_ text;
  is_there boolean;
BEGIN
  FOR try_ IN 1..2 LOOP
    SELECT bool_or(relispartition AND NOT inhdetachpending), min(relname) FILTER (WHERE inhdetachpending)
      INTO is_there, leaving_
      FROM pg_class LEFT JOIN pg_inherits ON inhrelid = pg_class.oid
     WHERE relname = ANY (names_) AND relkind = 'r'
       AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.history'::regclass);
    IF is_there THEN
      RETURN false;
    END IF;
    IF try_ = 1 THEN
      PERFORM pg_advisory_xact_lock(hashtext('penstock.history'), 0);
    END IF;
  END LOOP;
  IF leaving_ IS NOT NULL THEN
    BEGIN
      EXECUTE format('ALTER TABLE penstock.history DETACH PARTITION penstock.%I FINALIZE', leaving_);
    EXCEPTION WHEN undefined_table OR object_not_in_prerequisite_state THEN
      NULL;  -- the session that began it has just brought it to its end
    END;
  END IF;
  SELECT name INTO name_ FROM unnest(names_) WITH ORDINALITY AS free (name, nth)
   WHERE NOT EXISTS (SELECT FROM pg_class WHERE relname = name AND relnamespace = (
     SELECT relnamespace FROM pg_class WHERE oid = 'penstock.history'::regclass))
   ORDER BY nth LIMIT 1;
  EXECUTE format('CREATE TABLE penstock.%I (LIKE penstock.history INCLUDING ALL)', name_);
  EXECUTE format('ALTER TABLE penstock.history ATTACH PARTITION penstock.%I FOR VALUES FROM (%s) TO (%s)',
                 name_, day_ * 86400, (day_ + 1) * 86400);
  RETURN true;
END $$;

-- Make the days on which jobs that end today or on one of the next days may be forgotten, if they are kept for as
-- long as usual, so that none is missing at midnight. Those of other jobs are made when they are missed.
CREATE FUNCTION penstock.make_days(days_ integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  made_ integer := 0;
BEGIN
  FOR offset_ IN -1..days_ LOOP
    IF penstock.make_day(penstock.now() + 604800 + offset_ * 86400.0) THEN
      made_ := made_ + 1;
    END IF;
  END LOOP;
  RETURN made_;
END $$;

-- The days there are, the oldest first, from `begins_at` until before `ends_at`. `jobs` is what the
-- statistics guess; null: nothing was gathered yet. `place` is 'in' the history, 'leaving' it if that was
-- not brought to its end, or 'out' if only the table is left; one that a person took out is not ours. To
-- ask for a size waits for who drops that day just now; then it has none, and is not listed: its edges
-- cannot be read any more, and without them it would look as if it held all days.
CREATE FUNCTION penstock.days()
RETURNS TABLE (name text, begins_at double precision, ends_at double precision, bytes bigint, jobs bigint,
               place text, is_ours boolean) LANGUAGE sql STABLE SET lock_timeout = '5s' AS $$
  SELECT * FROM (
    SELECT quote_ident(day.relname), coalesce(bound.begins_at, '-infinity'), coalesce(bound.ends_at, 'infinity'),
           pg_relation_size(day.oid) AS bytes, CASE WHEN day.reltuples >= 0 THEN day.reltuples::bigint END,
           CASE WHEN part.inhdetachpending THEN 'leaving' WHEN part.inhrelid IS NULL THEN 'out' ELSE 'in' END,
           pg_has_role(day.relowner, 'USAGE') AND pg_has_role(history.relowner, 'USAGE')
      FROM pg_class AS history
      JOIN pg_class AS day ON day.relnamespace = history.relnamespace AND day.relkind = 'r'
      LEFT JOIN pg_inherits AS part ON part.inhrelid = day.oid AND part.inhparent = history.oid
     CROSS JOIN LATERAL (
       SELECT substring(edges FROM 'FROM \(''([^'']+)''\)')::double precision,
              substring(edges FROM 'TO \(''([^'']+)''\)')::double precision
         FROM pg_get_expr(day.relpartbound, day.oid) AS edges) AS bound (begins_at, ends_at)
     WHERE history.oid = 'penstock.history'::regclass
       AND (part.inhrelid IS NOT NULL OR obj_description(day.oid, 'pg_class') = 'penstock: pruned')) AS days
   WHERE bytes IS NOT NULL
   ORDER BY 2
$$;

-- Delete some jobs of one day that may be forgotten from this range on: found by its index, deleted by
-- their place. What is being revived just now is skipped. Planned anew for each range, so that no other
-- day is touched, nor locked; the range stands in both statements for that alone.
CREATE FUNCTION penstock.prune_day(from_ double precision, to_ double precision, limit_ bigint)
RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan SET jit = off SET enable_seqscan = off SET enable_indexscan = off
SET enable_bitmapscan = on SET lock_timeout = '5s' AS $$
DECLARE
  tids_ tid[];
  rows_ bigint;
BEGIN
  SELECT array_agg(old.tid) INTO tids_ FROM (
    SELECT ctid AS tid FROM penstock.history
     WHERE finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END >= from_
       AND finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END < to_
     LIMIT limit_ FOR UPDATE SKIP LOCKED) AS old;
  SET LOCAL enable_bitmapscan = off;
  DELETE FROM penstock.history
   WHERE finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END >= from_
     AND finished_at + CASE state WHEN 'failed' THEN keep_failed ELSE keep END < to_ AND ctid = ANY (tids_);
  GET DIAGNOSTICS rows_ = ROW_COUNT;
  RETURN rows_;
END $$;
