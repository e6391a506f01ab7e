#!lua
-- What is rare and needs no payload of its own: reattach, post, end and repair of one run.
--
-- KEYS[3] record, [4] inbox, [5] due index, [6] kinds, [7..13] the status indexes of queued, running, suspended,
-- quarantined, completed, failed, cancelled, [14] the due index of a stray entry
-- ARGV[4] which, [5] id, [6] its kind (for the due index), then
--   reattach: [7] token, [8] nonce, [9] epoch, [10] ttl in ms, [11] new nonce, [12] seq, [13] head, [14] flying or ''
--   post:     [7] item, [8] digest, [9] ask, [10] name, [11] digest decided on, [12] grace in ms or '', [13] body
--   end:      [7] how, [8] token, [9] nonce, [10] reason, [11] by, [12] outcome of a cancellation as JSON
--   repair:   [7] a stray entry of the due index, or ''
-- Returns an answer; {'again', 'kind', kind} where the due index named is another's.

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local which, id, A = ARGV[4], ARGV[5], ARGV
local STATUSES = {'queued', 'running', 'suspended', 'quarantined', 'completed', 'failed', 'cancelled'}
local statuses = {}
for i, status in ipairs(STATUSES) do statuses[status] = KEYS[6 + i] end

local run, broken, flat = load(KEYS[3], id)
if broken then return refused(broken, f, flat) end

-- One table for each change: `already`, `refusal`, `apply`, as the law has them.
local laws = {reattach = {absent = 'history_lost'}, post = {}, ['end'] = {}, repair = {}}

function laws.reattach.already()
  return run.nonce == A[11] and run.epoch == f.epoch and live(run, f) and run.status == 'running'
end

function laws.reattach.refusal()
  if not holds(run, A[7], A[8], A[9]) then return tonumber(run.token) < tonumber(A[7]) and 'history_lost' or 'lost' end
  if run.status ~= 'running' then return status_why(run.status) end
  if not live(run, f) then return 'expired' end
  local told = run.last_seq == A[12] and run.head == A[13]
  local flown = A[14] ~= '' and run.last_seq == text(A[12] + 1) and run.head == A[14]
  return not (told or flown) and 'history_lost' or nil
end

function laws.reattach.apply(after)
  after.grants = closed(after, f, 'reattached')
  grant(after, A[11], run.owner, A[10], f)
end

local item = ''
if which == 'post' then
  item = read('HGET', KEYS[4], A[7])
  if item == nil then return refused('corrupt', f, flat_of(run or {})) end
  item = item or ''
end

function laws.post.already()
  return item ~= '' and sub(item, 1, #A[8] + 1) == A[8] .. ' '
end

function laws.post.refusal()
  if item ~= '' then return 'conflict' end
  if not OPEN[run.status] then return status_why(run.status) end
  if A[9] ~= 'decide' and A[9] ~= 'revoke' then return nil end
  local request = run.requests ~= '' and parts(run.requests)[A[10]] or nil
  if not request or (request[2] ~= '' and tonumber(request[2]) <= f.ms) then return 'request_closed' end
  return request[1] ~= A[11] and 'stale' or nil
end

function laws.post.corrupt()
  return text(read('HLEN', KEYS[4]) or -1) ~= run.inbox_seq
end

function laws.post.apply(after)
  after.inbox_seq = text(run.inbox_seq + 1)
  local head = {A[8], after.inbox_seq, text(f.ms), 'new', A[9], A[10]}
  call('HSET', KEYS[4], A[7], table.concat(head, ' ') .. '\n' .. A[13])
  local cancel = A[9] == 'cancel'
  if cancel and A[12] ~= '' then
    local by_ms = f.ms + A[12]
    after.cancel_by_ms = text(run.cancel_by_ms == '' and by_ms or min(by_ms, run.cancel_by_ms))
  end
  local wanted = cancel
  for _, name in ipairs(run.wants ~= '' and parts(run.wants) or {}) do wanted = wanted or name == A[10] end
  if run.status == 'suspended' and wanted then after.status, after.due_ms, after.wants = 'queued', text(f.ms), '' end
end

local MAKES = {cancel = 'cancelled', evict = 'queued', release = 'queued', quarantine = 'quarantined'}

laws['end'].already = function()
  local how = A[7]
  if MAKES[how] then return run.status == MAKES[how] end
  for line in string.gmatch(run.grants, '[^\n]+') do
    local got = parts(line) or {}
    if got[2] == A[8] and got[6] == how then return true end
  end
  return false
end

laws['end'].refusal = function()
  local how = A[7]
  if how == 'cancel' then return TERMINAL[run.status] and 'closed' or nil end
  if (how == 'evict' or how == 'release') and A[8] ~= run.token then return 'moved' end
  if run.status ~= (how == 'release' and 'quarantined' or 'running') then return status_why(run.status) end
  local by_holder = how == 'forfeit' or how == 'yield' or how == 'quarantine'
  return by_holder and (A[8] ~= run.token or A[9] ~= run.nonce) and 'lost' or nil
end

local BACK_OFF_MS = {0, 1000, 4000, 16000, 60000}

laws['end'].apply = function(after)
  local how, now = A[7], text(f.ms)
  if how == 'cancel' then
    after.grants = closed(after, f, how)
    after.status, after.outcome, after.due_ms, after.wants = 'cancelled', A[12], '', ''
  else
    after.grants = closed(after, f, how, A[10], A[11])
  end
  if how == 'evict' or how == 'yield' then after.status, after.due_ms = 'queued', now end
  if how == 'forfeit' then after.due_ms = text(f.ms + BACK_OFF_MS[min(tonumber(run.crashes), 4) + 1]) end
  if how == 'quarantine' then after.status, after.due_ms = 'quarantined', '' end
  if how == 'release' then after.status, after.crashes, after.due_ms = 'queued', '0', now end
  ungrant(after, f)
end

local function stretched()
  return run.status == 'running' and run.lease_until_ms - f.ms > tonumber(run.granted_ttl_ms)
end

-- Not due, though it has been due before: the clock was set back.
local function postponed()
  local due = tonumber(run.due_ms)
  if not due or due <= f.ms then return false end
  if run.status == 'running' then return due - f.ms > (run.nonce == '' and BACK_OFF_MS[#BACK_OFF_MS] or 0) end
  return due <= tonumber(run.updated_ms)
end

function laws.repair.already()
  if A[7] ~= '' or stretched() or postponed() or run.kind ~= A[6] then return false end
  local entry = read('ZSCORE', KEYS[5], member(run))
  return entry ~= nil and (tonumber(entry or '') == tonumber(due_at(run) or ''))
end

function laws.repair.refusal()
  return nil
end

function laws.repair.apply(after)
  if stretched() then after.lease_until_ms = text(f.ms + run.granted_ttl_ms) end
  if postponed() then after.due_ms = text(f.ms) end
  if A[7] ~= '' then call('ZREM', KEYS[14], A[7]) end -- `place` puts it back if it is the record's own
  if sub(id, 1, 1) == '_' then return end
  call('SADD', KEYS[6], run.kind)
  for status, key in pairs(statuses) do
    if status ~= run.status then call('ZREM', key, id) end
  end
  call('ZADD', statuses[run.status], run.created_ms, id)
end

local law = laws[which]
local good = read('ZCARD', KEYS[5]) and read('SCARD', KEYS[6]) and read('ZCARD', KEYS[14])
for _, status in ipairs(STATUSES) do good = good and read('ZCARD', statuses[status]) end
if not run then
  if which ~= 'repair' then return refused(law.absent or 'absent', f) end
  if not good then return refused('corrupt', f) end
  if A[7] ~= '' then call('ZREM', KEYS[14], A[7]) end
  return {'landed', '', text(f.us), {}, ''}
end
if law.already() then return already(KEYS[3], run, f) end
local why = law.refusal()
if why then return refused(why, f, flat_of(run), item) end
-- A post that wakes nobody need not move the entry, so it lands at once even if the caller did not know the kind.
local moves = run.kind == A[6]
if not moves and (which ~= 'post' or run.status == 'suspended') then return {'again', 'kind', run.kind} end
if not good or not statuses[run.status] or (law.corrupt and law.corrupt()) then
  return refused('corrupt', f, flat_of(run), item)
end
local after = after_change(run, f)
-- A run that is left to wait as it does has been due all the same when the clock is set back.
if which == 'post' or which == 'repair' then after.updated_ms = text(max(run.updated_ms, f.ms)) end
law.apply(after)
save(KEYS[3], after)
if moves then place(KEYS[5], run, after) end
list(statuses, run, after)
return {'landed', '', text(f.us), flat_of(run, after), ''}
