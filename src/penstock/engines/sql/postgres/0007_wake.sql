-- Wake-up (law 11): sleepers, and how they are told.

-- Say that a process is about to sleep. It has to be committed before the last look. Sleep is real, so
-- it is measured by the server's own clock, whatever a test says the time is.
-- It need not be on disk: a server that is killed has forgotten all sleepers anyway.
CREATE FUNCTION penstock.doze(id_ text, kind_ text, for_ double precision) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO penstock.sleeper (id, kind, until)
  VALUES (id_, kind_, extract(epoch FROM pg_catalog.clock_timestamp()) + for_)
  ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, until = excluded.until;
END $$;

-- Whether a job that has ended may have made room for another one: something waits in a queue that
-- gives only so many at once.
CREATE FUNCTION penstock.has_crowd() RETURNS boolean LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  queue_ text COLLATE "C";
BEGIN
  FOR queue_ IN SELECT name FROM penstock.queue WHERE (most IS NOT NULL OR per_key IS NOT NULL OR ordered) AND NOT paused LOOP
    IF EXISTS (SELECT FROM penstock.line WHERE queue = queue_) THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

-- Wake sleepers of this kind, after a commit; false: there are none. A NOTIFY takes a lock of the whole
-- cluster while it commits, so none is sent without sleepers; and it says nothing that has to outlive the
-- server, so it need not be on disk.
CREATE FUNCTION penstock.wake(kind_ text) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_   double precision := extract(epoch FROM clock_timestamp());
  kinds_ text[] := ARRAY(SELECT DISTINCT kind FROM penstock.sleeper WHERE until > now_);
BEGIN
  IF kind_ = 'done' AND 'work' = ANY (kinds_) THEN
    IF penstock.has_crowd() THEN
      kind_ := 'changed';
    END IF;
  END IF;
  IF kinds_ = '{}' OR NOT (kind_ = 'changed' OR kinds_ && ARRAY[kind_, 'changed']) THEN
    RETURN false;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('penstock.wake', kind_);
  RETURN true;
END $$;
