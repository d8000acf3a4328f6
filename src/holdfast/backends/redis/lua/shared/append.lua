-- uses: waiting milestones
-- Appending. It makes no jobs, and looks at no consumer but those that are bounded.

local opened = {}

-- A channel that is about to be appended to. What other clients have appended is noted first, for its ids.
local function open_channel(channel)
  if opened[channel] then return opened[channel] end
  ensure_channel(channel)
  local ch = note_entries(channel)
  ch.fresh, ch.bytes = 0, 0
  opened[channel] = ch
  return ch
end

-- The answer for a channel that takes no more, itself or for a bounded consumer; else false.
local function refusal(ch)
  if ch.full then return {'full'} end
  for _, ref in ipairs(redis.call('SMEMBERS', key.bounded(ch.channel))) do
    local c = load_consumer(ref)
    if c and c.max_depth then
      commit()
      local live = live_jobs(c, ch)
      if live >= c.max_depth then return {'full', c.name, whole(live), whole(c.max_depth)} end
    end
  end
  return false
end

-- Ids follow the server's clock. Where the test kit moved time they follow ours, as far as the stream lets
-- them.
local function add_entry(ch, fields)
  if OFFSET > 0 and ch.fresh == 0 then
    local id = redis.pcall('XADD', ch.stream, whole(math.floor(NOW / 1000)) .. '-0', unpack(fields))
    if type(id) == 'string' then return id end
  end
  return redis.call('XADD', ch.stream, '*', unpack(fields))
end

-- Append one event: its entry and its idempotency key. Empty text stands for what it does not have.
local function append(ch, event, at, priority)
  local fields = {'id', event.id, 'source', event.source, 'type', event.type, 'published', NOW_TEXT,
    'data', event.data}
  local n = 10
  if event.key then fields[n + 1], fields[n + 2], n = 'key', event.key, n + 2 end
  if event.time ~= '' then fields[n + 1], fields[n + 2], n = 'time', event.time, n + 2 end
  if event.headers ~= '' then fields[n + 1], fields[n + 2], n = 'headers', event.headers, n + 2 end
  if at then fields[n + 1], fields[n + 2], n = 'at', whole(at), n + 2 end
  if priority ~= 0 then fields[n + 1], fields[n + 2] = 'priority', priority end
  local id = add_entry(ch, fields)
  ch.fresh, ch.last, ch.bytes = ch.fresh + 1, id, ch.bytes + #event.data
  if priority ~= 0 or (at and at > NOW) then note_special(ch.channel, id) end
  local name = key.event(ch.channel, event.source, event.id)
  redis.call('SET', name, event.hash .. EPOCH .. ' ' .. id, 'PX', kept_for(at))
  return id
end

-- Note what was appended, set a milestone where one is due, and wake whoever listens.
local function close_channels()
  for channel, ch in pairs(opened) do
    if ch.fresh > 0 then
      if ch.level then
        ch.noted, ch.total = ch.last, ch.total + ch.fresh
        save_log(ch)
        count_fresh(channel, ch.fresh)
      end
      note_crossing(ch)
      redis.call('PERSIST', ch.stream) -- another client may have given it a time to live
      redis.call('PUBLISH', WAKE, channel)
    end
  end
  commit()
end
