-- Leadership: one row, one holder.

-- Take the leadership if it is free or the candidate's own; returns the epoch, null: another has it. One
-- statement, since every process asks every few seconds. If more is left than was ever given, the clock went
-- back: then the holder has what it was given, from now on.
CREATE FUNCTION penstock.lead(candidate_ text, ttl_ double precision) RETURNS bigint LANGUAGE plpgsql
SET lock_timeout = '100ms' AS $$
DECLARE
  now_   double precision := penstock.now();
  epoch_ bigint;
BEGIN
  UPDATE penstock.term
     SET epoch = epoch + (holder <> candidate_ OR until <= now_)::integer,
         holder = candidate_, until = now_ + ttl_, ttl = ttl_
   WHERE holder IN ('', candidate_) OR until <= now_
  RETURNING epoch INTO epoch_;
  IF epoch_ IS NULL THEN
    UPDATE penstock.term SET until = now_ + ttl WHERE until - now_ > ttl;
  END IF;
  RETURN epoch_;
END $$;
