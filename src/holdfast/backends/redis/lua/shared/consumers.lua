-- uses: clock
-- Consumers as scripts see them: the part of the policy that they need, and the frontier. One that is being
-- removed is none.

local loaded, found = {}, {}
local ALL = '*' -- nobody's name

local function load_consumer(ref)
  if loaded[ref] ~= nil then return loaded[ref] end
  local f = redis.call('HMGET', key.consumer(ref), 'channel', 'name', 'lease', 'expires_after', 'ordered',
    'discard', 'dead_letter', 'max_depth', 'paused', 'cursor', 'taken', 'special', 'about', 'max_attempts',
    'max_abandonments', 'removed', 'max_runs', 'created', 'base')
  loaded[ref] = f[1] and not f[16] and {
    ref = ref, channel = f[1], name = f[2], lease = tonumber(f[3]), expires_after = tonumber(f[4]),
    ordered = f[5] == '1', discard = f[6] == '1', dead_letter = f[7], max_depth = tonumber(f[8]),
    paused = f[9] == '1', cursor = f[10], taken = tonumber(f[11]), special = f[12], about = f[13],
    max_attempts = tonumber(f[14]), max_abandonments = tonumber(f[15]),
    max_runs = tonumber(f[17]), created = tonumber(f[18]), base = tonumber(f[19]),
  }
  return loaded[ref]
end

-- By "channel/consumer", or by number; false where there is none.
local function find_consumer(owner)
  local ref = found[owner]
  if ref == nil then
    local channel, name = string.match(owner, '^([^/]*)/(.*)$')
    ref = channel and redis.call('HGET', key.consumers(channel), name) or not channel and owner
    found[owner] = ref
  end
  return ref and load_consumer(ref)
end

-- One as it is stored: its flat hash, and its channel's name for people.
local function describe_consumer(ref)
  local flat = redis.call('HGETALL', key.consumer(ref))
  local display = redis.call('HGET', key.log(redis.call('HGET', key.consumer(ref), 'channel')), 'display')
  flat[#flat + 1], flat[#flat + 2] = 'channel_display', display or ''
  return flat
end

-- What is new, or was changed, of one that others may be about to change too. Whoever calls this uses the
-- clock.
local function raise_revision(ref)
  local last = tonumber(redis.call('HGET', key.consumer(ref), 'revision')) or 1
  redis.call('HSET', key.consumer(ref), 'revision', whole(next_revision(last)))
end

-- The numbers of consumers, of one channel or of all, of one name or of all.
local function numbers(channel, name)
  local refs = {}
  for _, each in ipairs(channel == ALL and redis.call('HKEYS', CHANNELS) or {channel}) do
    local members = redis.call('HGETALL', key.consumers(each))
    for i = 1, #members, 2 do
      if name == ALL or name == members[i] then refs[#refs + 1] = members[i + 1] end
    end
  end
  return refs
end
