-- uses: log
-- A channel at a glance. Reads {holdfast}:channels, {holdfast}:consumers:CHANNEL, {holdfast}:log:CHANNEL and
-- the stream.
-- ARGV: channel. Returns created, entries, last published or '', names of consumers, its name for people or
-- ''; nothing where there is none.
local created = redis.call('HGET', CHANNELS, ARGV[1])
if not created then return false end
local stream, published = key.stream(ARGV[1]), ''
local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
if last then published = whole((published_at(last[1], fields_of(last)))) end
return {created, redis.call('XLEN', stream), published, redis.call('HKEYS', key.consumers(ARGV[1])),
  redis.call('HGET', key.log(ARGV[1]), 'display') or ''}
