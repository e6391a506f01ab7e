-- How a record is read and written, and the law that the scripts share.

local OPEN = {queued = true, running = true, suspended = true}
local TERMINAL = {completed = true, failed = true, cancelled = true}
local GRANTS = 32

local function is_number(value)
  return value and find(value, '^%-?%d+$') and (#value < 16 or math.abs(tonumber(value)) <= 9007199254740992)
end

local function parts(json)
  local good, got = pcall(cjson.decode, json)
  return good and type(got) == 'table' and got or nil
end

local function last_grant(run)
  local at = find(run.grants, '\n[^\n]*$') -- a pattern without a fixed begin would try each place of a long log
  local line = at and sub(run.grants, at + 1) or run.grants
  local got = line ~= '' and parts(line)
  if not got or #got ~= 9 then return nil end
  for i = 1, 9 do
    if type(got[i]) ~= 'string' then return nil end
  end
  return is_number(got[1]) and got or nil, line
end

local FIELDS -- made by the first record that is read whole: a plain commit never needs it

local function fields()
  FIELDS = FIELDS or {
    numbers = {
      'schema', 'version', 'attempt', 'crashes', 'failures', 'token', 'granted_ttl_ms', 'lease_until_ms', 'step',
      'last_seq', 'base_seq', 'inbox_seq', 'priority', 'touch', 'created_ms', 'updated_ms',
    },
    optional = {'cancel_by_ms', 'due_ms'},
    texts = {'kind', 'code_version', 'nonce', 'epoch', 'owner', 'head', 'parent', 'input_digest', 'status'},
    parts = {'requests', 'wants', 'tags', 'outcome', 'grants'},
  }
  return FIELDS
end

local function sound(run, id)
  if run.id ~= id then return false end
  for _, name in ipairs(fields().numbers) do
    if not is_number(run[name]) then return false end
  end
  for _, name in ipairs(fields().optional) do
    if run[name] ~= '' and not is_number(run[name]) then return false end
  end
  for _, name in ipairs(fields().texts) do
    if not run[name] then return false end
  end
  for _, name in ipairs(fields().parts) do
    local value = run[name]
    if not value or (value ~= '' and name ~= 'grants' and not parts(value)) then return false end
  end
  for _, request in pairs(run.requests ~= '' and parts(run.requests) or {}) do
    local good = type(request) == 'table' and type(request[1]) == 'string' and type(request[2]) == 'string'
    if not good then return false end
  end
  return run.grants == '' or last_grant(run) ~= nil
end

-- The record of a run, nil if there is none; and, where it is none for us, 'corrupt' or 'newer' and what is there.
local function load(key, id)
  local flat = read('HGETALL', key)
  if not flat then return nil, 'corrupt', {} end
  if #flat == 0 then return nil, false end
  local run = {}
  for i = 1, #flat, 2 do run[flat[i]] = flat[i + 1] end
  if is_number(run.schema) and tonumber(run.schema) > SCHEMA then return nil, 'newer', flat end
  if not sound(run, id) then return nil, 'corrupt', flat end
  return run, false
end

-- The record as it will be: what is set goes to `save`, what is not is read from what was found.
local function after_change(run, f)
  local after = setmetatable({}, {__index = run})
  after.version = text(run.version + 1)
  after.updated_ms = text(f.ms)
  return after
end

local function save(key, after)
  local flat = {}
  for name, value in pairs(after) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  call('HSET', key, unpack(flat))
end

local function flat_of(run, after)
  local flat = {}
  for name, value in pairs(run) do
    flat[#flat + 1] = name
    flat[#flat + 1] = after and after[name] or value
  end
  return flat
end

local function refused(why, f, flat, item)
  return {why == 'history' and 'history' or 'refused', why, text(f.us), flat or {}, item or ''}
end

-- A request made again leaves a mark, so that waiting for replicas after it means something.
local function already(key, run, f)
  local touch = text(run.touch + 1)
  call('HSET', key, 'touch', touch)
  return {'already', '', text(f.us), flat_of(run, {touch = touch}), ''}
end

-- ------------------------------------------------------------------------------------------------ the law

local function later(token, f)
  return text(max(token + 1, f.us))
end

local function live(run, f)
  return tonumber(run.lease_until_ms) > f.ms
end

local function status_why(status)
  if TERMINAL[status] then return 'closed' end
  return (status == 'quarantined' or status == 'suspended') and status or 'status'
end

local function holds(run, token, nonce, epoch)
  return run.token == token and run.nonce == nonce and run.epoch == epoch
end

local function foreign(run, token, nonce, epoch, f)
  if not holds(run, token, nonce, epoch) then return 'lost' end
  if run.epoch ~= f.epoch then return 'history' end
  if run.status ~= 'running' then return status_why(run.status) end
  return not live(run, f) and 'expired' or nil
end

local function json_of(texts)
  local escapes = {['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t', ['\b'] = '\\b', ['\f'] = '\\f'}
  local quoted = {}
  for i, value in ipairs(texts) do
    quoted[i] = '"' .. string.gsub(value, '[%z\1-\31"\\]', function(c)
      return escapes[c] or format('\\u%04x', string.byte(c))
    end) .. '"'
  end
  return '[' .. table.concat(quoted, ',') .. ']'
end

-- The grant log with its last line ended, or, if it had ended, with the reason added: evidence stays.
local function closed(run, f, ended, reason, by)
  if run.grants == '' then return '' end
  local last, line = last_grant(run)
  if last[6] == '' then
    last[5], last[6], last[7] = text(min(run.lease_until_ms, f.ms)), ended, run.step
    last[8], last[9] = reason or '', by or ''
  elseif (reason or '') ~= '' or (by or '') ~= '' then
    local added = ended .. ': ' .. (reason or '')
    last[8] = last[8] == '' and added or last[8] .. '; ' .. added
    if (by or '') ~= '' then last[9] = by end
  end
  return sub(run.grants, 1, #run.grants - #line) .. json_of(last)
end

local function grant(after, nonce, owner, ttl_ms, f)
  local last = last_grant(after)
  local token = later(after.token, f)
  local line = json_of({text((last and last[1] or 0) + 1), token, owner, text(f.ms), '0', '', '0', '', ''})
  local log = after.grants == '' and line or after.grants .. '\n' .. line
  local _, breaks = string.gsub(log, '\n', '')
  for _ = GRANTS, breaks do log = match(log, '^[^\n]*\n(.*)$') end
  after.token, after.nonce, after.epoch, after.owner = token, nonce, f.epoch, owner
  after.granted_ttl_ms, after.lease_until_ms, after.grants = ttl_ms, text(f.ms + ttl_ms), log
end

local function ungrant(after, f)
  after.token, after.nonce, after.owner = later(after.token, f), '', ''
  after.lease_until_ms = text(min(after.lease_until_ms, f.ms))
end

-- ------------------------------------------------------------------------------------------------ the indexes

local function due_at(run)
  if sub(run.id, 1, 1) == '_' or run.due_ms == '' or not OPEN[run.status] then return nil end
  return run.status == 'running' and text(max(run.due_ms, run.lease_until_ms)) or run.due_ms
end

local function member(run)
  return run.id .. ' ' .. run.token .. ' ' .. run.priority
end

local function place(due_key, before, after)
  local old, new, at = member(before), member(after), due_at(after)
  if old ~= new or not at then call('ZREM', due_key, old) end
  if at then call('ZADD', due_key, at, new) end
end

-- `keys` goes from a status to the key of its index.
local function list(keys, before, after)
  if before.status ~= after.status and sub(after.id, 1, 1) ~= '_' then
    call('ZREM', keys[before.status], after.id)
    call('ZADD', keys[after.status], after.created_ms, after.id)
  end
end

-- ------------------------------------------------------------------------------------------------ payloads

-- Large payloads wait under expiring keys: from KEYS[first] on, pairs of (waiting, lasting) keys, one for each name. A
-- name is a commit's number, or a digest: then the content is the same wherever it already is.
local function unready(first, names, big_key)
  if #names > 0 and not read('SCARD', big_key) then return 'corrupt' end
  for i, name in ipairs(names) do
    local at = first + 2 * (i - 1)
    local there = call('EXISTS', KEYS[at + 1]) == 1
    if there and #name < 64 then return 'corrupt' end
    if not there and call('EXISTS', KEYS[at]) == 0 then return 'staged' end
  end
end

local function keep(first, names, big_key)
  for i, name in ipairs(names) do
    local at = first + 2 * (i - 1)
    if call('EXISTS', KEYS[at + 1]) == 0 then
      call('RENAME', KEYS[at], KEYS[at + 1])
      call('PERSIST', KEYS[at + 1]) -- a renamed key keeps its expiry
    end
    call('SADD', big_key, name)
  end
end

local function row_of(digest, token, mark, f, body, is_staged)
  local head = digest .. ' ' .. token .. ' ' .. mark .. ' ' .. text(f.ms)
  return is_staged and head .. ' big\n' or head .. '\n' .. body
end
