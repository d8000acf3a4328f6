-- uses: batch
-- The dead in order, and their counts. Every way in and out moves the order by time of death, the count of
-- the reason, and the order and the count of the fingerprint, all in one script.

local recounts, sizes = {}, {}

-- Dead letters of a fingerprint.
local function count_cluster(ref, fingerprint, by) add(sizes, ref, fingerprint, by) end

flushers[#flushers + 1] = function()
  for ref, fingerprints in pairs(sizes) do
    for fingerprint, by in pairs(fingerprints) do
      local size = by == 0 and 1 or tonumber(redis.call('ZINCRBY', key.clusters(ref), by, fingerprint))
      if size <= 0 then redis.call('ZREM', key.clusters(ref), fingerprint) end
    end
  end
  sizes = {}
end

-- As a sorted set orders what has the same score: byte by byte, whatever the server's locale is.
local function name_less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- How many members of a set come before what follows a place, the latest first. The place need not be there.
-- '' as its id is behind everything of that time, '~' before it.
local function rank_after(set, time, id)
  local low = redis.call('ZCOUNT', set, '(' .. time, '+inf')
  local high = redis.call('ZCOUNT', set, time, '+inf')
  while low < high do
    local middle = math.floor((low + high) / 2)
    if name_less(redis.call('ZREVRANGE', set, middle, middle)[1], id) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- IDs and times of up to `limit` members after a place, the latest first.
local function page_after(set, time, id, limit)
  local start = rank_after(set, time, id)
  return redis.call('ZREVRANGE', set, start, start + limit - 1, 'WITHSCORES')
end

-- What moves within the part that a recount has behind it is counted there as well.
local function tell_recount(ref, time, id, reason, by)
  recounts[ref] = recounts[ref] or redis.call('HMGET', key.recount(ref), 'time', 'id')
  local reached, last = tonumber(recounts[ref][1]), recounts[ref][2]
  if reached and (time > reached or (time == reached and not name_less(id, last))) then
    redis.call('HINCRBY', key.recount(ref), 'found:' .. reason, by)
  end
end

local function enter_dead(c, id, reason, fingerprint)
  defer('ZADD', key.dead(c.ref), NOW, id)
  defer('ZADD', key.cluster(c.ref, fingerprint), NOW, id)
  count(c.ref, 'dead:' .. reason, 1)
  count_cluster(c.ref, fingerprint, 1)
  tell_recount(c.ref, NOW, id, reason, 1)
end

local function leave_dead(c, id, time, reason, fingerprint)
  redis.call('ZREM', key.dead(c.ref), id)
  count(c.ref, 'dead:' .. reason, -1)
  -- A cluster that somebody has spoilt is counted right by a recount.
  if redis.call('ZREM', key.cluster(c.ref, fingerprint), id) == 1 then count_cluster(c.ref, fingerprint, -1) end
  tell_recount(c.ref, time, id, reason, -1)
end
