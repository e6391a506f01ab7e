#!lua
-- Bring in a whole run, whose journal, inbox and blobs wait under expiring keys; nobody holds it afterwards.
--
-- KEYS[3] record, [4] log, [5] names of large payloads, [6] blobs, [7] inbox, [8] due index, [9] kinds, [10] status index
-- of the status after; waiting: [11] log, [12] inbox, [13] blobs; [14..] (waiting, lasting) keys of large payloads
-- ARGV[4] id, [5] the record as carried, as JSON of texts, [6] digest of all that is brought in, [7] the salt that the store
-- gets; how many wait: [8] rows, [9] items, [10] small blobs; [11] names for KEYS[14..] as JSON
-- Returns an answer; 'staged' where not everything waits.

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local id, run, large = ARGV[4], cjson.decode(ARGV[5]), cjson.decode(ARGV[11])

local before, broken, flat = load(KEYS[3], id)
if broken then return refused(broken, f, flat) end
if before then
  for line in string.gmatch(before.grants, '[^\n]+') do
    local got = parts(line) or {}
    if got[6] == 'imported' and got[8] == ARGV[6] then return already(KEYS[3], before, f) end
  end
  return refused('conflict', f, flat_of(before))
end
-- A part without its record is what somebody's hand left: it is not taken for this run's.
local good = read('LLEN', KEYS[4]) == 0 and read('SCARD', KEYS[5]) == 0 and read('HLEN', KEYS[6]) == 0
  and read('HLEN', KEYS[7]) == 0 and read('ZCARD', KEYS[8]) and read('SCARD', KEYS[9]) and read('ZCARD', KEYS[10])
if not good then return refused('corrupt', f) end
local waits = text(read('LLEN', KEYS[11]) or -1) == ARGV[8] and text(read('HLEN', KEYS[12]) or -1) == ARGV[9]
  and text(read('HLEN', KEYS[13]) or -1) == ARGV[10]
  and sub(call('LINDEX', KEYS[11], -1) or '', 1, #run.head + 1) == run.head .. ' '
local why = not waits and 'staged' or unready(14, large, KEYS[5])
if why then return refused(why, f) end

if run.status == 'running' then
  run.status, run.due_ms, run.updated_ms = 'queued', text(f.ms), text(f.ms)
end
run.version, run.token, run.lease_until_ms = text(run.version + 1), text(max(f.floor, run.token)), text(f.ms)
run.grants = closed(run, f, 'imported')
grant(run, '', '', '0', f)
run.grants = closed(run, f, 'imported', ARGV[6])
save(KEYS[3], run)
for i, name in ipairs({KEYS[4], KEYS[7], KEYS[6]}) do
  if ARGV[7 + i] ~= '0' then
    call('RENAME', KEYS[10 + i], name)
    call('PERSIST', name) -- a renamed key keeps its expiry
  end
end
keep(14, large, KEYS[5])
call('SADD', KEYS[9], run.kind)
call('ZADD', KEYS[10], run.created_ms, id)
place(KEYS[8], run, run)
call('HSET', KEYS[1], 'floor', text(max(f.floor, run.token)), 'salt', ARGV[7])
-- Another history that lost nothing: holders show that they may go on, and no stranger waits for it.
call('HSET', KEYS[2], 'epoch', match(f.epoch, '^[^.]*') .. '.' .. ARGV[7])
return {'landed', '', text(f.us), flat_of(run), ''}
