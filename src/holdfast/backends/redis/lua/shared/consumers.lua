-- Consumers as scripts see them: the part of the policy that they need, and the cursor.

local loaded, found = {}, {}

local function load_consumer(ref)
  if loaded[ref] ~= nil then return loaded[ref] end
  local f = redis.call('HMGET', key.consumer(ref), 'channel', 'name', 'lease', 'expires_after', 'ordered',
    'discard', 'dead_letter', 'max_depth', 'paused', 'cursor', 'target', 'from', 'behind', 'max_attempts',
    'max_abandonments')
  loaded[ref] = f[1] and {
    ref = ref, channel = f[1], name = f[2], lease = tonumber(f[3]), expires_after = tonumber(f[4]),
    ordered = f[5] == '1', discard = f[6] == '1', dead_letter = f[7], max_depth = tonumber(f[8]),
    paused = f[9] == '1', cursor = f[10], target = f[11], from = tonumber(f[12]), behind = f[13],
    max_attempts = tonumber(f[14]), max_abandonments = tonumber(f[15]),
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

local function live_jobs(ref)
  local f = redis.call('HMGET', key.counts(ref), 'scheduled', 'ready', 'leased')
  return (tonumber(f[1]) or 0) + (tonumber(f[2]) or 0) + (tonumber(f[3]) or 0)
end
