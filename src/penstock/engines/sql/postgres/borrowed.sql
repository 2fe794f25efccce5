-- What runs on a connection that belongs to the caller, in the caller's transaction.

-- name: put
-- One statement with one value on every driver, so that all that differs is how the value is marked.
-- The second argument says that nobody of ours comes after the commit: the wake-up goes with it.
SELECT id, created, because FROM penstock.put(:drafts, true)
