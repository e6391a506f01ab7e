#!lua
-- Queue a new run, with its first commit and the blobs that this names.
--
-- KEYS[3] record, [4] log, [5] names of large payloads, [6] blobs, [7] inbox, [8] due index, [9] kinds, [10] status index
-- of queued; [11..] (waiting, lasting) keys of large payloads
-- ARGV[4] id, [5] the record as JSON of texts (without what the store knows), [6] 'in', 'at' or '' and [7] when it is due
-- in ms; the row: [8] digest or '' for none, [9] body ('' if staged); [10] names for KEYS[11..] as JSON, [11] digests for
-- ARGV[12..] as JSON; [12..] blobs
-- Returns an answer.

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local id, run, digest = ARGV[4], cjson.decode(ARGV[5]), ARGV[8]
local large, blobs = cjson.decode(ARGV[10]), cjson.decode(ARGV[11])

local before, broken, flat = load(KEYS[3], id)
if broken then return refused(broken, f, flat) end
if before then
  if before.kind == run.kind and before.input_digest == run.input_digest then return already(KEYS[3], before, f) end
  return refused('conflict', f, flat_of(before))
end
-- A part without its record is what somebody's hand left: it is not taken for this run's.
local good = read('LLEN', KEYS[4]) == 0 and read('SCARD', KEYS[5]) == 0 and read('HLEN', KEYS[6]) == 0
  and read('HLEN', KEYS[7]) == 0 and read('ZCARD', KEYS[8]) and read('SCARD', KEYS[9]) and read('ZCARD', KEYS[10])
local why = not good and 'corrupt' or unready(11, large, KEYS[5])
if why then return refused(why, f) end

run.token, run.epoch, run.created_ms, run.updated_ms = f.floor, f.epoch, text(f.ms), text(f.ms)
if ARGV[6] == 'in' then
  run.due_ms = text(f.ms + ARGV[7])
elseif ARGV[6] == 'at' then
  run.due_ms = ARGV[7]
end
save(KEYS[3], run)
if digest ~= '' then call('RPUSH', KEYS[4], row_of(digest, '0', '-', f, ARGV[9], large[1] == run.last_seq)) end
keep(11, large, KEYS[5])
for i, name in ipairs(blobs) do call('HSET', KEYS[6], name, ARGV[11 + i]) end
if sub(id, 1, 1) ~= '_' then
  call('SADD', KEYS[9], run.kind)
  call('ZADD', KEYS[10], run.created_ms, id)
  place(KEYS[8], run, run)
end
return {'landed', '', text(f.us), flat_of(run), ''}
