-- uses: keys clock ids batch consumers jobs log
-- Create a worker consumer, or change its policy. Nothing can be appended between the look at the log and the
-- cursor, so that no event is missed.
-- Reads {holdfast}:channels, {holdfast}:consumers:*; writes {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:behind, {holdfast}:store.
-- ARGV: channel, consumer, start ('latest', 'earliest' or µs), dead-letter channel or '', ordered (0 or 1),
-- then the fields of the consumer to set, by name and value; an empty value takes the field away.

local channel, name, start, target, ordered = unpack(ARGV, 1, 5)

local function leads_to(from, goal, seen)
  if from == goal then return true end
  seen[from] = true
  for _, ref in ipairs(redis.call('HVALS', key.consumers(from))) do
    local next_channel = load_consumer(ref).dead_letter
    if next_channel and not seen[next_channel] and leads_to(next_channel, goal, seen) then return true end
  end
  return false
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

local c = find_consumer(channel .. '/' .. name)
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
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', key.consumer(ref), ARGV[i])
  else
    redis.call('HSET', key.consumer(ref), ARGV[i], ARGV[i + 1])
  end
end
return redis.call('HGETALL', key.consumer(ref))
