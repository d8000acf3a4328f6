-- uses: keys
-- Stream consumers as they are stored. Reads {holdfast}:channels, {holdfast}:cursors:CHANNEL.
-- ARGV: channel or '' for all. Returns for each channel, name, "MOVED EPOCH ID" or "MOVED".
local answer = {}
for _, channel in ipairs(ARGV[1] ~= '' and {ARGV[1]} or redis.call('HKEYS', CHANNELS)) do
  local found = redis.call('HGETALL', key.cursors(channel))
  for i = 1, #found, 2 do answer[#answer + 1] = {channel, found[i], found[i + 1]} end
end
return answer
