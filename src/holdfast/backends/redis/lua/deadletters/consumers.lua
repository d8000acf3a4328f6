-- uses: keys consumers
-- All consumers. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF.
-- Returns for each REF, channel, name.
local answer = {}
for i, ref in ipairs(numbers(ALL, ALL)) do
  local c = load_consumer(ref)
  answer[i] = {ref, c.channel, c.name}
end
return answer
