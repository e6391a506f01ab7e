#!lua
-- Append one commit to a run under its grant, with everything that becomes true with it.
--
-- KEYS[3] record, [4] log; where there is a rest also [5] names of large payloads, [6] blobs, [7] inbox, [8] due index,
-- [9] status index of running, [10] of the status after; [11..] (waiting, lasting) keys of large payloads. Where the rest
-- is 'big', [5] as there and [6], [7] the (waiting, lasting) keys of the body
-- ARGV[4] id, [5] token, [6] nonce, [7] epoch, [8] ttl in ms; the row: [9] seq, [10] digest, [11] mark of the grant,
-- [12] body ('' if staged); [13] digest of the row before, [14] how many steps end here, [15] the rest: '' for none, 'big'
-- for a large body and nothing else, or JSON of texts: kind, status, base, failures, consume, inbox_seq, requests, wants,
-- tags, due_in, due_at, outcome, large (names for KEYS[11..]), blobs (digests for ARGV[16..]); [16..] blobs
-- Returns 'landed <now in us>', or an answer; {'again', 'kind', kind} where the due index named is another's.

-- At a glance, because nearly every commit comes by here: a clock, a history and a record that are as the holder left them.
-- What does not pass is judged by the law below, which reads everything anew; nothing is written by then.
local big = ARGV[15] == 'big'
if ARGV[15] == '' or big then
  local call, format = redis.call, string.format
  local us, native, seq = tonumber(ARGV[1]), ARGV[2], ARGV[9]
  if not us then
    local time = call('TIME')
    us = time[1] * 1000000 + time[2]
  end
  if native == '' then native = string.match(call('INFO', 'replication'), 'master_replid:(%x+)') end
  local salt, ms = call('HGET', KEYS[1], 'salt'), math.floor(us / 1000)
  local got = redis.pcall('HMGET', KEYS[3], 'id', 'token', 'nonce', 'epoch', 'status', 'head', 'last_seq', 'crashes',
    'lease_until_ms', 'version', 'step')
  if salt and got[1] == ARGV[4] and got[2] == ARGV[5] and got[3] == ARGV[6] and got[4] == ARGV[7]
      and got[4] == native .. '.' .. salt and got[5] == 'running' and got[6] == ARGV[13]
      and got[7] == format('%.0f', seq - 1) and got[8] == '0' and got[9] and got[10] and got[11]
      and string.find(got[9] .. ' ' .. got[10] .. ' ' .. got[11], '^%d+ %d+ %d+$') and tonumber(got[9]) > ms
      and redis.pcall('LLEN', KEYS[4]) == seq - 1
      and (not big or (type(redis.pcall('SCARD', KEYS[5])) == 'number' and call('EXISTS', KEYS[6]) == 1
        and call('EXISTS', KEYS[7]) == 0)) then
    local now = format('%.0f', ms)
    local body = big and ' big\n' or '\n' .. ARGV[12]
    call('RPUSH', KEYS[4], ARGV[10] .. ' ' .. ARGV[5] .. ' ' .. ARGV[11] .. ' ' .. now .. body)
    if big then
      call('RENAME', KEYS[6], KEYS[7])
      call('PERSIST', KEYS[7])
      call('SADD', KEYS[5], seq)
    end
    call('HSET', KEYS[3], 'last_seq', seq, 'head', ARGV[10], 'step', format('%.0f', got[11] + ARGV[14]), 'updated_ms', now,
      'lease_until_ms', format('%.0f', ms + ARGV[8]), 'version', format('%.0f', got[10] + 1))
    return 'landed ' .. format('%.0f', us)
  end
end

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local digest, seq = ARGV[10], tonumber(ARGV[9])
local rest = big and {large = {ARGV[9]}, blobs = {}, consume = {}} or ARGV[15] ~= '' and cjson.decode(ARGV[15]) or nil
local first = big and 6 or 11

local run, broken, flat = load(KEYS[3], ARGV[4])
if broken then return refused(broken, f, flat) end
if not run then return refused('absent', f) end
local length = read('LLEN', KEYS[4])
if length and seq > 0 and seq <= length
    and sub(call('LINDEX', KEYS[4], seq - 1), 1, #digest + 1) == digest .. ' ' then
  return already(KEYS[3], run, f)
end

local why = foreign(run, ARGV[5], ARGV[6], ARGV[7], f)
if not why and (text(seq - 1) ~= run.last_seq or ARGV[13] ~= run.head) then why = 'sequence' end
if not why and rest and rest.inbox_seq and rest.inbox_seq ~= run.inbox_seq then why = 'inbox' end
if not why and length ~= seq - 1 then why = 'corrupt' end
local consumed = {}
if not why and rest then
  local moves = rest.status and rest.status ~= run.status
  if moves and run.kind ~= rest.kind then return {'again', 'kind', run.kind} end
  local good = (not moves or (read('ZCARD', KEYS[8]) and read('ZCARD', KEYS[9]) and read('ZCARD', KEYS[10])))
    and (#rest.blobs == 0 or read('HLEN', KEYS[6]))
    and (#rest.consume == 0 or text(read('HLEN', KEYS[7]) or -1) == run.inbox_seq)
  why = not good and 'corrupt' or unready(first, rest.large, KEYS[5])
  for _, item in ipairs(why and {} or rest.consume) do
    local stored = call('HGET', KEYS[7], item)
    local digest_seq_at, ask_name = match(stored or '', '^(%S+ %d+ %d+) %a+ (%a+ [^\n]*)\n')
    if stored and not digest_seq_at then why = 'corrupt' end
    if stored then consumed[item] = (digest_seq_at or '') .. ' consumed ' .. (ask_name or '') .. '\n' end
  end
end
if why then return refused(why, f, flat_of(run)) end

local is_staged = rest and rest.large[1] == ARGV[9]
call('RPUSH', KEYS[4], row_of(digest, ARGV[5], ARGV[11], f, ARGV[12], is_staged))
local after = after_change(run, f)
after.last_seq, after.head = ARGV[9], digest
if ARGV[14] ~= '0' then
  after.step, after.crashes = text(run.step + ARGV[14]), '0'
end
after.lease_until_ms = text(f.ms + ARGV[8])
if rest then
  keep(first, rest.large, KEYS[5])
  for i, name in ipairs(rest.blobs) do call('HSET', KEYS[6], name, ARGV[15 + i]) end
  for item, stored in pairs(consumed) do call('HSET', KEYS[7], item, stored) end
  for _, name in ipairs({'failures', 'requests', 'wants', 'tags', 'outcome'}) do
    if rest[name] then after[name] = rest[name] end
  end
  if rest.base then after.base_seq = ARGV[9] end
  if rest.status then
    after.grants = closed(after, f, rest.status, '', '')
    after.status, after.owner = rest.status, ''
    after.lease_until_ms = text(min(run.lease_until_ms, f.ms))
    after.due_ms = rest.due_in and text(f.ms + rest.due_in) or rest.due_at or ''
  end
end
save(KEYS[3], after)
if rest and rest.status and rest.status ~= run.status then
  place(KEYS[8], run, after)
  list({running = KEYS[9], [rest.status] = KEYS[10]}, run, after)
end
return 'landed ' .. text(f.us)
