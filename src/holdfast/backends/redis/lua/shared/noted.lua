-- uses: log batch consumers
-- What is noted of a log. Every entry up to `noted` was looked at, once for all consumers: `total` is its
-- ordinal, which is how many entries there ever were. Our own are noted by whoever publishes them; those of
-- other clients page by page, by whoever comes next. Nobody takes up what is not noted.
--
-- Noting finds the entries that are not simply next in line: special ones, which have a time or a priority,
-- and those of other clients that repeat an event.

local logs = {}

local function read_log(channel)
  if logs[channel] then return logs[channel] end
  local f = redis.call('HMGET', key.log(channel), 'noted', 'total', 'removed', 'full')
  logs[channel] = {channel = channel, stream = key.stream(channel), noted = f[1] or '0-0',
    total = tonumber(f[2]) or 0, removed = tonumber(f[3]) or 0, full = f[4]}
  return logs[channel]
end

-- The time and the priority of an entry, nil and 0 where it has none that counts.
local function special_of(id, fields)
  local at = whole_number(fields.at)
  local priority = math.max(-100, math.min(100, whole_number(fields.priority) or 0))
  local published = whole_number(fields.published) or tonumber(string.match(id, '^%d+')) * 1000
  return at and at > published and math.min(at, FAR) or nil, priority
end

local function note_special(channel, id)
  defer('ZADD', key.special(channel), 0, pad(id))
  defer('SADD', BEHIND, channel)
end

-- How long an idempotency key is kept: that of a scheduled event lives as long after its time as others do after
-- their publication.
local function kept_for(at) return whole(WINDOW + (at and math.max(0, math.ceil((at - NOW) / 1000)) or 0)) end

-- Whether a foreign entry repeats an earlier one. The first of its id is remembered, as a publish would.
local function is_repeat(channel, id, fields, at)
  local name = key.event(channel, fields.source or 'default', fields.id or id)
  local known = redis.call('GET', name)
  if not known then
    redis.call('SET', name, UNKNOWN .. epoch_of(channel, id) .. ' ' .. id, 'PX', kept_for(at))
    return false
  end
  local first = string.match(known, ' (%d+%-%d+)$', 17)
  if first == id then return false end
  local other = read_entry(channel, first)
  return not other or same_content(fields, other)
end

local function save_log(log)
  redis.call('HSET', key.log(log.channel), 'noted', log.noted, 'total', whole(log.total))
end

-- `fresh` more events wait for every consumer of a channel.
local function count_fresh(channel, fresh)
  local consumers = fresh > 0 and redis.call('HLEN', key.consumers(channel)) or 0
  if consumers > 0 then count('', 'waiting', fresh * consumers) end
end

-- What is not there any more, and was not trimmed by us, was taken by another client.
local function note_vanished(log)
  local gone = log.total - log.removed - redis.call('XLEN', log.stream)
  if gone == 0 then return end
  if gone < 0 then
    -- We trimmed what nobody had noted. Whoever was there began behind it, and was told to expect it noted.
    log.total = log.total - gone
    redis.call('HSET', key.log(log.channel), 'total', whole(log.total))
    count_fresh(log.channel, -gone)
    commit()
  else
    log.removed = log.removed + gone
    redis.call('HSET', key.log(log.channel), 'removed', whole(log.removed))
    redis.call('HINCRBY', key.log(log.channel), 'vanished', whole(gone))
  end
end

-- Note some more; `log.level` says whether that was all.
local function note_entries(channel)
  local log = read_log(channel)
  local seen, fresh, bytes, size = 0, 0, 0, 0
  repeat
    local entries = redis.call('XRANGE', log.stream, '(' .. log.noted, '+', 'COUNT', CHUNK)
    size = #entries
    for _, entry in ipairs(entries) do
      local id, fields = entry[1], fields_of(entry)
      bytes = bytes + weigh(entry[2])
      local at, priority = special_of(id, fields)
      if not whole_number(fields.published) and is_repeat(channel, id, fields, at) then
        defer('ZADD', key.repeats(channel), 0, pad(id))
      else
        fresh = fresh + 1
        if at or priority ~= 0 then note_special(channel, id) end
      end
      log.noted = id
    end
    seen = seen + size
  until size < CHUNK or seen >= PAGE or bytes >= MAX_BYTES
  log.total, log.level = log.total + seen, size < CHUNK
  if seen > 0 then
    ensure_channel(channel)
    save_log(log)
    count_fresh(channel, fresh)
    commit()
  end
  if log.level then note_vanished(log) end
  if seen > CHUNK then collectgarbage() end
  return log
end
