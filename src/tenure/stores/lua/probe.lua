#!lua flags=allow-oom
-- Try every command that the other scripts call, before they need it: a right that is missing would tear a change.
--
-- KEYS[1], KEYS[2] keys that nobody else uses, which are gone afterwards; ARGV as in every script
-- Returns the commands that the server refused, each with what it said.

local a, b, said = KEYS[1], KEYS[2], {}

local function try(name, ...)
  local got = redis.pcall(name, ...)
  if type(got) == 'table' and got.err then said[#said + 1] = name .. ': ' .. got.err end
end

try('TIME')
if ARGV[2] == '' then try('INFO', 'replication') end
for _, name in ipairs({'HSET', 'HSETNX'}) do try(name, a, 'field', '1') end
for _, name in ipairs({'HGET', 'HMGET'}) do try(name, a, 'field') end
for _, name in ipairs({'HGETALL', 'HLEN', 'EXISTS'}) do try(name, a) end
try('RENAME', a, b)
try('PERSIST', b)
try('UNLINK', b)
try('RPUSH', a, '1')
try('LLEN', a)
try('LINDEX', a, 0)
try('UNLINK', a)
try('ZADD', a, '1', 'member')
try('ZSCORE', a, 'member')
try('ZCARD', a)
try('ZREM', a, 'member')
try('SADD', a, 'member')
try('SCARD', a)
try('SISMEMBER', a, 'member')
try('UNLINK', a, b)
return said
