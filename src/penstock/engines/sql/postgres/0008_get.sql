-- Jobs by their ids, each looked for by the index of the ids in what lives and in every day of the
-- history. A caller that waits for a result asks this again and again: planned anew for so many tables, each
-- time would cost ten times as much as the answer.
CREATE FUNCTION penstock.get(ids_ text[]) RETURNS SETOF penstock.live LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY SELECT * FROM penstock.live    WHERE id = ANY (ids_)
     UNION ALL SELECT * FROM penstock.history WHERE id = ANY (ids_);
END $$;
