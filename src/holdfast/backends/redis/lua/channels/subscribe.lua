-- uses: keys clock ids batch consumers jobs log
-- Create a worker consumer, or change its policy. Nothing can be appended between the look at the log and the
-- cursor, so that no event is missed.
-- Reads {holdfast}:channels, {holdfast}:consumers:*, {holdfast}:removals; writes {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:behind, {holdfast}:store.
-- ARGV: channel, consumer, start ('latest', 'earliest' or µs), dead-letter channel or '', ordered (0 or 1),
-- the revision that it must have (0: there is none) or '', its policy; then the fields of the consumer to set,
-- by name and value; an empty value takes the field away.

local channel, name, start, target, ordered, expected, policy = unpack(ARGV, 1, 7)

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
  local last, length = last_id(key.stream(channel))
  local cursor = last
  if start == 'earliest' then
    cursor = '0-0'
  elseif start ~= 'latest' then
    local before = math.floor(tonumber(start) / 1000) - 1
    cursor = before < 0 and '0-0' or whole(before) .. '-18446744073709551615'
  end
  local past = length > 0 and id_less(cursor, last)
  redis.call('HSET', key.consumer(ref), 'channel', channel, 'name', name, 'ordered', ordered, 'created', NOW,
    'cursor', past and cursor or last)
  if past then
    redis.call('HSET', key.consumer(ref), 'target', last, 'behind', 1)
    if start ~= 'earliest' then redis.call('HSET', key.consumer(ref), 'from', start) end
    redis.call('SADD', BEHIND, ref)
  end
  redis.call('HSET', key.consumers(channel), name, ref)
end
if not c or before[2] ~= policy then raise_revision(ref) end
redis.call('HSET', key.consumer(ref), 'policy', policy)
for i = 8, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', key.consumer(ref), ARGV[i])
  else
    redis.call('HSET', key.consumer(ref), ARGV[i], ARGV[i + 1])
  end
end
return describe_consumer(ref)
