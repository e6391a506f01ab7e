#!lua flags=allow-oom
-- Remove every trace of a run that has ended; it frees memory, so it goes on when memory is full.
--
-- KEYS[3] record, [4] log, [5] inbox, [6] blobs, [7] names of large payloads, [8] due index, [9..11] the status indexes of
-- completed, failed, cancelled; [12..] the keys of large payloads
-- ARGV[4] id, [5] its kind (for the due index), [6..] the names that KEYS[12..] go by
-- Returns an answer; {'again', 'kind', kind} or {'again', 'large'} where other keys have to be named.

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local statuses = {completed = KEYS[9], failed = KEYS[10], cancelled = KEYS[11]}
local run, broken, flat = load(KEYS[3], ARGV[4])
-- A record that has ended may go even if it cannot be read: its parts hold nothing that anybody could still use.
local function ended_though_broken()
  local got = {}
  for i = 1, #flat, 2 do got[flat[i]] = flat[i + 1] end
  return TERMINAL[got.status] and got.id == ARGV[4] and is_number(got.token) and got.kind and got.priority and got
end
if broken == 'corrupt' then run = ended_though_broken() end
if broken and not run then return refused(broken, f, flat) end
if not run then
  call('HSET', KEYS[1], 'touch', text(f.us))
  return {'already', '', text(f.us), {}, ''}
end
if not TERMINAL[run.status] then return refused('status', f, flat_of(run)) end
if run.kind ~= ARGV[5] then return {'again', 'kind', run.kind} end
local good = read('ZCARD', KEYS[8]) and read('ZCARD', statuses[run.status])
local count = read('SCARD', KEYS[7])
if not good or not count then return refused('corrupt', f, flat_of(run)) end
local names_hold = count == #ARGV - 5
for i = 6, #ARGV do names_hold = names_hold and call('SISMEMBER', KEYS[7], ARGV[i]) == 1 end
if not names_hold then return {'again', 'large'} end

for i = 3, 7 do call('UNLINK', KEYS[i]) end
for i = 12, #KEYS do call('UNLINK', KEYS[i]) end
call('ZREM', KEYS[8], member(run))
call('ZREM', statuses[run.status], run.id)
call('HSET', KEYS[1], 'floor', text(max(f.floor, run.token)))
return {'landed', '', text(f.us), {}, ''}
