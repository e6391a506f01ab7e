-- name: file_facts
-- The facts of the file. No arguments; returns (schema, salt, boot, offset_us, ceiling_us, since_ms).
SELECT schema, salt, boot, offset_us, ceiling_us, since_ms FROM file;

-- name: insert_file
-- Found the file's history. schema, salt, boot, offset_us, ceiling_us, since_ms; returns nothing.
INSERT INTO file (one, schema, salt, boot, offset_us, ceiling_us, since_ms) VALUES (1, ?, ?, ?, ?, ?, ?);

-- name: bind_boot
-- Bind store time to this boot. boot, offset_us, since_ms; returns nothing.
UPDATE file SET boot = ?, offset_us = ?, since_ms = ?;

-- name: set_salt
-- Give the file another history. salt, since_ms; returns nothing.
UPDATE file SET salt = ?, since_ms = ?;

-- name: raise_ceiling
-- Promise that no time given out is later. ceiling_us; returns nothing.
UPDATE file SET ceiling_us = ?;

-- name: ring_bell
-- Change the file, so that other processes look. No arguments; returns nothing.
UPDATE file SET bell = bell + 1;

-- name: insert_space
-- Make sure of a namespace. name; returns nothing.
INSERT OR IGNORE INTO space (name) VALUES (?);

-- name: facts
-- What the deciding step must know. name of the namespace;
-- returns (schema, salt, boot, offset_us, ceiling_us, since_ms, number, floor, max_ttl_ms).
SELECT f.schema, f.salt, f.boot, f.offset_us, f.ceiling_us, f.since_ms, s.number, s.floor, s.max_ttl_ms
FROM space AS s CROSS JOIN file AS f WHERE s.name = ?;

-- name: raise_ttl
-- Raise the longest lease. max_ttl_ms, number of the namespace; returns nothing.
UPDATE space SET max_ttl_ms = max(max_ttl_ms, ?) WHERE number = ?;

-- name: raise_floor
-- Raise the floor of tokens. token, number of the namespace; returns nothing.
UPDATE space SET floor = max(floor, ?) WHERE number = ?;
