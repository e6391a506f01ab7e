-- What is read, each by a statement of its own; nothing here decides. Every statement knows space (a namespace) and
-- test_us (microseconds of a test clock, or NULL).

-- name: load
-- The record of a run. id; returns (record as JSON), or nothing.
SELECT row_to_json(r)::text FROM tenure.run r JOIN tenure.space s ON s.number = r.space
WHERE s.name = %(space)s AND r.id = %(id)s

-- name: tail
-- Commits of a run in order. id, after, limit; returns (seq, token, mark, digest, at_ms, body).
SELECT j.seq, j.token, j.mark, j.digest, j.at_ms, j.body
FROM tenure.space s JOIN tenure.run r ON r.space = s.number JOIN tenure.journal j ON j.run = r.number
WHERE s.name = %(space)s AND r.id = %(id)s AND j.seq > %(after)s ORDER BY j.seq LIMIT %(limit)s

-- name: inbox
-- Inbox items in order. id, after; returns (item as JSON, body).
SELECT row_to_json(i)::text, i.body
FROM tenure.space s JOIN tenure.run r ON r.space = s.number JOIN tenure.inbox i ON i.run = r.number
WHERE s.name = %(space)s AND r.id = %(id)s AND i.seq > %(after)s ORDER BY i.seq

-- name: blob
-- One blob. id, digest; returns (data), or nothing.
SELECT b.data FROM tenure.space s JOIN tenure.run r ON r.space = s.number JOIN tenure.blob b ON b.run = r.number
WHERE s.name = %(space)s AND r.id = %(id)s AND b.digest = %(digest)s

-- name: due
-- What is due of some kinds, the longest due first, by one look into the index a kind. kinds, limit; returns
-- (entry_ms, id, kind, token, priority).
SELECT d.entry_ms, d.id, d.kind, d.token, d.priority
FROM (SELECT tenure.now_us_1(%(test_us)s) / 1000 AS ms) AS now
CROSS JOIN tenure.space s CROSS JOIN unnest(%(kinds)s::text[]) AS wanted (kind)
CROSS JOIN LATERAL (
    SELECT r.entry_ms, r.id, r.kind, r.token, r.priority FROM tenure.run r
    WHERE r.space = s.number AND r.kind = wanted.kind AND r.entry_ms IS NOT NULL AND r.entry_ms <= now.ms
    ORDER BY r.entry_ms, r.id LIMIT %(limit)s
) AS d
WHERE s.name = %(space)s ORDER BY d.entry_ms, d.id LIMIT %(limit)s

-- name: next_due
-- The earliest entry of some kinds. kinds; returns (entry_ms or NULL).
SELECT min(d.entry_ms)
FROM tenure.space s CROSS JOIN unnest(%(kinds)s::text[]) AS wanted (kind)
CROSS JOIN LATERAL (
    SELECT r.entry_ms FROM tenure.run r
    WHERE r.space = s.number AND r.kind = wanted.kind AND r.entry_ms IS NOT NULL ORDER BY r.entry_ms, r.id LIMIT 1
) AS d
WHERE s.name = %(space)s

-- name: kinds
-- Every kind in the due index, by leaps: one look a kind, however many runs it has. Returns (kind).
WITH RECURSIVE found (space, kind) AS (
    SELECT s.number, (
        SELECT r.kind FROM tenure.run r WHERE r.space = s.number AND r.entry_ms IS NOT NULL ORDER BY r.kind LIMIT 1
    ) FROM tenure.space s WHERE s.name = %(space)s
    UNION ALL
    SELECT found.space, (
        SELECT r.kind FROM tenure.run r
        WHERE r.space = found.space AND r.entry_ms IS NOT NULL AND r.kind > found.kind ORDER BY r.kind LIMIT 1
    ) FROM found WHERE found.kind IS NOT NULL
)
SELECT kind FROM found WHERE kind IS NOT NULL

-- name: entries
-- A page of one kind's due index. kind, after_ms, after_id, limit; returns (entry_ms, id).
-- The number of the namespace is looked up first, here and below: joined, all of its runs would be read and sorted.
SELECT r.entry_ms, r.id FROM tenure.run r
WHERE r.space = (SELECT s.number FROM tenure.space s WHERE s.name = %(space)s) AND r.kind = %(kind)s AND r.entry_ms IS NOT NULL
AND (r.entry_ms, r.id) > (%(after_ms)s::bigint, %(after_id)s::text) ORDER BY r.entry_ms, r.id LIMIT %(limit)s

-- name: find
-- Runs, newest first. before_ms and before_id, created from_ms, until_ms (excluded), kind, owner (empty for any), limit;
-- returns (created_ms, id, record as JSON).
SELECT r.created_ms, r.id, row_to_json(r)::text FROM tenure.run r
WHERE r.space = (SELECT s.number FROM tenure.space s WHERE s.name = %(space)s)
AND (r.created_ms, r.id) < (%(before_ms)s::bigint, %(before_id)s::text)
AND r.created_ms >= %(from_ms)s AND r.created_ms < %(until_ms)s
AND (%(kind)s::text = '' OR r.kind = %(kind)s) AND (%(owner)s::text = '' OR r.owner = %(owner)s)
AND left(r.id, 1) <> '_'
ORDER BY r.created_ms DESC, r.id DESC LIMIT %(limit)s

-- name: find_parent
-- Children of one run, newest first. As find, and parent.
SELECT r.created_ms, r.id, row_to_json(r)::text FROM tenure.run r
WHERE r.space = (SELECT s.number FROM tenure.space s WHERE s.name = %(space)s) AND r.parent = %(parent)s AND r.parent <> ''
AND (r.created_ms, r.id) < (%(before_ms)s::bigint, %(before_id)s::text)
AND r.created_ms >= %(from_ms)s AND r.created_ms < %(until_ms)s
AND (%(kind)s::text = '' OR r.kind = %(kind)s) AND (%(owner)s::text = '' OR r.owner = %(owner)s)
AND left(r.id, 1) <> '_'
ORDER BY r.created_ms DESC, r.id DESC LIMIT %(limit)s

-- name: find_status
-- Runs of some statuses, newest first, by one look into the index a status. As find, and statuses.
SELECT d.created_ms, d.id, d.record
FROM tenure.space s CROSS JOIN unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT r.created_ms, r.id, row_to_json(r)::text AS record FROM tenure.run r
    WHERE r.space = s.number AND r.status = wanted.status
    AND (r.created_ms, r.id) < (%(before_ms)s::bigint, %(before_id)s::text)
    AND r.created_ms >= %(from_ms)s AND r.created_ms < %(until_ms)s
    AND (%(kind)s::text = '' OR r.kind = %(kind)s) AND (%(owner)s::text = '' OR r.owner = %(owner)s)
    AND left(r.id, 1) <> '_'
    ORDER BY r.created_ms DESC, r.id DESC LIMIT %(limit)s
) AS d
WHERE s.name = %(space)s ORDER BY d.created_ms DESC, d.id DESC LIMIT %(limit)s

-- name: put_beat
-- A worker's row; those that have expired go. name, ttl_ms, data.
WITH now AS (
    SELECT s.number, tenure.now_us_1(%(test_us)s) / 1000 AS ms FROM tenure.space s WHERE s.name = %(space)s
), gone AS (
    DELETE FROM tenure.beat b USING now WHERE b.space = now.number AND b.until_ms <= now.ms AND b.name <> %(name)s
)
INSERT INTO tenure.beat (space, name, at_ms, until_ms, data)
SELECT now.number, %(name)s, now.ms, now.ms + %(ttl_ms)s::bigint, %(data)s FROM now
ON CONFLICT (space, name) DO UPDATE SET at_ms = excluded.at_ms, until_ms = excluded.until_ms, data = excluded.data

-- name: beats
-- Workers seen lately. Returns (at_ms, data).
SELECT b.at_ms, b.data FROM tenure.beat b JOIN tenure.space s ON s.number = b.space
WHERE s.name = %(space)s AND b.until_ms > tenure.now_us_1(%(test_us)s) / 1000 ORDER BY b.name

-- name: tell_refused
-- A refused write. data.
INSERT INTO tenure.refused (space, at_ms, data)
SELECT s.number, tenure.now_us_1(%(test_us)s) / 1000, %(data)s FROM tenure.space s WHERE s.name = %(space)s

-- name: drop_refused
-- Keep the latest refused writes. keep (how many).
DELETE FROM tenure.refused f USING tenure.space s
WHERE s.name = %(space)s AND f.space = s.number AND f.number <= (
    SELECT x.number FROM tenure.refused x WHERE x.space = s.number ORDER BY x.number DESC OFFSET %(keep)s LIMIT 1
)

-- name: refused
-- The latest refused writes. limit; returns (at_ms, data).
SELECT f.at_ms, f.data FROM tenure.refused f JOIN tenure.space s ON s.number = f.space
WHERE s.name = %(space)s ORDER BY f.number DESC LIMIT %(limit)s

-- name: wake
-- Wake who listens. channel, topic.
SELECT pg_notify(%(channel)s::text, %(topic)s::text)

-- name: set_salt
-- Give the namespace another history. salt.
UPDATE tenure.space SET salt = %(salt)s WHERE name = %(space)s

-- name: lock
-- Wait until nobody else has the row of a run. id.
SELECT r.number FROM tenure.run r JOIN tenure.space s ON s.number = r.space
WHERE s.name = %(space)s AND r.id = %(id)s FOR UPDATE OF r

-- name: row_digest
-- The digest of one commit, and when it landed. id, seq; returns (digest, at_ms), or nothing.
SELECT j.digest, j.at_ms
FROM tenure.space s JOIN tenure.run r ON r.space = s.number JOIN tenure.journal j ON j.run = r.number
WHERE s.name = %(space)s AND r.id = %(id)s AND j.seq = %(seq)s
