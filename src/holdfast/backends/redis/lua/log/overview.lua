-- uses: milestones
-- A log from the outside, and its milestones from a position on. Reads the stream, {holdfast}:epochs:CHANNEL;
-- writes {holdfast}:log:CHANNEL and {holdfast}:chart:CHANNEL (what it learns), and for a stream that we did
-- not know {holdfast}:channels.
-- ARGV: channel, epoch and id of the position or '', epoch and id of the last one that is asked for or '',
-- how many milestones. Returns the epochs; trimmed, first and last id or ''; length, ordinal and size of the
-- last entry; the ids at which the two positions stand here, or '' for past the end; the milestones.
local channel = ARGV[1]
local log = look(channel)
local from = ARGV[2] == '' and '0-0' or bound(channel, ARGV[2], ARGV[3])
local to = ARGV[4] ~= '' and bound(channel, ARGV[4], ARGV[5])
local milestones = {}
if from and tonumber(ARGV[6]) > 0 then
  milestones = redis.call('ZRANGEBYLEX', key.chart(channel), '[' .. pad(from), '+', 'LIMIT', 0, ARGV[6])
end
return {
  redis.call('LRANGE', key.epochs(channel), 0, -1), log.trimmed or '', log.first or '', log.last or '',
  log.length, log.ordinal, log.bytes, from or '', to or '', milestones,
}
