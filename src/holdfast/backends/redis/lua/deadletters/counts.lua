-- uses: consumers
-- Dead letters by reason, as they are counted. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:counts:REF.
-- Returns for each consumer channel, name, flat counts.
local answer = {}
for i, ref in ipairs(numbers(ALL, ALL)) do
  local c = load_consumer(ref)
  answer[i] = {c.channel, c.name, redis.call('HGETALL', key.counts(ref))}
end
return answer
