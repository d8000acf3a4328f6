-- uses: consumers
-- Pause or resume a consumer. Writes {holdfast}:consumer:REF.
-- ARGV: channel, consumer, 1 or 0. Returns whether there is such a consumer.
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then return 0 end
if (redis.call('HGET', key.consumer(ref), 'paused') or '0') ~= ARGV[3] then
  redis.call('HSET', key.consumer(ref), 'paused', ARGV[3])
  raise_revision(ref)
end
return 1
