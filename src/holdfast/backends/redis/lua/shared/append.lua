-- Appending: publish makes the jobs of consumers that are level with the log, and leaves the others behind.

local opened = {}

local function leave_behind(c)
  if c.behind then return end
  redis.call('SADD', BEHIND, c.ref)
  redis.call('HSET', key.consumer(c.ref), 'behind', 1)
  c.behind = '1'
end

-- A channel that is about to be appended to. `takers` are the consumers that are level with its log.
local function open_channel(channel, eager)
  if opened[channel] then return opened[channel] end
  ensure_channel(channel)
  local log = redis.call('HMGET', key.log(channel), 'full', 'removed')
  local ch = {name = channel, stream = key.stream(channel), consumers = {}, takers = {}, fresh = 0, bytes = 0,
    full = log[1], removed = tonumber(log[2]) or 0}
  for _, ref in ipairs(redis.call('HVALS', key.consumers(channel))) do
    local c = load_consumer(ref)
    ch.consumers[#ch.consumers + 1] = c
    local level = false
    if eager and not c.target then
      local _, reached = catch_up(c, PAGE)
      level = reached
    end
    if level and eager then ch.takers[#ch.takers + 1] = c else leave_behind(c) end
  end
  opened[channel] = ch
  return ch
end

-- The answer for a channel that takes no more, itself or for a bounded consumer; else false.
local function refusal(ch)
  if ch.full then return {'full'} end
  for _, c in ipairs(ch.consumers) do
    if c.max_depth then
      commit()
      local live = live_jobs(c.ref)
      -- Whoever is still behind has more waiting than is counted.
      if live >= c.max_depth or (c.behind and not c.target) then
        return {'full', c.name, whole(live), whole(c.max_depth)}
      end
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

-- Append one event: its entry, its idempotency key, its jobs. Empty text stands for what it does not have.
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
  -- The key of a scheduled event lives as long after its time as others do after their publication.
  local kept = WINDOW + (at and math.max(0, math.ceil((at - NOW) / 1000)) or 0)
  local name = key.event(ch.name, event.source, event.id)
  redis.call('SET', name, event.hash .. EPOCH .. ' ' .. id, 'PX', whole(kept))
  for _, c in ipairs(ch.takers) do create_job(c, id, EPOCH, event.key, at, priority, NOW) end
  return id
end

-- Move the cursors of whoever got jobs, set a milestone where one is due, and wake whoever listens.
local function close_channels()
  for channel, ch in pairs(opened) do
    if ch.fresh > 0 then
      for _, c in ipairs(ch.takers) do redis.call('HSET', key.consumer(c.ref), 'cursor', ch.last) end
      note_crossing(ch)
      redis.call('PERSIST', ch.stream) -- another client may have given it a time to live
      redis.call('PUBLISH', WAKE, channel)
    end
  end
  commit()
end
