-- uses: ids clock
-- The log: its epochs and its entries.

-- Payloads that are alike hash alike in Lua, and slow each other down for as long as it keeps them: hence
-- small chunks, and a collection after each page.
local PAGE, CHUNK, MAX_BYTES = 1000, 100, 16777216
local UNKNOWN = string.rep('\0', 16) -- the content hash of what we did not publish: compare the entries
local epochs = {}

local function ensure_channel(channel)
  if redis.call('HEXISTS', CHANNELS, channel) == 1 then return end
  local kind = redis.call('TYPE', key.stream(channel)).ok
  if kind ~= 'none' and kind ~= 'stream' then
    error('HFINPUT the key of channel ' .. channel .. ' holds a ' .. kind .. '; name the channel otherwise')
  end
  redis.call('HSETNX', STORE, 'epoch', EPOCH)
  redis.call('HSET', CHANNELS, channel, NOW)
  redis.call('RPUSH', key.epochs(channel), EPOCH .. ' 0-0')
end

local function epoch_of(channel, id)
  epochs[channel] = epochs[channel] or redis.call('LRANGE', key.epochs(channel), 0, -1)
  for i = #epochs[channel], 1, -1 do
    local epoch, start = string.match(epochs[channel][i], '^(%d+) (.*)$')
    if i == 1 or id_less(start, id) then return epoch end
  end
  return EPOCH
end

-- Where a position stands among the entries that are there: what the store has lost of an earlier epoch must
-- not hide what it has written since. False: in an epoch that this store has not reached.
local function bound(channel, epoch, id)
  local newest = false
  for _, mark in ipairs(redis.call('LRANGE', key.epochs(channel), 0, -1)) do
    local number, start = string.match(mark, '^(%d+) (.*)$')
    newest = tonumber(number)
    if newest > tonumber(epoch) and id_less(start, id) then id = start end
  end
  return (not newest or newest >= tonumber(epoch)) and id
end

local FRAME = 100
-- How large an entry is, roughly: of ours only the data can be large.
local function weigh(flat)
  if flat[9] == 'data' and #flat <= 12 then return #flat[10] + FRAME end
  local weight = FRAME
  for i = 2, #flat, 2 do weight = weight + #flat[i] end
  return weight
end

local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  -- Of a foreign client's an empty name is none, as for whoever reads the event.
  if fields.id == '' then fields.id = nil end
  if fields.source == '' then fields.source = nil end
  if fields.type == '' then fields.type = nil end
  return fields
end

local function read_entry(channel, id)
  -- Where the key is no stream any more, the entry is gone.
  local entry = redis.pcall('XRANGE', key.stream(channel), id, id)[1]
  return entry and fields_of(entry), entry
end

-- A dead letter keeps its entry's fields, each behind its length, so that the log can be trimmed. Returns how
-- many bytes it keeps.
local function keep_entry(ref, id, entry)
  local parts = {}
  for i, value in ipairs(entry[2]) do parts[i] = #value .. ':' .. value end
  local text = table.concat(parts)
  redis.call('HSET', key.job(ref, id), 'entry', text)
  return #text
end

local function kept_entry(ref, id)
  local text = redis.call('HGET', key.job(ref, id), 'entry')
  if not text then return nil end
  local values, at = {}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local stop = colon + tonumber(string.sub(text, at, colon - 1))
    values[#values + 1] = string.sub(text, colon + 1, stop)
    at = stop + 1
  end
  return {id, values}
end

-- A job's entry, from the log or from what a dead letter kept of it.
local function job_entry(c, id)
  local event, entry = read_entry(c.channel, id)
  if event then return event, entry end
  entry = kept_entry(c.ref, id)
  return entry and fields_of(entry), entry
end

-- What stands for the data of a foreign entry that has none: whatever it has beside the fields that we know.
local function own_fields(fields)
  local own = {}
  for name, value in pairs(fields) do own[name] = value end
  for _, name in ipairs({'id', 'source', 'type', 'key', 'time', 'headers', 'at', 'priority', 'published'}) do
    own[name] = nil
  end
  return own
end

local function same_data(one, other)
  if one.data or other.data then return one.data == other.data end
  local left = own_fields(other)
  for name, value in pairs(own_fields(one)) do
    if left[name] ~= value then return false end
    left[name] = nil
  end
  return next(left) == nil
end

local function same_content(one, other)
  return (one.type or 'event') == (other.type or 'event') and (one.key or false) == (other.key or false)
    and same_data(one, other)
end

-- A foreign client may write anything: "nan" would be a number to Lua and an error to a sorted set.
local function whole_number(text)
  return text and string.find(text, '^%-?%d+$') and #text <= 16 and tonumber(text) or nil
end

local function published_at(id, fields)
  local published = whole_number(fields.published)
  return math.min(published or tonumber(string.match(id, '^%d+')) * 1000, NOW), not published
end
