-- name: find_run
-- What a change finds. namespace, id; returns (number, record as bytes, entry_ms).
SELECT number, CAST(record AS BLOB), entry_ms FROM run WHERE space = ? AND id = ?;

-- name: find_runs_and_rows
-- What commits find: runs, and the last commit of each. namespace, ids (one place, made as many as are asked for);
-- returns (id, number, record as bytes, entry_ms, key of the last commit or NULL, its digest as bytes or NULL).
SELECT r.id, r.number, CAST(r.record AS BLOB), r.entry_ms, j.key, substr(j.data, 1, 64)
FROM run AS r LEFT JOIN journal AS j ON j.key = (
    SELECT max(key) FROM journal WHERE key BETWEEN r.number << 32 AND (r.number << 32) + 0xFFFFFFFF
)
WHERE r.space = ? AND r.id IN (?);

-- name: insert_run
-- Write a new run. namespace, id, kind, status, owner, parent, created_ms, token, priority, entry_ms, record.
INSERT INTO run (space, id, kind, status, owner, parent, created_ms, token, priority, entry_ms, record)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_record
-- Write a run of which nothing changed that searches go by. record, number; returns nothing.
UPDATE run SET record = ? WHERE number = ?;

-- name: update_run
-- Write a run. kind, status, owner, parent, token, priority, entry_ms, record, number; returns nothing.
UPDATE run SET kind = ?, status = ?, owner = ?, parent = ?, token = ?, priority = ?, entry_ms = ?, record = ?
WHERE number = ?;

-- name: move_entry
-- Move a run's entry in the due index. entry_ms, number; returns nothing.
UPDATE run SET entry_ms = ? WHERE number = ?;

-- name: delete_run
-- Remove the record of a run. number; returns nothing.
DELETE FROM run WHERE number = ?;

-- name: row_digest
-- The digest of one commit. key; returns (digest as bytes), or nothing.
SELECT substr(data, 1, 64) FROM journal WHERE key = ?;

-- name: insert_row
-- Append a commit. key, data; returns nothing.
INSERT INTO journal (key, data) VALUES (?, ?);

-- name: delete_rows
-- Remove the commits of a run. first and last key of the run; returns nothing.
DELETE FROM journal WHERE key BETWEEN ? AND ?;

-- name: find_item
-- One inbox item. number of the run, item id; returns (data), or nothing.
SELECT data FROM inbox WHERE run = ? AND id = ?;

-- name: insert_item
-- Put an item into the inbox. number of the run, seq, item id, data; returns nothing.
INSERT INTO inbox (run, seq, id, data) VALUES (?, ?, ?, ?);

-- name: update_item
-- Mark an item as consumed. data, number of the run, item id; returns nothing.
UPDATE inbox SET data = ? WHERE run = ? AND id = ?;

-- name: delete_items
-- Remove the inbox of a run. number of the run; returns nothing.
DELETE FROM inbox WHERE run = ?;

-- name: insert_blob
-- Keep a blob; the same content again is the same blob. number of the run, digest, data; returns nothing.
INSERT OR IGNORE INTO blob (run, digest, data) VALUES (?, ?, ?);

-- name: delete_blobs
-- Remove the blobs of a run. number of the run; returns nothing.
DELETE FROM blob WHERE run = ?;
