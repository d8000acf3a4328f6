-- uses: frontier
-- Jobs of some consumers by state, and the times of those that wait and of the dead. A page of what is not
-- noted, and of special entries that nobody has taken up, comes first.
-- Reads {holdfast}:counts:REF, {holdfast}:ready:REF, {holdfast}:scheduled:REF, {holdfast}:dead:REF and the
-- streams; writes what log/catch_up and lifecycle/backfill write.
-- ARGV: for each consumer REF, or channel/consumer. Returns for each channel, name, flat counts; when its
-- oldest and its newest ready job was due, when the next scheduled one is, when its first and its last dead
-- one died, each '' where there is none; and whether another call would know more (0 or 1). Nothing where
-- there is no such consumer.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local answer, left = {}, PAGE

local function score(set, first) return redis.call('ZRANGE', set, first, first, 'WITHSCORES')[2] or '' end

-- The first of each priority is its oldest and the last its newest; there are at most 201 priorities.
local function ready_times(ref)
  local oldest, newest, after = nil, nil, '-inf'
  while true do
    local first = redis.call('ZRANGEBYSCORE', key.ready(ref), after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[1] then return oldest, newest end
    local last = redis.call('ZREVRANGEBYSCORE', key.ready(ref), first[2], first[2], 'LIMIT', 0, 1)
    local from, to = tonumber(string.sub(first[1], 1, 16)), tonumber(string.sub(last[1], 1, 16))
    oldest, newest = math.min(oldest or from, from), math.max(newest or to, to)
    after = '(' .. first[2]
  end
end

-- The due times of the first and the last event that wait in the log.
local function waiting_times(c, log)
  local oldest, newest = nil, nil
  walk(c, log, 1, function(id, flat)
    oldest = base_of(c, id, fields_of({id, flat}))
    return false
  end)
  if not oldest then return nil, nil end
  for _, entry in ipairs(redis.call('XREVRANGE', log.stream, log.noted, '(' .. c.cursor, 'COUNT', FIRST)) do
    local at, priority = special_of(entry[1], fields_of(entry))
    if not newest and not at and priority == 0 then newest = base_of(c, entry[1], fields_of(entry)) end
  end
  return oldest, newest or oldest
end

for i, owner in ipairs(ARGV) do
  local c = find_consumer(owner)
  answer[i] = false
  if c then
    local log = note_entries(c.channel)
    local taken, more = take_up_special(c, log, left)
    left = math.max(0, left - taken) -- an ordered consumer may have passed over more
    commit()
    local counts, many = redis.call('HGETALL', key.counts(c.ref)), waiting(c, log)
    if many > 0 then counts[#counts + 1], counts[#counts + 2] = 'waiting', whole(many) end
    local oldest, newest = ready_times(c.ref)
    if many > 0 then
      local first, last = waiting_times(c, log)
      oldest = first and math.min(oldest or first, first) or oldest
      newest = last and math.max(newest or last, last) or newest
    end
    answer[i] = {c.channel, c.name, counts, oldest and whole(oldest) or '', newest and whole(newest) or '',
      score(key.scheduled(c.ref), 0), score(key.dead(c.ref), 0), score(key.dead(c.ref), -1),
      (more or not log.level) and 1 or 0}
  end
end
commit()
return answer
