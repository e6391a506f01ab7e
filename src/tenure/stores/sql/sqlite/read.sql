-- name: load
-- The record of a run. namespace, id; returns (record as bytes), or nothing.
SELECT CAST(record AS BLOB) FROM run WHERE space = ? AND id = ?;

-- name: tail
-- Commits of a run in order. namespace, id, after this seq, at most; returns (seq, data).
SELECT j.key & 0xFFFFFFFF, j.data
FROM run AS r JOIN journal AS j ON j.key BETWEEN (r.number << 32) + ?3 + 1 AND (r.number << 32) + 0xFFFFFFFF
WHERE r.space = ?1 AND r.id = ?2 ORDER BY j.key LIMIT ?4;

-- name: inbox
-- Inbox items in order. namespace, id, after this seq; returns (item id, data).
SELECT i.id, i.data FROM run AS r JOIN inbox AS i ON i.run = r.number AND i.seq > ?3
WHERE r.space = ?1 AND r.id = ?2 ORDER BY i.seq;

-- name: blob
-- One blob. namespace, id, digest; returns (data), or nothing.
SELECT b.data FROM run AS r JOIN blob AS b ON b.run = r.number AND b.digest = ?3 WHERE r.space = ?1 AND r.id = ?2;

-- name: due
-- What is due of one kind, the longest due first. namespace, kind, until, at most;
-- returns (entry_ms, id, kind, token, priority).
SELECT entry_ms, id, kind, token, priority FROM run
WHERE space = ? AND kind = ? AND entry_ms IS NOT NULL AND entry_ms <= ? ORDER BY entry_ms, id LIMIT ?;

-- name: next_due
-- The earliest entry of one kind. namespace, kind; returns (entry_ms or NULL).
SELECT min(entry_ms) FROM run WHERE space = ? AND kind = ? AND entry_ms IS NOT NULL;

-- name: kinds
-- Every kind in the due index, by leaps: one look a kind, however many runs it has. namespace; returns (kind).
WITH RECURSIVE found (kind) AS (
    SELECT min(kind) FROM run WHERE space = ?1 AND entry_ms IS NOT NULL
    UNION ALL
    SELECT (SELECT min(kind) FROM run WHERE space = ?1 AND entry_ms IS NOT NULL AND kind > found.kind)
    FROM found WHERE found.kind IS NOT NULL
)
SELECT kind FROM found WHERE kind IS NOT NULL;

-- name: entries
-- A page of one kind's due index. namespace, kind, after this entry_ms and id, at most; returns (entry_ms, id).
SELECT entry_ms, id FROM run
WHERE space = ? AND kind = ? AND entry_ms IS NOT NULL AND (entry_ms, id) > (?, ?) ORDER BY entry_ms, id LIMIT ?;

-- name: find_all
-- Runs, newest first. namespace, before this created_ms and id, created from, created until (excluded), kind and owner
-- (empty for any); returns (created_ms, id, record as bytes).
SELECT created_ms, id, CAST(record AS BLOB) FROM run INDEXED BY run_created
WHERE space = ?1 AND (created_ms, id) < (?2, ?3) AND created_ms >= ?4 AND created_ms < ?5
AND (?6 = '' OR kind = ?6) AND (?7 = '' OR owner = ?7) AND id NOT LIKE '\_%' ESCAPE '\'
ORDER BY created_ms DESC, id DESC;

-- name: find_status
-- Runs of one status, newest first. As find_all, then status.
SELECT created_ms, id, CAST(record AS BLOB) FROM run INDEXED BY run_status
WHERE space = ?1 AND (created_ms, id) < (?2, ?3) AND created_ms >= ?4 AND created_ms < ?5
AND (?6 = '' OR kind = ?6) AND (?7 = '' OR owner = ?7) AND id NOT LIKE '\_%' ESCAPE '\'
AND status = ?8 ORDER BY created_ms DESC, id DESC;

-- name: find_parent
-- Children of one run, newest first. As find_all, then parent.
SELECT created_ms, id, CAST(record AS BLOB) FROM run INDEXED BY run_parent
WHERE space = ?1 AND (created_ms, id) < (?2, ?3) AND created_ms >= ?4 AND created_ms < ?5
AND (?6 = '' OR kind = ?6) AND (?7 = '' OR owner = ?7) AND id NOT LIKE '\_%' ESCAPE '\'
AND parent = ?8 AND parent <> '' ORDER BY created_ms DESC, id DESC;

-- name: beats
-- Workers seen lately. namespace, now; returns (data).
SELECT data FROM beat WHERE space = ? AND until_ms > ? ORDER BY name;

-- name: refused
-- The latest refused writes. namespace, at most; returns (data).
SELECT data FROM refused WHERE space = ? ORDER BY number DESC LIMIT ?;
