-- uses: waiting
-- The first step of removing a consumer: from here on no script finds it by its name or takes its number for
-- one. Writes {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF, {holdfast}:removals,
-- {holdfast}:bounded:CHANNEL, {holdfast}:due:head, {holdfast}:store; reads {holdfast}:log:CHANNEL.
-- ARGV: channel, consumer. Returns its REF, also where this was done before, and how many jobs waited in the
-- log, which have no record; nothing where there is no such consumer.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local owner = ARGV[1] .. '/' .. ARGV[2]
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then
  ref = redis.call('HGET', REMOVALS, owner)
  return ref and {ref, 0}
end
local c = load_consumer(ref)
local many = waiting(c, note_entries(ARGV[1]))
count(ref, 'waiting', -many)
commit()
-- A worker may still hold a lease of it when another consumer has its name: no token is given twice. No job had so
-- many of them beyond its block.
local LEAP = 1000000
redis.call('HSET', STORE, 'tokens', whole(math.max(NOW, TOKENS + LEAP, (c.base or 0) + LEAP)))
redis.call('HSET', REMOVALS, owner, ref)
redis.call('HSET', key.consumer(ref), 'removed', 1)
redis.call('HDEL', key.consumers(ARGV[1]), ARGV[2])
redis.call('SREM', key.bounded(ARGV[1]), ref)
redis.call('ZREM', HEADS, ref)
return {ref, many}
