-- uses: clock
-- Locks: a lease on a name in the store's time, under a token that outlives it. The key of exactly that name is
-- for other clients: it holds the owner, keeps a plain SET NX out, and is respected where another one set it.

local function read_lock(name)
  local f = redis.call('HMGET', key.lock(name), 'token', 'owner', 'until')
  local shown = redis.call('GET', name)
  return {token = f[1], owner = f[2], ends = tonumber(f[3]), foreign = shown and shown ~= f[2]}
end

-- Whether this token is the newest and was not given back.
local function is_holder(lock, token) return lock.token == token and lock.owner and not lock.foreign end

local function hold(name, owner, ttl)
  local ends = whole(later(NOW, ttl))
  redis.call('HSET', key.lock(name), 'owner', owner, 'until', ends)
  redis.call('SET', name, owner, 'PX', whole(math.max(1, math.ceil(ttl / 1000))))
  return ends
end

-- Refuse a holder from the past.
local function fence(name, token)
  if redis.call('HGET', key.lock(name), 'token') ~= token then error('HFLOCK ' .. name .. ' ' .. token) end
end
