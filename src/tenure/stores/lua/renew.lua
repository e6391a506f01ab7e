#!lua flags=allow-oom
-- Extend the live leases of many runs to now + ttl. It grows nothing, so it goes on when memory is full.
--
-- KEYS[3..] the record of each run
-- ARGV[4] what the longest ttl is raised to, '' to leave it; [5..] for runs side by side that ask for the same: how many they
-- are, epoch, ttl in ms, and for each: token, nonce
-- Returns 'landed <now in us>' if all landed, as nearly always; otherwise {now in us, epoch, since in ms, '1' if an
-- acknowledged grant may be missing, longest ttl, floor, answer, ..}: an answer is 'landed' or a refusal; with no run at all
-- it only says what the store knows.

-- include head.lua

local f = look()
if not f then return {'again', 'meta'} end
if ARGV[4] ~= '' and tonumber(ARGV[4]) > f.max_ttl_ms then
  f.max_ttl_ms = tonumber(ARGV[4])
  call('HSET', KEYS[1], 'max_ttl_ms', ARGV[4])
end

-- At a glance, because a thousand of them hold everybody up; who does not pass is judged by the law, in its order.
local K, A, ask, epoch, ms = KEYS, ARGV, redis.pcall, f.epoch, f.ms
local left, i, at = {}, 3, 5
local alive -- the end of a lease that is still to come; nearly all have the same
while K[i] do
  local terms, last, theirs, until_ms = at, i + A[at] - 1, A[at + 1], text(ms + A[at + 2])
  at = at + 3
  for n = i, last do
    local got = ask('HMGET', K[n], 'nonce', 'token', 'epoch', 'status', 'lease_until_ms')
    if got[1] == A[at + 1] and got[2] == A[at] and got[3] == epoch and theirs == epoch and got[4] == 'running'
        and (got[5] == alive or (tonumber(got[5]) or 0) > ms) then
      call('HSET', K[n], 'lease_until_ms', until_ms)
      alive = got[5]
    else
      left[#left + 1] = {n, at, terms}
    end
    at = at + 2
  end
  i = last + 1
end
if #left == 0 and i > 3 then return 'landed ' .. text(f.us) end
local answers = {text(f.us), epoch, text(f.since_ms), f.lossy and '1' or '0', text(f.max_ttl_ms), f.floor}
for n = 3, #K do answers[n + 4] = 'landed' end
if #left == 0 then return answers end

-- include law.lua

local function renewed(key, token, nonce, epoch, ttl_ms)
  local got = read('HMGET', key, 'id', 'token', 'nonce', 'epoch', 'status', 'lease_until_ms')
  if not got then return refused('corrupt', f) end
  if not got[1] and call('EXISTS', key) == 0 then return refused('absent', f) end
  local run = {token = got[2], nonce = got[3], epoch = got[4], status = got[5], lease_until_ms = got[6]}
  local id = sub(key, #KEYS[1] + 1) -- before it stands 'run:', where that key has 'meta'
  if got[1] ~= id or not (got[2] and got[3] and got[4] and got[5] and is_number(got[6])) then
    return refused('corrupt', f, call('HGETALL', key))
  end
  local why = foreign(run, token, nonce, epoch, f)
  if why then return refused(why, f, call('HGETALL', key)) end
  call('HSET', key, 'lease_until_ms', text(f.ms + ttl_ms))
  return 'landed'
end

for _, one in ipairs(left) do
  local n, at, terms = unpack(one)
  answers[n + 4] = renewed(K[n], A[at], A[at + 1], A[terms + 1], A[terms + 2])
end
return answers
