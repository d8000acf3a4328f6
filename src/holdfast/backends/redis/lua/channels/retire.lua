-- uses: keys
-- The first step of removing a consumer: from here on no script finds it by its name or takes its number for
-- one. Writes {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF, {holdfast}:removals, {holdfast}:behind.
-- ARGV: channel, consumer. Returns its REF, also where this was done before; nothing where there is none.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local owner = ARGV[1] .. '/' .. ARGV[2]
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then return redis.call('HGET', REMOVALS, owner) end
redis.call('HSET', REMOVALS, owner, ref)
redis.call('HSET', key.consumer(ref), 'removed', 1)
redis.call('HDEL', key.consumers(ARGV[1]), ARGV[2])
redis.call('SREM', BEHIND, ref)
return ref
