#!lua
-- Take the leases of many runs that are due, each by its name and decided alone.
--
-- KEYS[3..6] the status indexes of queued, running, suspended, quarantined; then for each run its record and due index
-- ARGV[4] how many terms there are; for each: owner, ttl in ms, kinds and code versions ('' for any, else one a line
-- between line breaks), own code version, schema, '1' if alone, '1' if a takeover counts as a crash, max crashes; then for
-- each run: id, its kind (for the due index), nonce, token as found or '', the number of its terms from 1 on
-- Returns one answer for each run; {'again', 'kind', kind} where the due index named is another's. One that landed is one
-- text, because many small ones cost more than all the rest: 'landed', now in us, and the values of the record in the order
-- in which they are read below, with a NUL between them (no text of a record has one).

-- include head.lua

local f = look()
if not f then return {'again', 'meta'} end
local TERMS = 9
local concat, now, now_us = table.concat, text(f.ms), text(f.us)
local statuses = {queued = KEYS[3], running = KEYS[4], suspended = KEYS[5], quarantined = KEYS[6]}
local indexes_sound, due_sound = true, {}
for i = 3, 6 do indexes_sound = indexes_sound and read('ZCARD', KEYS[i]) ~= nil end
for i = 8, #KEYS, 2 do
  if due_sound[KEYS[i]] == nil then due_sound[KEYS[i]] = read('ZCARD', KEYS[i]) ~= nil end
end

local terms, first = {}, 5 + TERMS * ARGV[4]
for at = 5, first - 1, TERMS do
  terms[#terms + 1] = {
    owner = ARGV[at], ttl_ms = ARGV[at + 1], kinds = ARGV[at + 2], code_versions = ARGV[at + 3],
    code_version = ARGV[at + 4], schema = ARGV[at + 5], alone = ARGV[at + 6], blame = ARGV[at + 7],
    max_crashes = ARGV[at + 8], until_ms = text(f.ms + ARGV[at + 1]),
    good = not find(ARGV[at], '[%z\1-\31"\\]') and (f.max_ttl_ms == 0 or tonumber(ARGV[at + 1]) <= f.max_ttl_ms),
  }
end

local function offers(names, name)
  return names == '' or find(names, '\n' .. name .. '\n', 1, true) ~= nil
end

local function values_at(key)
  return redis.pcall('HMGET', key, 'schema', 'version', 'attempt', 'crashes', 'failures', 'granted_ttl_ms',
    'lease_until_ms', 'step', 'last_seq', 'base_seq', 'inbox_seq', 'touch', 'created_ms', 'updated_ms', 'due_ms',
    'token', 'priority', 'cancel_by_ms', 'id', 'kind', 'code_version', 'nonce', 'epoch', 'owner', 'head', 'parent',
    'input_digest', 'status', 'requests', 'wants', 'tags', 'outcome', 'grants')
end

-- At a glance: a run that waits for its first lease, or was never held up, in a record without anything rare. What does
-- not pass is judged by the law below, which reads it anew.
local NUMBERS = '^' .. string.rep('%d+ ', 16) .. '%-?%d+ $' -- the eighteenth, when a cancelled run ends, is empty
local may_be_anybodys = not f.lossy or f.ms >= f.since_ms + f.max_ttl_ms
local left, gone, come, moved = {}, {}, {}, {queued = {}, suspended = {}, created = {}}

local function landed(values)
  return 'landed\0' .. now_us .. '\0' .. concat(values, '\0')
end

local function is_object(json)
  local good, found = pcall(cjson.decode, json)
  return good and type(found) == 'table'
end

local function plain(got, id, kind, nonce, token, t)
  local whole, numbers = pcall(concat, got, ' ', 1, 18) -- fails where one is missing
  return whole and find(numbers, NUMBERS) and #got[2] < 16 and tonumber(got[16]) <= 9007199254740992 and #got[17] < 16
    and got[21] and got[22] and got[23] and got[24] and got[25] and got[26] and got[27]
    and t.good and got[19] == id and got[20] == kind and got[22] ~= nonce and (token == '' or token == got[16])
    and (got[28] == 'queued' or got[28] == 'suspended') and tonumber(got[15]) <= f.ms
    and (may_be_anybodys or got[23] == f.epoch) and offers(t.kinds, kind) and offers(t.code_versions, got[21])
    and tonumber(got[1]) <= min(t.schema, SCHEMA) and (t.alone == '1' or got[4] == '0') and sub(id, 1, 1) ~= '_'
    and got[29] == '' and got[30] == '' and (got[31] == '' or is_object(got[31])) and got[32] == '' and got[33] == ''
end

local function taken(key, due_key, got, nonce, t)
  local id, was, token = got[19], got[28], f.us > tonumber(got[16]) and now_us or text(got[16] + 1)
  local removed, added = gone[due_key] or {}, come[due_key] or {}
  gone[due_key], come[due_key] = removed, added
  removed[#removed + 1] = id .. ' ' .. got[16] .. ' ' .. got[17]
  added[#added + 1], added[#added + 2] = t.until_ms, id .. ' ' .. token .. ' ' .. got[17]
  moved[was][#moved[was] + 1] = id
  moved.created[#moved.created + 1], moved.created[#moved.created + 2] = got[13], id
  got[2], got[14], got[16], got[22], got[23], got[24] = text(got[2] + 1), now, token, nonce, f.epoch, t.owner
  got[6], got[7], got[28] = t.ttl_ms, t.until_ms, 'running'
  if t.code_version ~= '' then got[21] = t.code_version end
  got[33] = '["1","' .. token .. '","' .. t.owner .. '","' .. now .. '","0","","0","",""]'
  call('HSET', key, 'version', got[2], 'updated_ms', now, 'token', token, 'nonce', nonce, 'epoch', f.epoch, 'owner', t.owner,
    'granted_ttl_ms', t.ttl_ms, 'lease_until_ms', t.until_ms, 'status', 'running', 'code_version', got[21],
    'grants', got[33])
  return landed(got)
end

local answers = {}
for i = 7, #KEYS, 2 do
  local number, at = (i - 5) / 2, first + 5 * (i - 7) / 2
  local got, t = values_at(KEYS[i]), terms[tonumber(ARGV[at + 4])]
  if indexes_sound and due_sound[KEYS[i + 1]]
      and plain(got, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], t) then
    answers[number] = taken(KEYS[i], KEYS[i + 1], got, ARGV[at + 2], t)
  else
    left[#left + 1], answers[number] = number, false
  end
end
for due_key, removed in pairs(gone) do
  call('ZREM', due_key, unpack(removed))
  call('ZADD', due_key, unpack(come[due_key]))
end
for _, status in ipairs({'queued', 'suspended'}) do
  if #moved[status] > 0 then call('ZREM', statuses[status], unpack(moved[status])) end
end
if #moved.created > 0 then call('ZADD', statuses.running, unpack(moved.created)) end
if #left == 0 then return answers end

-- include law.lua

local function unclaimable(run, c)
  if run.nonce == c.nonce then
    return live(run, f) and run.epoch ~= f.epoch and 'history' or 'lost'
  end
  if f.max_ttl_ms ~= 0 and tonumber(c.ttl_ms) > f.max_ttl_ms then return 'ttl' end
  if not OPEN[run.status] then return status_why(run.status) end
  if run.status == 'running' and live(run, f) then return 'held' end
  if run.due_ms == '' or tonumber(run.due_ms) > f.ms then
    return run.status == 'suspended' and 'suspended' or 'not_due'
  end
  if c.token ~= '' and c.token ~= run.token then return 'moved' end
  if run.epoch ~= f.epoch and f.lossy and f.ms < f.since_ms + f.max_ttl_ms then return 'grace' end
  if not offers(c.kinds, run.kind) or not offers(c.code_versions, run.code_version)
      or tonumber(run.schema) > tonumber(c.schema) then
    return 'declined'
  end
  return c.alone ~= '1' and c.crashes > 0 and 'crowded' or nil
end

local function claimed(key, due_key, c)
  local run, broken, flat = load(key, c.id)
  if broken then return refused(broken == 'newer' and 'declined' or broken, f, flat) end
  if not run then return refused('absent', f) end
  local running = run.status == 'running'
  if run.nonce == c.nonce and run.epoch == f.epoch and live(run, f) and running then return already(key, run, f) end
  local blamed = running and c.blame == '1' and run.epoch == f.epoch
  c.crashes = tonumber(run.crashes) + (blamed and 1 or 0)
  local why = unclaimable(run, c)
  if why and why ~= 'held' then return refused(why, f, flat_of(run)) end
  if run.kind ~= c.kind then return {'again', 'kind', run.kind} end
  if not indexes_sound or not due_sound[due_key] then return refused('corrupt', f, flat_of(run)) end
  if why then
    -- The entry was early, because renewals do not move it; now it is moved, or every look would find it again.
    place(due_key, run, run)
    return refused(why, f, flat_of(run))
  end
  local after = after_change(run, f)
  after.grants, after.wants, after.crashes = closed(run, f, 'expired'), '', text(c.crashes)
  local limit = tonumber(c.max_crashes)
  if blamed and limit > 0 and c.crashes >= limit then
    after.status, after.due_ms = 'quarantined', ''
    ungrant(after, f)
  else
    after.status, after.attempt = 'running', text(run.attempt + (running and 1 or 0))
    if c.code_version ~= '' then after.code_version = c.code_version end
    grant(after, c.nonce, c.owner, c.ttl_ms, f)
  end
  save(key, after)
  place(due_key, run, after)
  list(statuses, run, after)
  return landed(values_at(key))
end

for _, number in ipairs(left) do
  local key, at = 5 + 2 * number, first + 5 * (number - 1)
  local c = setmetatable(
    {id = ARGV[at], kind = ARGV[at + 1], nonce = ARGV[at + 2], token = ARGV[at + 3]},
    {__index = terms[tonumber(ARGV[at + 4])]}
  )
  answers[number] = claimed(KEYS[key], KEYS[key + 1], c)
end
return answers
