-- The head of every script: how they are asked and answer, and what the store knows.
--
-- KEYS[1] meta, KEYS[2] history
-- ARGV[1] microseconds of a test clock, '' to ask the server
-- ARGV[2] the native history id, '' to ask the server
-- ARGV[3] why no acknowledged grant can be missing: 'disk' (without promotion), 'replicated', or '' where one can
-- An answer is {verdict, why, now in us, record (field, value, ..), inbox item}; or {'again', what, detail}, when only
-- the history row may have been written and the request can be sent anew.
--
-- Numbers travel as decimal text: Lua would print a token as 1.7e+15. Nothing may fail after the first write, so every
-- key that will be written is read before (`read` gives nil for a key of another type).

local call, sub, find, match, format = redis.call, string.sub, string.find, string.match, string.format
local floor, max, min = math.floor, math.max, math.min

local SCHEMA = 2

local function text(number)
  return format('%.0f', number)
end

local function read(...)
  local got = redis.pcall(...)
  if type(got) == 'table' and got.err then return nil end
  return got
end

-- The forty digits behind a name; found as plain text, which costs less than a pattern.
local function id_in(said, name)
  local _, at = find(said, name, 1, true)
  return at and sub(said, at + 1, at + 40) or nil
end

-- What the store knows; nil before meta is there. Who first sees another history writes down since when.
local function look()
  local us = tonumber(ARGV[1])
  if not us then
    local time = call('TIME')
    us = time[1] * 1000000 + time[2]
  end
  local meta = call('HMGET', KEYS[1], 'salt', 'floor', 'max_ttl_ms')
  if not (meta[1] and meta[2] and meta[3]) then return nil end
  local native, said = ARGV[2], ''
  if native == '' then
    said = call('INFO', 'replication')
    native = id_in(said, 'master_replid:')
  end
  local epoch = native .. '.' .. meta[1]
  local ms = floor(us / 1000)
  local row = call('HMGET', KEYS[2], 'epoch', 'since_ms', 'promoted')
  if row[1] ~= epoch then
    -- A second id means that a replica was promoted since the last start, perhaps more than once. Another salt under
    -- the same id is a restored store. Either may lack what was acknowledged; a restart on a full log does not.
    -- A grace that still runs is kept: whom the former history lost may trust a grant until it ends.
    local kept = row[3] == '1' and ms < (tonumber(row[2]) or 0) + (tonumber(meta[3]) or 0)
    local former = id_in(said, 'master_replid2:') or '0'
    local promoted = row[1] and (kept or find(former, '[^0]') or sub(row[1], 1, #native + 1) == native .. '.')
    row = {epoch, text(ms), promoted and '1' or '0'}
    call('HSET', KEYS[2], 'epoch', row[1], 'since_ms', row[2], 'promoted', row[3])
  end
  return {
    us = us, ms = ms, epoch = epoch, since_ms = tonumber(row[2]), floor = meta[2], max_ttl_ms = tonumber(meta[3]),
    lossy = not (ARGV[3] == 'replicated' or (ARGV[3] == 'disk' and row[3] == '0')),
  }
end
