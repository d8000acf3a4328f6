-- uses: milestones
-- Keep milestones that a reader found on its way. Reads {holdfast}:log:CHANNEL; writes
-- {holdfast}:chart:CHANNEL.
-- ARGV: channel, then for each milestone id, ordinal, average size. Returns nothing of interest.
local trimmed = redis.call('HGET', key.log(ARGV[1]), 'trimmed')
for i = 2, #ARGV, 3 do
  local name = pad(ARGV[i])
  local there = redis.call('ZRANGEBYLEX', key.chart(ARGV[1]), '[' .. name, '(' .. name .. '~', 'LIMIT', 0, 1)
  if #there == 0 and (not trimmed or id_less(trimmed, ARGV[i])) then
    note(ARGV[1], ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
  end
end
return 1
