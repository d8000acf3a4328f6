-- uses: keys
-- Pause or resume a consumer. Writes {holdfast}:consumer:REF.
-- ARGV: channel, consumer, 1 or 0. Answers whether there is such a consumer.
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then return 0 end
redis.call('HSET', key.consumer(ref), 'paused', ARGV[3])
return 1
