-- uses: waiting
-- Create a worker consumer, or change its policy. Nothing can be appended between the look at the log and the
-- frontier, so that no event is missed.
-- Reads {holdfast}:channels, {holdfast}:consumers:*, {holdfast}:removals; writes
-- {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF, {holdfast}:bounded:CHANNEL, {holdfast}:behind,
-- {holdfast}:due:head, {holdfast}:store and what log/catch_up writes.
-- ARGV: channel, consumer, start ('latest', 'earliest', or the id after which to begin), how many entries
-- follow that id, as far as is known, dead-letter channel or '', ordered (0 or 1), the revision that it must
-- have (0: there is none) or '', its policy; then the fields of the consumer to set, by name and value; an
-- empty value takes the field away.

local channel, name, start, behind, target, ordered, expected, policy = unpack(ARGV, 1, 8)

local function leads_to(from, goal, seen)
  if from == goal then return true end
  seen[from] = true
  for _, ref in ipairs(redis.call('HVALS', key.consumers(from))) do
    local next_channel = load_consumer(ref).dead_letter
    if next_channel and not seen[next_channel] and leads_to(next_channel, goal, seen) then return true end
  end
  return false
end

if redis.call('HEXISTS', REMOVALS, channel .. '/' .. name) == 1 then
  return redis.error_reply('HFOUTDATED consumer ' .. name .. ' of channel ' .. channel
    .. ' is being removed; wait until that is done')
end
local c = find_consumer(channel .. '/' .. name)
local before = c and redis.call('HMGET', key.consumer(c.ref), 'revision', 'policy')
local revision = c and (before[1] or '1') or '0'
if expected ~= '' and expected ~= revision then
  return redis.error_reply('HFOUTDATED consumer ' .. name .. ' of channel ' .. channel .. ' has revision '
    .. revision .. ', not ' .. expected .. '; read it again')
end
if target ~= '' then
  if target ~= channel and redis.call('HEXISTS', CHANNELS, target) == 0 then
    return redis.error_reply('HFPOLICY dead-letter channel ' .. target .. ' does not exist; create it first')
  end
  if leads_to(target, channel, {}) then
    return redis.error_reply('HFPOLICY dead-letter channel ' .. target .. ' leads back to ' .. channel
      .. '; choose one outside the cycle')
  end
end

if c and c.ordered ~= (ordered == '1') then
  return redis.error_reply('HFPOLICY consumer ' .. name .. ' of channel ' .. channel
    .. ' was created with ordered = ' .. tostring(c.ordered) .. '; create another consumer')
end
ensure_channel(channel)
local ref = c and c.ref
if not c then
  ref = whole(redis.call('HINCRBY', STORE, 'consumers', 1))
  -- What others have appended and nobody has noted yet counts too: `taken` is then more than is known of.
  local log, cursor, after = note_entries(channel), last_id(key.stream(channel)), 0
  local length = redis.call('XLEN', key.stream(channel))
  if start == 'earliest' then
    cursor, after = '0-0', length
  elseif start ~= 'latest' and id_less(start, cursor) then
    cursor, after = start, math.min(tonumber(behind), length)
  end
  redis.call('HSET', key.consumer(ref), 'channel', channel, 'name', name, 'ordered', ordered, 'created', NOW,
    'cursor', cursor, 'special', cursor, 'taken', whole(length + log.removed - after))
  if start ~= 'latest' and start ~= 'earliest' then redis.call('HSET', key.consumer(ref), 'about', 1) end
  redis.call('HSET', key.consumers(channel), name, ref)
  if redis.call('EXISTS', key.special(channel)) == 1 then redis.call('SADD', BEHIND, channel) end
  loaded[ref] = nil
  count(ref, 'waiting', log.total - length - log.removed + after - between(key.repeats(channel), cursor, log.noted))
end
if not c or before[2] ~= policy then raise_revision(ref) end
redis.call('HSET', key.consumer(ref), 'policy', policy)
for i = 9, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', key.consumer(ref), ARGV[i])
  else
    redis.call('HSET', key.consumer(ref), ARGV[i], ARGV[i + 1])
  end
end
loaded[ref] = nil
c = load_consumer(ref)
redis.call(c.max_depth and 'SADD' or 'SREM', key.bounded(channel), ref)
-- A new limit may have been passed already; the lifecycle sees to it.
redis.call(c.expires_after and 'ZADD' or 'ZREM', HEADS, unpack(c.expires_after and {NOW, ref} or {ref}))
commit()
return describe_consumer(ref)
