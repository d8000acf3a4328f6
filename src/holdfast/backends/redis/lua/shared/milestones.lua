-- uses: log
-- Milestones: so that the end of a large batch is found without reading the batch.
--
-- A stream can not count: the server knows how long it is, not how many entries lie between two of them, and
-- walking costs nearly as much as reading. So each publish that takes the log past a multiple of STEP notes
-- its last entry with its ordinal: how many entries were ever appended, which is the stream's length and what
-- trim took. Entries of other clients are in that length. Who looks at a log from the outside (log/overview)
-- notes its end as well, and whoever has to walk notes what it found, so that a log which only others append
-- to is walked once.
--
-- A milestone is "ID ORDINAL BYTES" with the id padded and the average size of some entries before it. What
-- another client removes makes the ordinals since then too low: rows are then counted wrong by that much, and
-- the chart begins anew once an ordinal falls behind. Ids, and so what is read, are never wrong.

local STEP = 500

local function milestone(member)
  local id, ordinal = string.match(member, '^(%S+) (%d+) ')
  return unpad(id), tonumber(ordinal)
end

-- A reader can do without: also a server that takes no write at the moment is read.
local function note(channel, id, ordinal, bytes)
  redis.pcall('ZADD', key.chart(channel), 0, pad(id) .. ' ' .. whole(ordinal) .. ' ' .. whole(bytes))
end

-- Note the end of the log, at least `apart` from the last milestone. Ordinals rise, or the chart is of no use.
local function note_end(channel, id, ordinal, bytes, apart)
  local newest = redis.call('ZREVRANGE', key.chart(channel), 0, 0)[1]
  local last, reached = nil, 0
  if newest then last, reached = milestone(newest) end
  if last == id then return end
  if last and reached >= ordinal then
    redis.call('DEL', key.chart(channel))
    reached = 0
  end
  if ordinal - reached >= apart then note(channel, id, ordinal, bytes) end
end

local function note_crossing(ch)
  local ordinal = ch.level and ch.total or redis.call('XLEN', ch.stream) + ch.removed
  if math.floor(ordinal / STEP) == math.floor((ordinal - ch.fresh) / STEP) then return end
  note_end(ch.channel, ch.last, ordinal, ch.bytes / ch.fresh, 1)
end

local function forget_milestones(channel, id)
  redis.call('ZREMRANGEBYLEX', key.chart(channel), '-', '(' .. pad(id) .. '~')
end

local function entry_bytes(entry)
  local all = 0
  for i = 2, #entry[2], 2 do
    if entry[2][i - 1] == 'data' then return #entry[2][i] end
    all = all + #entry[2][i]
  end
  return all
end

-- What others removed can be told by a milestone below the first entry, by a stream that is empty but was not
-- always, and from 7.0 on by what was deleted one by one. The server itself keeps no note of an XTRIM.
local function learn_trimmed(channel, log)
  local top = log.first and '(' .. pad(log.first) or '+'
  local gone = redis.call('ZREVRANGEBYLEX', key.chart(channel), top, '-', 'LIMIT', 0, 1)[1]
  gone = gone and milestone(gone)
  if not log.first and log.generated ~= '0-0' then gone = log.generated end
  if log.first and log.deleted and id_less(log.deleted, log.first) and id_less(gone or '0-0', log.deleted) then
    gone = log.deleted
  end
  if not gone or (log.trimmed and not id_less(log.trimmed, gone)) then return end
  log.trimmed = gone
  redis.pcall('HSET', key.log(channel), 'trimmed', gone)
  forget_milestones(channel, gone)
end

-- A channel's log from the outside: length, ordinal, trimmed, and first and last where it is not empty.
local function look(channel)
  local stream, known = key.stream(channel), redis.call('HMGET', key.log(channel), 'removed', 'trimmed')
  local log = {length = 0, generated = '0-0', trimmed = known[2], bytes = 0}
  if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      local name, value = info[i], info[i + 1]
      if name == 'length' then log.length = value end
      if name == 'last-generated-id' then log.generated = value end
      if name == 'max-deleted-entry-id' then log.deleted = value end
      if name == 'first-entry' and value then log.first = value[1] end
      if name == 'last-entry' and value then log.last, log.bytes = value[1], entry_bytes(value) end
    end
  end
  log.ordinal = log.length + (tonumber(known[1]) or 0)
  learn_trimmed(channel, log)
  if log.last then
    ensure_channel(channel)
    note_end(channel, log.last, log.ordinal, log.bytes, STEP)
  end
  return log
end
