-- uses: keys
-- Consumers as they are stored. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF.
-- ARGV: channel or '' for all. Answers one flat hash for each.
local answer = {}
for _, channel in ipairs(ARGV[1] ~= '' and {ARGV[1]} or redis.call('HKEYS', CHANNELS)) do
  for _, ref in ipairs(redis.call('HVALS', key.consumers(channel))) do
    answer[#answer + 1] = redis.call('HGETALL', key.consumer(ref))
  end
end
return answer
