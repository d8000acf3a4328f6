-- uses: keys consumers
-- The largest clusters of each consumer. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL,
-- {holdfast}:clusters:REF.
-- ARGV: channel or '*', consumer or '*', how many of each. Returns for each REF, flat fingerprints and sizes.
local answer = {}
for i, ref in ipairs(numbers(ARGV[1], ARGV[2])) do
  answer[i] = {ref, redis.call('ZREVRANGE', key.clusters(ref), 0, ARGV[3] - 1, 'WITHSCORES')}
end
return answer
