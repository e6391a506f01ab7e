-- name: put_beat
-- Write a worker's row. namespace, name, until_ms, data; returns nothing.
INSERT OR REPLACE INTO beat (space, name, until_ms, data) VALUES (?, ?, ?, ?);

-- name: drop_beats
-- Forget workers not seen lately. namespace, now; returns nothing.
DELETE FROM beat WHERE space = ? AND until_ms <= ?;

-- name: tell_refused
-- Add a refused write. namespace, data; returns nothing.
INSERT INTO refused (space, data) VALUES (?, ?);

-- name: drop_refused
-- Keep the list short. namespace, how many to keep; returns nothing.
DELETE FROM refused WHERE space = ?1 AND number <= (
    SELECT number FROM refused WHERE space = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2
);
