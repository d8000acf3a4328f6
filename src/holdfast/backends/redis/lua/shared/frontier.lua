-- uses: jobs waiting
-- Frontiers: how far a consumer has taken up its log. Everything up to `cursor` is taken up, whose ordinal is
-- `taken`, so that what waits is a difference. Special entries have a second frontier, since they are taken
-- up before all others, as jobs of their own; the first one passes them over. It does so too with repeats,
-- and with entries that somebody has taken up ahead of it.
--
-- An ordered consumer takes up everything in the order of the log, as jobs of its own: what it has not taken
-- up is later than everything that it has.

local function save_frontier(c)
  redis.call('HSET', key.consumer(c.ref), 'cursor', c.cursor, 'taken', whole(c.taken))
  redis.call('ZREMRANGEBYLEX', key.ahead(c.ref), '-', '[' .. pad(c.cursor))
end

-- What is not to be handed out up to `last`, by id.
local function passed_over(c, last)
  local skipped = {}
  local sets = {key.repeats(c.channel), key.ahead(c.ref), not c.ordered and key.special(c.channel) or nil}
  for _, set in ipairs(sets) do
    for _, name in ipairs(redis.call('ZRANGEBYLEX', set, '(' .. pad(c.cursor), '[' .. pad(last))) do
      skipped[unpad(name)] = true
    end
  end
  return skipped
end

-- What is left of those was not met up to the frontier: another client took it, and nobody misses it. It was noted.
local function pass_missing(c, skipped)
  for id in pairs(skipped) do
    if not id_less(c.cursor, id) then c.taken = c.taken + 1 end
  end
end

-- Everything that is noted was met: what was not there was taken by another client, and is lost without a job.
local function reach_end(c, log)
  local lost = log.total - c.taken
  c.taken = log.total
  if c.about then
    redis.call('HDEL', key.consumer(c.ref), 'about')
  elseif lost > 0 then
    redis.call('HINCRBY', key.consumer(c.ref), 'lost', whole(lost))
    c.lost = lost
  end
  if lost ~= 0 then count(c.ref, 'waiting', -lost) end
end

local FIRST, READ, READ_BYTES = 20, 512, 1000000

-- Move the frontier over entries for as long as `visit` takes them, which gets its id, fields and weight, and
-- returns false to stop before one. At most `limit` of them are taken, and PAGE are passed over. Returns
-- whether it came to the end, and whether it had to pass over too many.
local function walk(c, log, limit, visit)
  local left, chunk, level, moved, passed = limit, FIRST, not id_less(c.cursor, log.noted), false, 0
  while not level and left > 0 and passed < PAGE do
    local size, bytes = math.min(left, chunk), 0
    local entries = redis.call('XRANGE', log.stream, '(' .. c.cursor, log.noted, 'COUNT', size)
    local last = #entries == size and entries[size][1] or log.noted
    local ended, skipped = last == log.noted, passed_over(c, last)
    for _, entry in ipairs(entries) do
      local id = entry[1]
      if skipped[id] then
        skipped[id], passed = nil, passed + 1
      else
        local flat = entry[2]
        local weight = weigh(flat)
        if visit(id, flat, weight) == false then
          pass_missing(c, skipped)
          if moved then save_frontier(c) end
          return false
        end
        left, bytes = left - 1, bytes + weight
      end
      c.cursor, c.taken, moved = id, c.taken + 1, true
    end
    if ended then c.cursor = log.noted end
    pass_missing(c, skipped)
    if ended then
      reach_end(c, log)
      level, moved = true, true
    end
    chunk = math.max(1, math.min(READ, math.floor(READ_BYTES * #entries / (bytes + 1))))
    if bytes > READ_BYTES then collectgarbage() end
  end
  if moved then save_frontier(c) end
  return level, passed >= PAGE
end

local function take_up_jobs(c, log, limit)
  return walk(c, log, limit, function(id, flat) create_job(c, id, fields_of({id, flat})) end)
end

-- Take up to `limit` special entries up, each as a job of its own. Returns how many, and whether there are
-- more. An ordered consumer takes up everything below them.
local function take_up_special(c, log, limit)
  local special = key.special(c.channel)
  if c.ordered then
    local last = redis.call('ZREVRANGEBYLEX', special, '[' .. pad(log.noted), '(' .. pad(c.cursor), 'LIMIT', 0, 1)[1]
    if not last then return 0, false end
    local before = c.taken
    if limit > 0 then take_up_jobs(c, log, limit) end
    return c.taken - before, id_less(c.cursor, unpad(last))
  end
  local range = {'(' .. pad(c.special), '[' .. pad(log.noted)}
  local names = redis.call('ZRANGEBYLEX', special, range[1], range[2], 'LIMIT', 0, limit + 1)
  local taken = math.min(#names, limit)
  for i = 1, taken do
    local id = unpad(names[i])
    local fields = read_entry(c.channel, id)
    if fields then
      create_job(c, id, fields)
    else
      redis.call('HINCRBY', key.consumer(c.ref), 'lost', 1)
      c.lost = (c.lost or 0) + 1
      count(c.ref, 'waiting', -1)
    end
    c.special = id
  end
  if taken > 0 then redis.call('HSET', key.consumer(c.ref), 'special', c.special) end
  return taken, #names > taken
end

-- When to look next at what waits at the front: no event expires there before.
local function set_head(c, log)
  if not c.expires_after then
    redis.call('ZREM', HEADS, c.ref)
    return
  end
  local base = nil
  local level = walk(c, log, 1, function(id, flat)
    base = base_of(c, id, fields_of({id, flat}))
    return false
  end)
  -- Where more is passed over than one look takes, there is another.
  if not base and not level then base = NOW - c.expires_after end
  redis.call('ZADD', HEADS, whole(later(base or NOW, c.expires_after)), c.ref)
end
