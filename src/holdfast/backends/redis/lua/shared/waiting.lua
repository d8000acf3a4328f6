-- uses: noted
-- What waits: how many jobs of a consumer are in the log, beyond its frontier (frontier.lua).

-- How many members of a set in log order lie behind `after`, up to `noted`.
local function between(set, after, noted)
  return redis.call('ZLEXCOUNT', set, '(' .. pad(after), '[' .. pad(noted))
end

-- How many jobs wait in the log.
local function waiting(c, log)
  local passed = between(key.repeats(c.channel), c.cursor, log.noted) + redis.call('ZCARD', key.ahead(c.ref))
  local special = 0
  if not c.ordered then
    passed = passed + between(key.special(c.channel), c.cursor, log.noted)
    special = between(key.special(c.channel), c.special, log.noted)
  end
  return math.max(0, log.total - c.taken - passed) + special
end

-- All live jobs, wherever they are.
local function live_jobs(c, log)
  local f = redis.call('HMGET', key.counts(c.ref), 'scheduled', 'ready', 'leased')
  return (tonumber(f[1]) or 0) + (tonumber(f[2]) or 0) + (tonumber(f[3]) or 0) + waiting(c, log)
end
