-- Dead letters are few beside what ended well, and are asked for again and again: how many per queue,
-- and which came last.
CREATE INDEX job_failed ON job (queue, finished_at) WHERE state = 'failed';
