#!lua
-- Take the leases of many runs that are due, each by its name and decided alone.
--
-- KEYS[3..6] the status indexes of queued, running, suspended, quarantined; then for each run its record and due index
-- ARGV[4..] for each run: id, its kind (for the due index), nonce, owner, ttl in ms, token as found or '', kinds and code
-- versions ('' for any, else one a line between line breaks), own code version, schema, '1' if alone, '1' if a takeover
-- counts as a crash, max crashes
-- Returns one answer for each run; {'again', 'kind', kind} where the due index named is another's.

-- include head.lua
-- include law.lua

local f = look()
if not f then return {'again', 'meta'} end
local statuses = {queued = KEYS[3], running = KEYS[4], suspended = KEYS[5], quarantined = KEYS[6]}
local indexes_sound = true
for i = 3, 6 do indexes_sound = indexes_sound and read('ZCARD', KEYS[i]) ~= nil end

local function offers(names, name)
  return names == '' or find(names, '\n' .. name .. '\n', 1, true) ~= nil
end

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
  if not indexes_sound or not read('ZCARD', due_key) then return refused('corrupt', f, flat_of(run)) end
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
  return {'landed', '', text(f.us), flat_of(run, after), ''}
end

local answers = {}
for i = 7, #KEYS, 2 do
  local at = 4 + (i - 7) / 2 * 13
  answers[#answers + 1] = claimed(KEYS[i], KEYS[i + 1], {
    id = ARGV[at], kind = ARGV[at + 1], nonce = ARGV[at + 2], owner = ARGV[at + 3], ttl_ms = ARGV[at + 4],
    token = ARGV[at + 5], kinds = ARGV[at + 6], code_versions = ARGV[at + 7], code_version = ARGV[at + 8],
    schema = ARGV[at + 9], alone = ARGV[at + 10], blame = ARGV[at + 11], max_crashes = ARGV[at + 12],
  })
end
return answers
