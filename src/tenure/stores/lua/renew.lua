#!lua flags=allow-oom
-- Extend the live leases of many runs to now + ttl. It grows nothing, so it goes on when memory is full.
--
-- KEYS[3..] the record of each run
-- ARGV[4] what the longest ttl is raised to, '' to leave it; [5..] for each run: id, token, nonce, epoch, ttl in ms
-- Returns {now in us, epoch, since in ms, '1' if an acknowledged grant may be missing, longest ttl, floor, answer, ..}:
-- an answer is 'landed' or a refusal; with no run at all it only says what the store knows.

-- include head.lua

local f = look()
if not f then return {'again', 'meta'} end
if ARGV[4] ~= '' and tonumber(ARGV[4]) > f.max_ttl_ms then
  f.max_ttl_ms = tonumber(ARGV[4])
  call('HSET', KEYS[1], 'max_ttl_ms', ARGV[4])
end
local answers = {text(f.us), f.epoch, text(f.since_ms), f.lossy and '1' or '0', text(f.max_ttl_ms), f.floor}

-- At a glance, because a thousand of them hold everybody up; who does not pass is judged by the law, in its order.
local K, A, pcall, epoch, ms = KEYS, ARGV, redis.pcall, f.epoch, f.ms
local untils, left = {}, {} -- untils: by ttl, nearly all have the same
for i = 3, #K do
  local at = 5 * i - 10
  local got = pcall('HMGET', K[i], 'nonce', 'token', 'epoch', 'status', 'lease_until_ms')
  if got[1] == A[at + 2] and got[2] == A[at + 1] and got[3] == epoch and A[at + 3] == epoch and got[4] == 'running'
      and (tonumber(got[5]) or 0) > ms then
    local ttl_ms = A[at + 4]
    local until_ms = untils[ttl_ms]
    if not until_ms then
      until_ms = text(ms + ttl_ms)
      untils[ttl_ms] = until_ms
    end
    call('HSET', K[i], 'lease_until_ms', until_ms)
    answers[i + 4] = 'landed'
  else
    left[#left + 1] = i
    answers[i + 4] = false
  end
end
if #left == 0 then return answers end

-- include law.lua

local function renewed(key, id, token, nonce, epoch, ttl_ms)
  local got = read('HMGET', key, 'id', 'token', 'nonce', 'epoch', 'status', 'lease_until_ms')
  if not got then return refused('corrupt', f) end
  if not got[1] and call('EXISTS', key) == 0 then return refused('absent', f) end
  local run = {token = got[2], nonce = got[3], epoch = got[4], status = got[5], lease_until_ms = got[6]}
  if got[1] ~= id or not (got[2] and got[3] and got[4] and got[5] and is_number(got[6])) then
    return refused('corrupt', f, call('HGETALL', key))
  end
  local why = foreign(run, token, nonce, epoch, f)
  if why then return refused(why, f, call('HGETALL', key)) end
  call('HSET', key, 'lease_until_ms', text(f.ms + ttl_ms))
  return 'landed'
end

for _, i in ipairs(left) do
  local at = 5 * i - 10
  answers[i + 4] = renewed(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return answers
