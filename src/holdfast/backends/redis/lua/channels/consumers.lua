-- uses: keys consumers
-- Consumers as they are stored. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:log:CHANNEL.
-- ARGV: channel or '*' for all. Returns one flat hash for each.
local answer = {}
for i, ref in ipairs(numbers(ARGV[1], ALL)) do answer[i] = describe_consumer(ref) end
return answer
