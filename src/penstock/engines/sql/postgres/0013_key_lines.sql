-- Queues whose keys take turns (core.fairness): which key lines are active, and which job is next.
--
-- Every function is called by the holder of the queue's lock, and plans as its caller does: to set that for each call
-- would cost more than most of them do. A note is visible exactly when the job is that it tells
-- of; so whatever commits while a claim looks at a line, either the claim sees it or the next claim finds its note.

-- How far a line moves on with each job.
CREATE FUNCTION penstock.stride(weights_ json, key_ text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT round(100000 / coalesce((weights_ ->> key_)::double precision, 1))::bigint
$$;

-- How many jobs of each key of a queue run; nothing where keys have no limit. It reads all of the queue that runs: an index
-- of its own would cost every claim and every end more.
CREATE FUNCTION penstock.running_keys(queue_ text, per_key_ bigint, OUT keys_ text[], OUT jobs_ bigint[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF per_key_ IS NOT NULL THEN
    SELECT array_agg(mine.line), array_agg(mine.jobs) INTO keys_, jobs_
      FROM (SELECT job.line, count(*) AS jobs FROM penstock.live AS job
             WHERE job.state = 'running' AND job.queue = queue_ AND job.line <> '' GROUP BY job.line) AS mine;
  END IF;
END $$;

-- The priorities that a key has lines of: each is one step back in the index.
CREATE FUNCTION penstock.priorities_of(queue_ text, key_ text) RETURNS SETOF bigint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
  WITH RECURSIVE mine AS (
    (SELECT priority FROM penstock.key_line WHERE queue = queue_ AND key = key_
      ORDER BY queue DESC, key DESC, priority DESC, place DESC LIMIT 1)
    UNION ALL
    SELECT next.priority FROM mine CROSS JOIN LATERAL (
      SELECT priority FROM penstock.key_line WHERE queue = queue_ AND key = key_ AND priority < mine.priority
       ORDER BY queue DESC, key DESC, priority DESC, place DESC LIMIT 1) AS next)
  SELECT priority FROM mine
$$;

-- Where a line of this priority enters at the earliest: at the place of the first active line, which is not before
-- `from_`, else at the greatest place there is.
CREATE FUNCTION penstock.virtual_time(queue_ text, priority_ bigint, from_ bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT place FROM penstock.key_line
      WHERE queue = queue_ AND active AND priority = priority_ AND place >= from_
      ORDER BY queue, active, priority, place LIMIT 1),
    (SELECT place FROM penstock.key_line
      WHERE queue = queue_ AND NOT active AND priority = priority_
      ORDER BY queue DESC, active DESC, priority DESC, place DESC LIMIT 1),
    0);
END $$;

-- See which of these lines are active now. First those become idle that have no job or no room, then the others enter
-- at one virtual time per priority. `seqs_` are tickets of jobs that came, null where none did.
CREATE FUNCTION penstock.look_at_lines(
  queue_ text, priorities_ bigint[], keys_ text[], seqs_ bigint[], per_key_ bigint, weights_ json,
  from_priority_ bigint[], from_place_ bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  tids_   tid[];
  places_ bigint[];
  active_ boolean[];
  firsts_ bigint[];
  full_   text[] := ARRAY(SELECT mine.key FROM penstock.running_keys(queue_, per_key_) AS runs,
                                 unnest(runs.keys_, runs.jobs_) AS mine (key, jobs) WHERE mine.jobs >= per_key_);
BEGIN
  IF per_key_ <= 0 THEN
    full_ := ARRAY(SELECT DISTINCT key FROM unnest(keys_) AS given (key) WHERE key <> '');
  END IF;
  SELECT array_agg(seen.priority), array_agg(seen.key), array_agg(seen.tid), array_agg(seen.place),
         array_agg(seen.active),
         array_agg(CASE WHEN seen.key = ANY (full_) THEN NULL ELSE seen.first END)
    INTO priorities_, keys_, tids_, places_, active_, firsts_
    FROM (SELECT mine.priority, mine.key, line.tid, coalesce(line.place, 0) AS place,
                 coalesce(line.active, false) AS active,
                 (SELECT job.seq FROM penstock.line AS job
                   WHERE job.queue = queue_ AND job.priority = mine.priority AND job.line = mine.key
                     AND job.seq > least(coalesce(line.from_seq, 0), mine.seq - 1)
                   ORDER BY job.seq LIMIT 1) AS first
            FROM (SELECT given.priority, given.key, min(given.seq) AS seq
                    FROM unnest(priorities_, keys_, seqs_) AS given (priority, key, seq)
                   GROUP BY given.priority, given.key) AS mine
            LEFT JOIN LATERAL (
             -- Places only grow, so the newest row of a line is at the end of its range.
             SELECT its.ctid AS tid, its.place, its.from_seq, its.active FROM penstock.key_line AS its
              WHERE its.queue = queue_ AND its.key = mine.key AND its.priority = mine.priority
              ORDER BY its.queue DESC, its.key DESC, its.priority DESC, its.place DESC LIMIT 1) AS line ON true) AS seen;
  UPDATE penstock.key_line AS line
     SET active = false
    FROM unnest(tids_, active_, firsts_) AS mine (tid, active, first)
   WHERE line.ctid = mine.tid AND mine.active AND mine.first IS NULL;
  -- One that stays active has jobs from the first one found on: a job may have come with an older ticket.
  UPDATE penstock.key_line AS line
     SET from_seq = mine.first - 1
    FROM unnest(tids_, active_, firsts_) AS mine (tid, active, first)
   WHERE line.ctid = mine.tid AND mine.active AND line.from_seq >= mine.first;
  WITH entering AS MATERIALIZED (
    SELECT mine.tid, mine.priority, mine.key, mine.first,
           greatest(mine.place, level.time + penstock.stride(weights_, mine.key) / 2) AS place
      FROM unnest(priorities_, keys_, tids_, places_, active_, firsts_)
             AS mine (priority, key, tid, place, active, first)
      JOIN (SELECT each.priority, penstock.virtual_time(queue_, each.priority, coalesce(
                     (SELECT max(hint.place) FROM unnest(from_priority_, from_place_) AS hint (priority, place)
                       WHERE hint.priority = each.priority AND hint.place < 9223372036854775807),
                     -9223372036854775808)) AS time
              FROM (SELECT DISTINCT given.priority FROM unnest(priorities_) AS given (priority)) AS each) AS level
        ON level.priority = mine.priority
     WHERE NOT mine.active AND mine.first IS NOT NULL
  ), woken AS (
    UPDATE penstock.key_line AS line
       SET active = true, place = mine.place, turn = mine.first, from_seq = mine.first - 1
      FROM entering AS mine WHERE line.ctid = mine.tid)
  INSERT INTO penstock.key_line (queue, priority, key, place, turn, from_seq, active)
  SELECT queue_, mine.priority, mine.key, mine.place, mine.first, mine.first - 1, true
    FROM entering AS mine WHERE mine.tid IS NULL;
END $$;

-- Read up to 500 notes of a queue that are later than `after_`; returns the number of the last one, and whether there
-- may be more.
CREATE FUNCTION penstock.read_notes(
  queue_ text, after_ bigint, per_key_ bigint, weights_ json, from_priority_ bigint[], from_place_ bigint[],
  OUT last_ bigint, OUT is_behind_ boolean) LANGUAGE plpgsql AS $$
DECLARE
  tids_       tid[];
  priorities_ bigint[];
  keys_       text[];
  seqs_       bigint[];
BEGIN
  last_ := after_; is_behind_ := false;
  SELECT array_agg(note.tid), array_agg(note.priority), array_agg(note.key), array_agg(note.seq), max(note.number)
    INTO tids_, priorities_, keys_, seqs_, last_
    FROM (SELECT ctid AS tid, priority, key, seq, number FROM penstock.note
           WHERE queue = queue_ AND number > after_ ORDER BY number LIMIT 500) AS note;
  IF tids_ IS NULL THEN
    last_ := after_;
    RETURN;
  END IF;
  is_behind_ := cardinality(tids_) = 500;
  DELETE FROM penstock.note WHERE ctid = ANY (tids_) AND queue = queue_;
  IF array_position(priorities_, NULL) IS NOT NULL THEN
    SELECT array_agg(coalesce(note.priority, mine.priority)), array_agg(note.key), array_agg(note.seq)
      INTO priorities_, keys_, seqs_
      FROM unnest(priorities_, keys_, seqs_) AS note (priority, key, seq)
      LEFT JOIN LATERAL penstock.priorities_of(queue_, note.key) AS mine (priority) ON note.priority IS NULL
     WHERE note.priority IS NOT NULL OR mine.priority IS NOT NULL;
  END IF;
  IF keys_ IS NOT NULL THEN
    PERFORM penstock.look_at_lines(queue_, priorities_, keys_, seqs_, per_key_, weights_, from_priority_, from_place_);
  END IF;
END $$;

-- After something was decided about a queue: give its ready jobs their lines, a batch at a time, and have these looked
-- at; if keys have another limit, have all lines looked at. Returns whether there is more to do. It is done once more as long as a transaction is open that may not know
-- of the decision yet, and store a job without its line.
CREATE FUNCTION penstock.move_jobs(queue_ text, limit_ bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  queue record;
  job   record;
  rows_ bigint := 0;
  last_ bigint[];
BEGIN
  SELECT mine.moved_to, mine.notes_all, mine.decided < pg_snapshot_xmin(pg_current_snapshot()) AS is_known INTO queue
    FROM penstock.queue AS mine WHERE mine.name = queue_;
  IF queue.moved_to IS NULL THEN
    RETURN false;
  END IF;
  FOR job IN
    SELECT mine.tid, mine.priority, mine.seq, mine.line, mine.key FROM penstock.line AS mine
     WHERE mine.queue = queue_ AND (mine.priority, mine.seq) > (queue.moved_to[1], queue.moved_to[2])
     ORDER BY mine.priority, mine.seq LIMIT limit_
  LOOP
    rows_ := rows_ + 1;
    last_ := ARRAY[job.priority, job.seq];
    IF job.line IS NULL THEN
      -- One that another transaction has gets its line from that one.
      UPDATE penstock.live SET line = coalesce(job.key, '')
       WHERE ctid = (SELECT ctid FROM penstock.live WHERE ctid = job.tid FOR UPDATE SKIP LOCKED);
    END IF;
    IF job.line IS NULL OR queue.notes_all THEN
      INSERT INTO penstock.note (queue, priority, key, seq)
      VALUES (queue_, job.priority, coalesce(job.line, job.key, ''), job.seq);
    END IF;
  END LOOP;
  IF rows_ < limit_ THEN
    last_ := CASE WHEN NOT queue.is_known THEN ARRAY[-9223372036854775808, -9223372036854775808] END;
  END IF;
  UPDATE penstock.queue SET moved_to = last_ WHERE name = queue_;
  RETURN rows_ = limit_;
END $$;

-- The first jobs of a queue whose keys take turns, that this worker could have, locked, in order. Each line is looked
-- at for its share and a little more at first; where all of that was used, for all that is wanted. A job that
-- another transaction has locked is skipped, and its line does not go past it.
CREATE FUNCTION penstock.key_heads(
  room_ penstock.room, want_ bigint, slots_ bigint, avoid_ text[], least_ bigint, now_ double precision,
  from_priority_ bigint[], from_place_ bigint[], to_priority_ bigint[])
RETURNS SETOF penstock.head LANGUAGE plpgsql AS $$
DECLARE
  queue_    text := room_.queue;
  per_key_  bigint := room_.per_key;
  weights_  json := room_.weights;
  lines_  bigint := want_;
  count_  bigint;
  looks_  bigint;
  tids_   tid[];
  used_   bigint;
  levels_ bigint[];
  keys_   text[];
  places_ bigint[];
  turns_  bigint[];
  froms_  bigint[];
  rooms_  bigint[];
BEGIN
  LOOP
    SELECT count(*), array_agg(line.priority), array_agg(line.key), array_agg(line.place), array_agg(line.turn),
           array_agg(line.from_seq)
      INTO count_, levels_, keys_, places_, turns_, froms_
      FROM (SELECT line.* FROM unnest(from_priority_, from_place_, to_priority_) AS part (priority, place, last)
             CROSS JOIN LATERAL (
              SELECT mine.priority, mine.key, mine.place, mine.turn, mine.from_seq FROM penstock.key_line AS mine
               WHERE mine.queue = queue_ AND mine.active
                 AND (mine.priority, mine.place) >= (part.priority, part.place)
                 AND mine.priority <= least(part.last, least_)
               ORDER BY mine.priority, mine.place, mine.turn, mine.key LIMIT lines_) AS line
             LIMIT lines_) AS line;
    IF count_ = 0 THEN
      RETURN;
    END IF;
    IF per_key_ IS NOT NULL THEN
      rooms_ := ARRAY(SELECT CASE WHEN line.key <> '' THEN per_key_ - coalesce(running.jobs, 0) END
                        FROM unnest(keys_) WITH ORDINALITY AS line (key, number)
                        LEFT JOIN (SELECT mine.* FROM penstock.running_keys(queue_, per_key_) AS runs,
                                          unnest(runs.keys_, runs.jobs_) AS mine (key, jobs)) AS running
                          ON running.key = line.key
                       ORDER BY line.number);
    END IF;
    looks_ := CASE WHEN count_ = 1 THEN want_ ELSE ceil(want_::numeric / count_) + 2 END;
    LOOP
      SELECT array_agg(chosen.tid ORDER BY chosen.priority, chosen.place, chosen.turn, chosen.key),
             coalesce(max(chosen.nth), 0)
        INTO tids_, used_
        FROM (SELECT each.* FROM (
                SELECT job.tid, line.priority, line.turn, line.key, job.nth,
                       line.place + (job.nth - 1) * penstock.stride(weights_, line.key) AS place,
                       line.room, row_number() OVER (
                         PARTITION BY line.key
                         ORDER BY line.priority, line.place + (job.nth - 1) * penstock.stride(weights_, line.key)
                       ) AS of_key
                  FROM unnest(levels_, keys_, places_, turns_, froms_, rooms_)
                         AS line (priority, key, place, turn, from_seq, room)
                 CROSS JOIN LATERAL (
                  SELECT head.tid, row_number() OVER (ORDER BY head.seq) AS nth FROM (
                    SELECT job.tid, job.seq FROM penstock.line AS job
                     WHERE job.queue = queue_ AND job.priority = line.priority AND job.line = line.key
                       AND job.seq > line.from_seq AND job.task <> ALL (avoid_)
                       AND (slots_ > 0 OR NOT job.at_most_once)
                       AND (job.expires_at IS NULL OR job.expires_at > now_)
                     ORDER BY job.seq LIMIT least(looks_, coalesce(line.room, looks_))) AS head) AS job) AS each
               WHERE each.room IS NULL OR each.of_key <= each.room
               ORDER BY each.priority, each.place, each.turn, each.key LIMIT want_) AS chosen;
      EXIT WHEN used_ < looks_ OR looks_ >= want_;
      looks_ := want_;
    END LOOP;
    -- Lines of which this worker can have nothing may stand before others.
    EXIT WHEN count_ < lines_ OR coalesce(cardinality(tids_), 0) >= want_;
    lines_ := lines_ * 10;
  END LOOP;
  RETURN QUERY
  SELECT room_.number, job.ctid, job.priority, job.at_most_once, job.unique_until IS NOT NULL
    FROM unnest(tids_) WITH ORDINALITY AS mine (tid, nth)
    JOIN LATERAL (SELECT its.ctid, its.* FROM penstock.live AS its
                   WHERE its.ctid = mine.tid AND its.state || '' = 'ready' AND its.hold IS NULL
                     FOR UPDATE SKIP LOCKED) AS job ON true
   ORDER BY mine.nth;
END $$;

-- These jobs of a queue are about to be claimed: their lines move on, and those without another job become idle. A line
-- goes on after the last job taken, but not past one that is left; before it becomes idle it is looked at from its
-- start. They are active, so they stand in the ranges that the claimer looked at: from there on, the end of a line's
-- rows in the index is not all of a page of dead ones.
CREATE FUNCTION penstock.move_on(
  queue_ text, tids_ tid[], weights_ json, from_priority_ bigint[], from_place_ bigint[], to_priority_ bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE penstock.key_line AS line
     SET place = mine.place, active = mine.next IS NOT NULL,
         from_seq = least(mine.last, coalesce(mine.next - 1, mine.last))
    FROM (SELECT newest.tid, newest.place + taken.jobs * penstock.stride(weights_, taken.key) AS place, taken.last,
                 coalesce(
                   (SELECT job.seq FROM penstock.line AS job
                     WHERE job.queue = queue_ AND job.priority = taken.priority AND job.line = taken.key
                       AND job.seq > newest.from_seq AND job.seq < taken.last AND job.tid <> ALL (tids_)
                     ORDER BY job.seq LIMIT 1),
                   (SELECT job.seq FROM penstock.line AS job
                     WHERE job.queue = queue_ AND job.priority = taken.priority AND job.line = taken.key
                       AND job.seq > taken.last
                     ORDER BY job.seq LIMIT 1),
                   (SELECT job.seq FROM penstock.line AS job
                     WHERE job.queue = queue_ AND job.priority = taken.priority AND job.line = taken.key
                       AND job.seq <= newest.from_seq AND job.tid <> ALL (tids_)
                     ORDER BY job.seq LIMIT 1)) AS next
            FROM (SELECT job.priority, job.line AS key, count(*) AS jobs, max(job.seq) AS last
                    FROM unnest(tids_) AS mine (tid) JOIN penstock.live AS job ON job.ctid = mine.tid
                   WHERE job.queue = queue_
                   GROUP BY job.priority, job.line) AS taken
            JOIN (SELECT level.priority, (
                    SELECT min(CASE WHEN part.priority = level.priority THEN part.place
                                    ELSE -9223372036854775808 END)
                      FROM unnest(from_priority_, from_place_, to_priority_) AS part (priority, place, last)
                     WHERE level.priority BETWEEN part.priority AND part.last) AS place
                    FROM (SELECT DISTINCT job.priority FROM unnest(tids_) AS mine (tid)
                            JOIN penstock.live AS job ON job.ctid = mine.tid) AS level) AS bound
              ON bound.priority = taken.priority
           CROSS JOIN LATERAL (
            SELECT its.ctid AS tid, its.place, its.from_seq FROM penstock.key_line AS its
             WHERE its.queue = queue_ AND its.key = taken.key AND its.priority = taken.priority
               AND its.place >= bound.place
             ORDER BY its.queue DESC, its.key DESC, its.priority DESC, its.place DESC LIMIT 1) AS newest
          -- So that the next job is looked for once, not for each use of it.
          OFFSET 0) AS mine
   WHERE line.ctid = mine.tid;
END $$;

-- After a claim in queues that limit their keys: the other lines of the keys that were taken from may have no room now.
CREATE FUNCTION penstock.look_at_keys(queue_ text, keys_ text[], per_key_ bigint, weights_ json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  priorities_ bigint[];
BEGIN
  SELECT array_agg(mine.priority), array_agg(given.key) INTO priorities_, keys_
    FROM (SELECT DISTINCT key FROM unnest(keys_) AS each (key) WHERE key <> '') AS given
   CROSS JOIN LATERAL penstock.priorities_of(queue_, given.key) AS mine (priority);
  IF keys_ IS NOT NULL THEN
    PERFORM penstock.look_at_lines(queue_, priorities_, keys_, array_fill(NULL::bigint, ARRAY[cardinality(keys_)]),
                                   per_key_, weights_, '{}', '{}');
  END IF;
END $$;

-- Look at up to so many lines that have ready jobs, after this one; note those that could be active, are not, and have no
-- note. Returns how many, and the last one that was looked at; null: there are no more.
CREATE FUNCTION penstock.note_lost_lines(
  limit_ bigint, queue_ text, priority_ bigint, key_ text,
  OUT lost_ bigint, OUT last_queue_ text, OUT last_priority_ bigint, OUT last_key_ text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
  line    record;
  lines_  bigint := 0;
BEGIN
  lost_ := 0;
  LOOP
    SELECT job.queue, job.priority, job.line AS key INTO line FROM penstock.line AS job
     WHERE job.line IS NOT NULL AND (job.queue, job.priority, job.line) > (queue_, priority_, key_)
     ORDER BY job.queue, job.priority, job.line, job.seq LIMIT 1;
    EXIT WHEN NOT FOUND;
    IF lines_ >= limit_ THEN
      last_queue_ := queue_; last_priority_ := priority_; last_key_ := key_;
      EXIT;
    END IF;
    lines_ := lines_ + 1;
    queue_ := line.queue; priority_ := line.priority; key_ := line.key;
    INSERT INTO penstock.note (queue, priority, key, seq)
    SELECT queue_, priority_, key_, 0 FROM penstock.queue AS queue
     WHERE queue.name = queue_ AND queue.keyed AND queue.moved_to IS NULL
       AND (queue.per_key IS NULL OR key_ = '' OR queue.per_key > (
              SELECT count(*) FROM penstock.live AS job
               WHERE job.state = 'running' AND job.queue = queue_ AND job.line = key_))
       AND NOT EXISTS (SELECT FROM penstock.key_line AS mine
                        WHERE mine.queue = queue_ AND mine.key = key_ AND mine.priority = priority_ AND mine.active)
       AND NOT EXISTS (SELECT FROM penstock.note AS note
                        WHERE note.queue = queue_ AND note.key = key_
                          AND (note.priority IS NULL OR note.priority = priority_));
    IF FOUND THEN
      lost_ := lost_ + 1;
    END IF;
  END LOOP;
END $$;

-- Forget lines that are idle, have no job and whose place says nothing more: at most so many.
CREATE FUNCTION penstock.prune_lines(limit_ bigint) RETURNS void LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $$
DECLARE
  mine record;
BEGIN
  FOR mine IN
    SELECT line.ctid AS tid, line.queue, line.priority, line.key, line.place FROM penstock.key_line AS line
     WHERE NOT line.active LIMIT limit_ * 5
  LOOP
    EXIT WHEN limit_ <= 0;
    IF penstock.try_queue(mine.queue)
       AND NOT EXISTS (SELECT FROM penstock.line AS job
                        WHERE job.queue = mine.queue AND job.priority = mine.priority AND job.line = mine.key)
       AND EXISTS (SELECT FROM penstock.key_line AS other
                    WHERE other.queue = mine.queue AND other.priority = mine.priority AND other.ctid <> mine.tid
                      AND other.place >= mine.place AND (other.active OR other.place > mine.place))
       AND mine.place <= penstock.virtual_time(mine.queue, mine.priority, -9223372036854775808) THEN
      DELETE FROM penstock.key_line WHERE ctid = mine.tid AND NOT active AND key = mine.key;
      limit_ := limit_ - 1;
    END IF;
  END LOOP;
END $$;
