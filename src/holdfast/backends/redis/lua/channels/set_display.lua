-- uses: consumers
-- Give a channel, or one of its consumers, a name for people. Reads {holdfast}:channels,
-- {holdfast}:consumers:CHANNEL; writes {holdfast}:log:CHANNEL or {holdfast}:consumer:REF.
-- ARGV: channel, display, and the consumer where it is for one. Returns whether there is such a one.
local channel, display, name = unpack(ARGV)
if not name then
  if redis.call('HEXISTS', CHANNELS, channel) == 0 then return 0 end
  redis.call('HSET', key.log(channel), 'display', display)
  return 1
end
local ref = redis.call('HGET', key.consumers(channel), name)
if not ref then return 0 end
if (redis.call('HGET', key.consumer(ref), 'display') or '') ~= display then
  redis.call('HSET', key.consumer(ref), 'display', display)
  raise_revision(ref)
end
return 1
