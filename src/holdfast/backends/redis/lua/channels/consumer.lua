-- uses: keys consumers
-- One consumer as it is stored. Reads {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF,
-- {holdfast}:log:CHANNEL.
-- ARGV: channel, consumer. Returns its flat hash, empty where there is none.
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
return ref and describe_consumer(ref) or {}
